"""The treasurer: its accounts as values, its instructions as bytes. Docs: docs/reference/solana-programs.md, Treasurer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from solders.account import Account
from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey

from psyche_backend_solana.layouts import header, tokens
from psyche_backend_solana.programs.addresses import ASSOCIATED_TOKEN, COORDINATOR, SYSTEM, TOKEN, TREASURER

RUN_MAGIC: Final = b"PsycheTr"
RUN_BYTES: Final = 256
PARTICIPANT_MAGIC: Final = b"PsychePa"
PARTICIPANT_BYTES: Final = 128
VERSION: Final = 1

ERRORS: Final[Mapping[int, tuple[str, str]]] = MappingProxyType(
    {
        100: ("NotHalted", "collateral is taken back only while the coordinator is halted"),
        101: ("OverClaim", "more was claimed than was earned, not slashed, and not yet paid"),
        102: ("StillOwed", "a run is closed only when nobody is owed anything any more"),
        103: ("NotForOwners", "the treasurer passes on only what a run's owner commands: stage, update, rates, pause"),
        104: ("OtherRun", "this account belongs to another run"),
        105: ("StillNeeded", "a participant that was paid or settled is closed only after its run was"),
        106: ("TooSoon", "a run is not closed in the slot in which it was created"),
        107: ("BadImage", "the coordinator's state is of a layout this treasurer does not know"),
        108: (
            "NotPaidOut",
            "a balance is freed only when it was earned, claimed to the last unit and is owed for no slashed points",
        ),
    }
)
"""The program's errors by number, as in Custom(n): name and sentence."""

MOST_SETTLED: Final = 20
"""Maximum participants of one run_settle, so that they fit into a transaction and the 24 accounts that the program reads."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run the treasurer pays.

    claimed: units paid so far. participants: number of accounts not closed yet. created: the slot of its creation. forgiven:
    units that settled slashed members are no longer owed.
    """

    bump: int
    index: int
    main_authority: Pubkey
    join_authority: Pubkey
    instance: Pubkey
    coordinator: Pubkey
    mint: Pubkey
    claimed: int
    participants: int
    created: int
    vault: Pubkey
    forgiven: int


@dataclass(frozen=True, slots=True)
class Participant:
    """The amounts paid to a user, in units. run_created: `created` of its run. forgiven: its part of the run's `forgiven`."""

    bump: int
    run: Pubkey
    user: Pubkey
    claimed: int
    run_created: int
    forgiven: int


@dataclass(frozen=True, slots=True)
class Treasury:
    """The addresses that a run's instructions name. program, coordinator_program: addresses of the two programs."""

    run: Pubkey
    vault: Pubkey
    mint: Pubkey
    instance: Pubkey
    coordinator: Pubkey
    program: Pubkey = TREASURER
    coordinator_program: Pubkey = COORDINATOR

    @classmethod
    def of(
        cls,
        index: int,
        *,
        mint: Pubkey,
        instance: Pubkey,
        coordinator: Pubkey,
        program: Pubkey = TREASURER,
        coordinator_program: Pubkey = COORDINATOR,
    ) -> Treasury:
        """The addresses of a run that does not exist yet. index: the run's number, which can be chosen freely."""
        run = run_address(index, program=program)
        return cls(run, tokens.associated(run, mint), mint, instance, coordinator, program, coordinator_program)


def run_address(index: int, *, program: Pubkey = TREASURER) -> Pubkey:
    """The account of the run with an index."""
    return Pubkey.find_program_address([b"run", index.to_bytes(8, "little")], program)[0]


def participant_address(run: Pubkey, user: Pubkey, *, program: Pubkey = TREASURER) -> Pubkey:
    """A user's account for a run."""
    return Pubkey.find_program_address([b"participant", bytes(run), bytes(user)], program)[0]


def parse_run(account: Account, *, program: Pubkey = TREASURER) -> Run:
    """Parse the account. Raises WireError if it is not a run of the treasurer."""
    data = header.content(account, program, magic=RUN_MAGIC, version=VERSION, size=RUN_BYTES, what="run of the treasurer")
    return Run(
        bump=data[12],
        index=header.number(data, 16),
        main_authority=header.key(data, 24),
        join_authority=header.key(data, 56),
        instance=header.key(data, 88),
        coordinator=header.key(data, 120),
        mint=header.key(data, 152),
        claimed=header.number(data, 184),
        participants=header.number(data, 192),
        created=header.number(data, 200),
        vault=header.key(data, 208),
        forgiven=header.number(data, 240),
    )


