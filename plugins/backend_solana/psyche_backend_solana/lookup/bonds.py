"""Finds the terms by which a run takes bonds, and the bonds of its members.

A run takes bonds if its join authority is an account of terms of the bond program, at the address that follows from the terms'
authority and this run's instance. There is no other sign of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from solders.account import Account
from solders.pubkey import Pubkey

from psyche_backend_solana.layouts import bond
from psyche_backend_solana.layouts.coordinator import Run
from psyche_backend_solana.lookup.runs import RunFound, asked
from psyche_backend_solana.programs.in_use import Programs
from psyche_backend_solana.rpc.client import Rpc
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.errors import BackendError, WireError
from psyche_core.types import ClientState

CALL_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class TermsFound:
    """A run's terms: the contents of their account, the addresses that go with them, and the run; None if it is closed."""

    bonds: bond.Bonds
    terms: bond.Terms
    run: Run | None


async def terms_of_run(rpc: Rpc, found: RunFound, *, programs: Programs, timeout: float = CALL_SECONDS) -> TermsFound | None:
    """The terms of a run; None if its join authority is no account of terms. Raises BackendError for one that is malformed."""
    address = found.instance.join_authority
    bonds = await bonds_at(rpc, address, programs=programs, timeout=timeout)
    if bonds is None:
        return None

    here = bond.bonds_address(bonds.authority, found.run.instance, program=programs.bond)
    if (here, bonds.instance) != (address, found.run.instance):
        message = (
            f"the join authority {address} of the run {found.instance.run_id!r} has terms for bonds of another run "
            f"({bonds.instance}); ask the run's owner for a run that takes bonds of its own"
        )
        raise BackendError(message)

    return TermsFound(bonds, addresses(found, bonds.mint, address, programs=programs), found.run)


async def bonds_at(rpc: Rpc, address: Pubkey, *, programs: Programs, timeout: float = CALL_SECONDS) -> bond.Bonds | None:
    """The terms in an account; None if it is not one of the bond program. Raises BackendError for one that is malformed."""
    read = await asked(rpc, address, timeout=timeout)
    if read is None or read.owner != programs.bond:
        return None

    try:
        return bond.parse_bonds(Account(read.lamports, read.data, read.owner), program=programs.bond)
    except WireError as error:
        raise BackendError(str(error)) from error


async def terms_of_closed(
    rpc: Rpc, address: Pubkey, instance: Pubkey, *, programs: Programs, timeout: float = CALL_SECONDS
) -> TermsFound | None:
    """Terms in an account whose run is closed; None if there are none there for this run's instance. Raises BackendError."""
    bonds = await bonds_at(rpc, address, programs=programs, timeout=timeout)
    if bonds is None or bonds.instance != instance:
        return None

    gone = instance  # there is no account of a state any more, and the program looks at none
    terms = bond.Terms(address, bonds.mint, bonds.vault, instance, gone, programs.bond, programs.authorizer)
    return TermsFound(bonds, terms, None)


def addresses(found: RunFound, mint: Pubkey, bonds: Pubkey, *, programs: Programs) -> bond.Terms:
    """The addresses that go with terms at `bonds`."""
    return bond.terms_of(
        bonds,
        mint=mint,
        instance=found.run.instance,
        account=found.run.account,
        program=programs.bond,
        authorizer_program=programs.authorizer,
    )


async def bond_of(rpc: Rpc, terms: Pubkey, user: Pubkey, *, program: Pubkey, timeout: float = CALL_SECONDS) -> bond.Bond | None:
    """A user's bond by the terms at an address, which may be closed; None if it has none. Raises BackendError."""
    read = await asked(rpc, bond.bond_address(terms, user, program=program), timeout=timeout)
    if read is None:
        return None

    try:
        return bond.parse_bond(Account(read.lamports, read.data, read.owner), program=program)
    except WireError as error:
        raise BackendError(str(error)) from error


def convicted(state: CoordinatorState, grounds: bond.Ground) -> tuple[Pubkey, ...]:
    """The wallets that a state shows as ejected on one of these grounds, as the program decides it."""
    found = []
    for client in state.epoch.clients:
        ground = bond.Ground.Strikes if client.standing.ejected else bond.Ground.Signatures
        if client.state is ClientState.Ejected and ground in grounds:
            found.append(Pubkey(client.id.signer))
    return tuple(found)
