"""Finds a run on the chain, and the authorization with which a wallet may join it.

Owner, size, magic and version of every account are checked before its content is used. Errors say in one sentence what is
missing and who can create it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from solders.account import Account
from solders.pubkey import Pubkey

from psyche_backend_solana.layouts import authorizer, bond
from psyche_backend_solana.layouts.coordinator import Run, instance_address
from psyche_backend_solana.layouts.coordinator_accounts import CoordinatorAccount, RunInstance
from psyche_backend_solana.lookup.cluster import refuse_shared_ids
from psyche_backend_solana.programs.in_use import Programs
from psyche_backend_solana.rpc import methods
from psyche_backend_solana.rpc.client import Rpc, RpcUnavailable
from psyche_backend_solana.rpc.failures import RpcError
from psyche_core.errors import AccessRefused, BackendError, CommandRefused, WireError

CALL_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class RunFound:
    """A run: its addresses and the contents of its instance."""

    run: Run
    instance: RunInstance


async def find_run(rpc: Rpc, run_id: str, *, programs: Programs, timeout: float = CALL_SECONDS) -> RunFound:
    """Return the run with a name, of any owner; `treasurers.check_owner` checks the owner.

    Raises AccessRefused (`WrongRun`) if there is none, BackendError for an account that is not a run, ConfigError (see
    `cluster`).
    """
    await checked_ids(rpc, programs, "coordinator", timeout=timeout)
    address, _ = instance_address(run_id, program=programs.coordinator)
    read = await asked(rpc, address, timeout=timeout)
    if read is None:
        message = (
            f"there is no run {run_id!r} at {rpc.current.name} (coordinator program {programs.coordinator}); "
            "check the name with `psyche run-manager list-runs`, or make it with `psyche run-manager create-run`"
        )
        raise AccessRefused("WrongRun", message)

    instance = read_instance(read, program=programs.coordinator)
    return RunFound(Run(address, instance.account, programs.coordinator), instance)


def read_instance(read: methods.AccountRead, *, program: Pubkey) -> RunInstance:
    """A run's instance. Raises BackendError."""
    try:
        expect_owner(read, program, "run's instance")
        return RunInstance.parse(read.data)
    except WireError as error:
        raise BackendError(str(error)) from error


def read_coordinator(read: methods.AccountRead, run: Run) -> CoordinatorAccount:
    """The account of a run's state. Raises WireError."""
    expect_owner(read, run.program, "coordinator account")
    account = CoordinatorAccount.parse(read.data)
    if account.instance != run.instance:
        message = f"the coordinator account {run.account} belongs to another run ({account.instance})"
        raise WireError(message)

    return account


async def coordinator_account(rpc: Rpc, run: Run, *, timeout: float = CALL_SECONDS) -> CoordinatorAccount:
    """The account of a run's state, read now. Raises BackendError."""
    read = await asked(rpc, run.account, timeout=timeout)
    if read is None:
        message = f"the account {run.account} of the run's state is gone; its owner has closed the run"
        raise BackendError(message)

    try:
        return read_coordinator(read, run)
    except WireError as error:
        raise BackendError(str(error)) from error


async def find_authorization(
    rpc: Rpc,
    grantor: Pubkey,
    user: Pubkey,
    *,
    grantees: Iterable[Pubkey] | None = None,
    programs: Programs,
    timeout: float = CALL_SECONDS,
) -> Pubkey:
    """Return the authorization by `grantor` with which `user` may join.

    grantees: wallets whose authorizations are tried; None, or the user alone, tries the one for everybody, then the user's own,
    then the one that goes with a bond of the user. Raises CommandRefused (`NotAuthorized`) with what is missing.
    """
    await checked_ids(rpc, programs, "authorizer", timeout=timeout)
    own_bond = bond.bond_address(grantor, user, program=programs.bond)
    wanted = (user,) if grantees is None else tuple(grantees)
    if wanted == (user,):
        wanted = (authorizer.EVERYBODY, user, own_bond)
    addresses = [authorizer.address(grantor, grantee, program=programs.authorizer) for grantee in wanted]
    try:
        *found, granting = await methods.accounts(rpc, [*addresses, grantor], timeout=timeout)
    except RpcError as error:
        raise BackendError(str(error)) from error

    reasons = []
    for grantee, address, read in zip(wanted, addresses, found, strict=True):
        whose = "everybody" if grantee == authorizer.EVERYBODY else str(grantee)
        if read is None:
            if grantee != own_bond:
                reasons.append(f"none for {whose}")
            continue
        try:
            account = Account(read.lamports, read.data, read.owner)
            authorization = authorizer.parse(account, program=programs.authorizer)
        except WireError as error:
            reasons.append(f"that for {whose} is malformed ({error})")
            continue
        if authorization.allows(user):
            return address
        reasons.append(f"that for {whose} " + ("does not name this wallet" if authorization.active else "is switched off"))

    if granting is not None and granting.owner == programs.bond:
        message = (
            f"the wallet {user} may not join: the run takes a bond, and this wallet has none that is active; "
            "`psyche solana bond show` prints the terms, and `psyche solana bond deposit` puts a bond down"
        )
        raise CommandRefused("NotAuthorized", message)

    message = (
        f"the wallet {user} may not join: of authorizations by {grantor} there is {', '.join(reasons)}; "
        "the run's owner grants one with `psyche run-manager join-authorization-create`"
    )
    raise CommandRefused("NotAuthorized", message)


async def checked_ids(rpc: Rpc, programs: Programs, *names: str, timeout: float) -> None:
    """See `cluster.refuse_shared_ids`. Raises ConfigError, BackendError."""
    try:
        await refuse_shared_ids(rpc, programs, *names, timeout=timeout)
    except RpcError as error:
        raise BackendError(str(error)) from error


async def asked(rpc: Rpc, address: Pubkey, *, timeout: float) -> methods.AccountRead | None:
    """An account; None if it does not exist. Raises BackendError."""
    try:
        return await methods.account(rpc, address, timeout=timeout)
    except RpcUnavailable:
        raise
    except RpcError as error:
        raise BackendError(str(error)) from error


def expect_owner(read: methods.AccountRead, program: Pubkey, what: str) -> None:
    """Check that an account belongs to a program. Raises WireError."""
    if read.owner != program:
        message = f"this is no {what}: expected an account of the program {program}, got one of {read.owner}"
        raise WireError(message)