def parse_participant(account: Account, *, program: Pubkey = TREASURER) -> Participant:
    """Parse the account. Raises WireError if it is not a participant of the treasurer."""
    data = header.content(
        account, program, magic=PARTICIPANT_MAGIC, version=VERSION, size=PARTICIPANT_BYTES, what="participant of the treasurer"
    )
    return Participant(
        bump=data[12],
        run=header.key(data, 16),
        user=header.key(data, 48),
        claimed=header.number(data, 80),
        run_created=header.number(data, 88),
        forgiven=header.number(data, 96),
    )


def participant_in(run: Run, account: Account | None, *, program: Pubkey = TREASURER) -> Participant | None:
    """The account at a participant's address, as the program sees it for a run. Raises WireError for any other account.

    None if there are only lamports, which anybody can send there, or an account of an earlier run with this index: in both cases
    the program creates the account again, with nothing paid.
    """
    if account is None or not account.data:
        return None

    found = parse_participant(account, program=program)
    return found if found.run_created == run.created else None


def run_create(
    payer: Pubkey,
    treasury: Treasury,
    *,
    index: int,
    main_authority: Pubkey,
    join_authority: Pubkey,
    run_id: str,
    client_version: str,
) -> Instruction:
    """Creates the run, its vault and the coordinator's run. Signers: payer, the coordinator's account.

    That account must exist and contain only zeros.
    """
    accounts = [
        AccountMeta(payer, True, True),
        AccountMeta(treasury.run, False, True),
        AccountMeta(treasury.vault, False, True),
        AccountMeta(treasury.mint, False, False),
        AccountMeta(treasury.instance, False, True),
        AccountMeta(treasury.coordinator, True, True),
        AccountMeta(treasury.coordinator_program, False, False),
        AccountMeta(TOKEN, False, False),
        AccountMeta(ASSOCIATED_TOKEN, False, False),
        AccountMeta(SYSTEM, False, False),
    ]
    names = bytes([len(run_id.encode())]) + header.text(run_id, 32, "run_id") + header.text(client_version, 96, "client_version")
    data = b"\0" + index.to_bytes(8, "little") + bytes(main_authority) + bytes(join_authority) + names
    return Instruction(treasury.program, data, accounts)


def run_update(main_authority: Pubkey, treasury: Treasury, *, command: Instruction | bytes) -> Instruction:
    """Has the treasurer forward one instruction of the coordinator (its data, number first). Signer: main_authority."""
    data = bytes(command.data) if isinstance(command, Instruction) else command
    accounts = [
        AccountMeta(main_authority, True, False),
        AccountMeta(treasury.run, False, False),
        AccountMeta(treasury.instance, False, False),
        AccountMeta(treasury.coordinator, False, True),
        AccountMeta(treasury.coordinator_program, False, False),
    ]
    return Instruction(treasury.program, b"\1" + data, accounts)


def top_up(payer: Pubkey, source: Pubkey, *, treasury: Treasury, amount: int) -> Instruction:
    """Moves units of a payer's token account into the vault; 0 only measures the vault again. Signer: payer.

    The run's next epochs can promise the amount in the vault that is not owed.
    """
    accounts = [
        AccountMeta(payer, True, False),
        AccountMeta(source, False, True),
        AccountMeta(treasury.run, False, False),
        AccountMeta(treasury.vault, False, True),
        AccountMeta(TOKEN, False, False),
        *_commanded(treasury),
    ]
    return Instruction(treasury.program, b"\2" + amount.to_bytes(8, "little"), accounts)


def participant_create(payer: Pubkey, user: Pubkey, *, treasury: Treasury) -> Instruction:
    """Creates a user's account for a run. Signer: payer, who need not be the user."""
    accounts = [
        AccountMeta(payer, True, True),
        AccountMeta(user, False, False),
        AccountMeta(treasury.run, False, True),
        AccountMeta(participant_address(treasury.run, user, program=treasury.program), False, True),
        AccountMeta(SYSTEM, False, False),
    ]
    return Instruction(treasury.program, b"\3", accounts)


def participant_claim(authority: Pubkey, user: Pubkey, *, destination: Pubkey, treasury: Treasury, amount: int) -> Instruction:
    """Pays a user into the user's own token account. Signer: authority, which is the user or the run's main authority."""
    accounts = [
        AccountMeta(authority, True, False),
        AccountMeta(destination, False, True),
        AccountMeta(treasury.run, False, True),
        AccountMeta(participant_address(treasury.run, user, program=treasury.program), False, True),
        AccountMeta(treasury.vault, False, True),
        AccountMeta(treasury.coordinator, False, False),
        AccountMeta(TOKEN, False, False),
    ]
    return Instruction(treasury.program, b"\4" + amount.to_bytes(8, "little"), accounts)


def run_withdraw_unused(
    main_authority: Pubkey, destination: Pubkey, *, treasury: Treasury, show: Sequence[Pubkey] = ()
) -> Instruction:
    """Pays the owner the amount in the vault that is not owed. Signer: main_authority.

    show: participants' accounts (not users) of slashed members; a member that is not shown counts as not slashed.
    """
    accounts = [
        AccountMeta(main_authority, True, False),
        AccountMeta(destination, False, True),
        AccountMeta(treasury.run, False, False),
        AccountMeta(treasury.vault, False, True),
        AccountMeta(treasury.coordinator, False, True),
        AccountMeta(TOKEN, False, False),
        AccountMeta(treasury.instance, False, False),
        AccountMeta(treasury.coordinator_program, False, False),
        *_shown(show),
    ]
    return Instruction(treasury.program, b"\5", accounts)


def run_close(
    main_authority: Pubkey, spill: Pubkey, *, destination: Pubkey, treasury: Treasury, show: Sequence[Pubkey] = ()
) -> Instruction:
    """Frees the coordinator's run, closes vault and run. Rent goes to `spill`, tokens to `destination`. Signer: main_authority.

    show: as in run_withdraw_unused.
    """
    accounts = [
        AccountMeta(main_authority, True, False),
        AccountMeta(spill, False, True),
        AccountMeta(destination, False, True),
        AccountMeta(treasury.run, False, True),
        AccountMeta(treasury.vault, False, True),
        AccountMeta(treasury.instance, False, True),
        AccountMeta(treasury.coordinator, False, True),
        AccountMeta(treasury.coordinator_program, False, False),
        AccountMeta(TOKEN, False, False),
        *_shown(show),
    ]
    return Instruction(treasury.program, b"\6", accounts)


def run_settle(main_authority: Pubkey, *, treasury: Treasury, show: Sequence[Pubkey]) -> Instruction:
    """Records what slashed members are no longer owed, so that they need not be shown later. Signer: main_authority.

    show: participants' accounts, at most MOST_SETTLED.
    """
    accounts = [
        AccountMeta(main_authority, True, False),
        AccountMeta(treasury.run, False, True),
        AccountMeta(treasury.coordinator, False, False),
        *(AccountMeta(participant, False, True) for participant in show),
    ]
    return Instruction(treasury.program, b"\x08", accounts)


def run_release(user: Pubkey, *, treasury: Treasury) -> Instruction:
    """Frees the balance of a user that was paid all its earnings. Signer: only the payer of the fee.

    The run has room for a limited number of balances. The user must be neither in the epoch nor pending. Its paid and earned
    amounts are removed together, so its participant can be closed.
    """
    accounts = [
        AccountMeta(treasury.run, False, True),
        AccountMeta(participant_address(treasury.run, user, program=treasury.program), False, True),
        *_commanded(treasury),
    ]
    return Instruction(treasury.program, b"\x09", accounts)


def participant_close(user: Pubkey, spill: Pubkey, *, run: Pubkey, program: Pubkey = TREASURER) -> Instruction:
    """Closes a user's account that was never paid, or whose run is closed. Signer: user."""
    accounts = [
        AccountMeta(user, True, False),
        AccountMeta(spill, False, True),
        AccountMeta(run, False, True),
        AccountMeta(participant_address(run, user, program=program), False, True),
    ]
    return Instruction(program, b"\7", accounts)


def _commanded(treasury: Treasury) -> list[AccountMeta]:
    """The accounts that a run needs to command its coordinator."""
    return [
        AccountMeta(treasury.instance, False, False),
        AccountMeta(treasury.coordinator, False, True),
        AccountMeta(treasury.coordinator_program, False, False),
    ]


def _shown(participants: Sequence[Pubkey]) -> list[AccountMeta]:
    return [AccountMeta(participant, False, False) for participant in participants]
