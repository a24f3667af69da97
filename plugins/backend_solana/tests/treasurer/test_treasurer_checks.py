"""Every check of the treasurer refuses: each of its instructions, changed in one thing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from random_instructions import Thief
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from plugins.backend_solana.tests.svm.program_chain import (
    Refused,
    exchanged,
    fewer_accounts,
    read_only,
    with_data,
    without_signer,
)
from plugins.backend_solana.tests.treasurer.treasurer_world import (
    CODES,
    World,
)
from psyche_backend_solana.layouts import treasurer
from psyche_backend_solana.programs.addresses import COORDINATOR, SYSTEM, TOKEN, TREASURER
from psyche_core.coordinator import canonical_image as image
from psyche_core.errors import WireError
from psyche_core.types import RunState


def happy(world: World) -> dict[str, tuple[Instruction, list[Keypair]]]:
    """Every instruction that does not call the coordinator, as it succeeds in this world."""
    payer, owner, alice = world.payer, world.owner, world.alice
    dave = Pubkey(b"dave ...........................")
    source = world.purse[payer.pubkey()]
    closing = treasurer.participant_close(world.carol.pubkey(), payer.pubkey(), run=world.treasury.run)
    return {
        "top_up": (treasurer.top_up(payer.pubkey(), source, treasury=world.treasury, amount=5), [payer]),
        "participant_create": (treasurer.participant_create(payer.pubkey(), dave, treasury=world.treasury), [payer]),
        "participant_claim": (world.claiming(alice, 10), [alice]),
        "run_withdraw_unused": (world.withdrawing(world.bob), [owner]),
        "run_settle": (world.settling(world.bob), [owner]),
        "run_release": (treasurer.run_release(world.dora.pubkey(), treasury=world.treasury), [payer]),
        "participant_close": (closing, [world.carol]),
    }


def purse(world: World, owner: Pubkey | None = None, mint: Pubkey | None = None) -> Pubkey:
    return world.chain.tokens(owner or world.alice.pubkey(), mint or world.mint)


def poked(world: World, tokens: Pubkey, offset: int, value: bytes) -> Pubkey:
    """A copy of a token account with some bytes changed."""
    data = bytes(world.chain.account(tokens).data)
    made = Pubkey.new_unique()
    world.chain.put(made, data[:offset] + value + data[offset + len(value) :], TOKEN)
    return made


DELEGATED, CLOSABLE, FROZEN, UNMADE = (72, b"\1"), (129, b"\1"), (108, b"\2"), (108, b"\0")
Change = Callable[[World, Instruction], Instruction]
REFUSALS: list[tuple[str, str, Change, str]] = [
    ("top_up", "payer signs", lambda _, i: without_signer(i, 0), "MissingSigner"),
    ("top_up", "tokens are written", lambda _, i: read_only(i, 1), "NotWritable"),
    ("top_up", "vault is written", lambda _, i: read_only(i, 3), "NotWritable"),
    ("top_up", "a token account", lambda w, i: exchanged(i, 1, w.payer.pubkey()), "WrongOwner"),
    ("top_up", "of the mint", lambda w, i: exchanged(i, 1, purse(w, w.payer.pubkey(), w.chain.mint())), "WrongMint"),
    ("top_up", "not from the vault", lambda w, i: exchanged(i, 1, w.treasury.vault), "SameAccount"),
    ("top_up", "a run", lambda w, i: exchanged(i, 2, w.payer.pubkey()), "WrongOwner"),
    ("top_up", "no participant for a run", lambda w, i: exchanged(i, 2, w.participant(w.alice)), "WrongSize"),
    ("top_up", "its own vault", lambda w, i: exchanged(i, 3, w.other.vault), "WrongAddress"),
    ("top_up", "the token program", lambda w, i: exchanged(i, 4, w.payer.pubkey()), "WrongAddress"),
    ("top_up", "this run's instance", lambda w, i: exchanged(i, 5, w.other.instance), "OtherRun"),
    ("top_up", "this run's coordinator", lambda w, i: exchanged(i, 6, w.other.coordinator), "OtherRun"),
    ("top_up", "coordinator's account is written", lambda _, i: read_only(i, 6), "NotWritable"),
    ("top_up", "the coordinator", lambda w, i: exchanged(i, 7, w.mint), "WrongAddress"),
    ("top_up", "all data", lambda _, i: with_data(i, bytes(i.data)[:-1]), "BadInstruction"),
    ("top_up", "no more data", lambda _, i: with_data(i, bytes(i.data) + b"\0"), "BadInstruction"),
    ("top_up", "all accounts", lambda _, i: fewer_accounts(i), "NotEnoughAccounts"),
    ("participant_create", "payer signs", lambda _, i: without_signer(i, 0), "MissingSigner"),
    ("participant_create", "payer pays", lambda _, i: read_only(i, 0), "NotWritable"),
    ("participant_create", "run is written", lambda _, i: read_only(i, 2), "NotWritable"),
    ("participant_create", "account is written", lambda _, i: read_only(i, 3), "NotWritable"),
    ("participant_create", "a run", lambda w, i: exchanged(i, 2, w.payer.pubkey()), "WrongOwner"),
    ("participant_create", "of this run", lambda w, i: exchanged(i, 2, w.other.run), "WrongAddress"),
    ("participant_create", "of this user", lambda w, i: exchanged(i, 1, w.alice.pubkey()), "WrongAddress"),
    ("participant_create", "its own address", lambda w, i: exchanged(i, 3, w.participant(w.alice)), "WrongAddress"),
    ("participant_create", "the system program", lambda w, i: exchanged(i, 4, w.mint), "WrongAddress"),
    ("participant_create", "no data", lambda _, i: with_data(i, b"\3\0"), "BadInstruction"),
    ("participant_create", "all accounts", lambda _, i: fewer_accounts(i), "NotEnoughAccounts"),
    ("participant_claim", "user signs", lambda _, i: without_signer(i, 0), "MissingSigner"),
    ("participant_claim", "tokens are written", lambda _, i: read_only(i, 1), "NotWritable"),
    ("participant_claim", "run is written", lambda _, i: read_only(i, 2), "NotWritable"),
    ("participant_claim", "participant is written", lambda _, i: read_only(i, 3), "NotWritable"),
    ("participant_claim", "vault is written", lambda _, i: read_only(i, 4), "NotWritable"),
    ("participant_claim", "a token account", lambda w, i: exchanged(i, 1, w.alice.pubkey()), "WrongOwner"),
    ("participant_claim", "not a mint", lambda w, i: exchanged(i, 1, w.mint), "WrongKind"),
    ("participant_claim", "the user's tokens", lambda w, i: exchanged(i, 1, purse(w, w.bob.pubkey())), "WrongTokenOwner"),
    ("participant_claim", "of the mint", lambda w, i: exchanged(i, 1, purse(w, mint=w.chain.mint())), "WrongMint"),
    ("participant_claim", "no delegate", lambda w, i: exchanged(i, 1, poked(w, purse(w), *DELEGATED)), "DelegatedTokens"),
    (
        "participant_claim",
        "nobody else closes it",
        lambda w, i: exchanged(i, 1, poked(w, purse(w), *CLOSABLE)),
        "DelegatedTokens",
    ),
    ("participant_claim", "not frozen", lambda w, i: exchanged(i, 1, poked(w, purse(w), *FROZEN)), "WrongKind"),
    ("participant_claim", "initialised", lambda w, i: exchanged(i, 1, poked(w, purse(w), *UNMADE)), "WrongKind"),
    ("participant_claim", "a run", lambda w, i: exchanged(i, 2, w.mint), "WrongOwner"),
    ("participant_claim", "this run", lambda w, i: exchanged(i, 2, w.other.run), "OtherRun"),
    ("participant_claim", "a participant", lambda w, i: exchanged(i, 3, w.mint), "WrongOwner"),
    ("participant_claim", "no run for a participant", lambda w, i: exchanged(i, 3, w.other.run), "WrongSize"),
    ("participant_claim", "a participant of this run", lambda w, i: exchanged(i, 3, w.elsewhere(w.alice)), "OtherRun"),
    ("participant_claim", "this user", lambda w, i: exchanged(i, 3, w.participant(w.bob)), "NotAuthority"),
    ("participant_claim", "its own vault", lambda w, i: exchanged(i, 4, w.other.vault), "WrongAddress"),
    ("participant_claim", "this run's coordinator", lambda w, i: exchanged(i, 5, w.other.coordinator), "OtherRun"),
    ("participant_claim", "the token program", lambda w, i: exchanged(i, 6, w.mint), "WrongAddress"),
    ("participant_claim", "all data", lambda _, i: with_data(i, bytes(i.data)[:-1]), "BadInstruction"),
    ("participant_claim", "no more data", lambda _, i: with_data(i, bytes(i.data) + b"\0"), "BadInstruction"),
    ("participant_claim", "all accounts", lambda _, i: fewer_accounts(i), "NotEnoughAccounts"),
    ("run_withdraw_unused", "owner signs", lambda _, i: without_signer(i, 0), "MissingSigner"),
    ("run_withdraw_unused", "the owner", lambda w, i: exchanged(i, 0, w.chain.payer.pubkey()), "NotAuthority"),
    ("run_withdraw_unused", "tokens are written", lambda _, i: read_only(i, 1), "NotWritable"),
    ("run_withdraw_unused", "vault is written", lambda _, i: read_only(i, 3), "NotWritable"),
    ("run_withdraw_unused", "the owner's tokens", lambda w, i: exchanged(i, 1, purse(w)), "WrongTokenOwner"),
    ("run_withdraw_unused", "of the mint", lambda w, i: exchanged(i, 1, purse(w, w.owner.pubkey(), w.chain.mint())), "WrongMint"),
    ("run_withdraw_unused", "a run", lambda w, i: exchanged(i, 2, w.mint), "WrongOwner"),
    ("run_withdraw_unused", "its own vault", lambda w, i: exchanged(i, 3, w.other.vault), "WrongAddress"),
    ("run_withdraw_unused", "this run's coordinator", lambda w, i: exchanged(i, 4, w.other.coordinator), "OtherRun"),
    ("run_withdraw_unused", "the token program", lambda w, i: exchanged(i, 5, w.mint), "WrongAddress"),
    ("run_withdraw_unused", "a participant shown", lambda w, i: exchanged(i, 8, w.mint), "WrongOwner"),
    ("run_withdraw_unused", "a participant of this run", lambda w, i: exchanged(i, 8, w.elsewhere(w.bob)), "OtherRun"),
    ("run_withdraw_unused", "each shown once", lambda w, _: w.withdrawing(w.bob, w.alice, w.bob), "SameAccount"),
    ("run_withdraw_unused", "coordinator's account is written", lambda _, i: read_only(i, 4), "NotWritable"),
    ("run_withdraw_unused", "this run's instance", lambda w, i: exchanged(i, 6, w.other.instance), "OtherRun"),
    ("run_withdraw_unused", "the coordinator", lambda w, i: exchanged(i, 7, w.mint), "WrongAddress"),
    ("run_release", "run is written", lambda _, i: read_only(i, 0), "NotWritable"),
    ("run_release", "participant is written", lambda _, i: read_only(i, 1), "NotWritable"),
    ("run_release", "coordinator's account is written", lambda _, i: read_only(i, 3), "NotWritable"),
    ("run_release", "a run", lambda w, i: exchanged(i, 0, w.mint), "WrongOwner"),
    ("run_release", "a participant", lambda w, i: exchanged(i, 1, w.mint), "WrongOwner"),
    ("run_release", "a participant of this run", lambda w, i: exchanged(i, 1, w.elsewhere(w.alice)), "OtherRun"),
    ("run_release", "this run's instance", lambda w, i: exchanged(i, 2, w.other.instance), "OtherRun"),
    ("run_release", "this run's coordinator", lambda w, i: exchanged(i, 3, w.other.coordinator), "OtherRun"),
    ("run_release", "the coordinator", lambda w, i: exchanged(i, 4, w.mint), "WrongAddress"),
    ("run_release", "no data", lambda _, i: with_data(i, b"\x09\0"), "BadInstruction"),
    ("run_release", "all accounts", lambda _, i: fewer_accounts(i), "NotEnoughAccounts"),
    ("run_withdraw_unused", "no data", lambda _, i: with_data(i, b"\5\0"), "BadInstruction"),
    ("run_settle", "owner signs", lambda _, i: without_signer(i, 0), "MissingSigner"),
    ("run_settle", "the owner", lambda w, i: exchanged(i, 0, w.chain.payer.pubkey()), "NotAuthority"),
    ("run_settle", "run is written", lambda _, i: read_only(i, 1), "NotWritable"),
    ("run_settle", "a run", lambda w, i: exchanged(i, 1, w.mint), "WrongOwner"),
    ("run_settle", "this run's coordinator", lambda w, i: exchanged(i, 2, w.other.coordinator), "OtherRun"),
    ("run_settle", "participant is written", lambda _, i: read_only(i, 3), "NotWritable"),
    ("run_settle", "a participant", lambda w, i: exchanged(i, 3, w.mint), "WrongOwner"),
    ("run_settle", "a participant of this run", lambda w, i: exchanged(i, 3, w.elsewhere(w.bob)), "OtherRun"),
    ("run_settle", "no data", lambda _, i: with_data(i, b"\x08\0"), "BadInstruction"),
    ("participant_close", "user signs", lambda _, i: without_signer(i, 0), "MissingSigner"),
    ("participant_close", "spill is written", lambda _, i: read_only(i, 1), "NotWritable"),
    ("participant_close", "run is written", lambda _, i: read_only(i, 2), "NotWritable"),
    ("participant_close", "account is written", lambda _, i: read_only(i, 3), "NotWritable"),
    ("participant_close", "the user", lambda w, i: exchanged(i, 3, w.participant(w.bob)), "NotAuthority"),
    ("participant_close", "its own run", lambda w, i: exchanged(i, 2, w.other.run), "OtherRun"),
    ("participant_close", "not nobody's account for a run", lambda w, i: exchanged(i, 2, w.payer.pubkey()), "OtherRun"),
    ("participant_close", "a participant", lambda w, i: exchanged(i, 3, w.mint), "WrongOwner"),
    ("participant_close", "not into itself", lambda w, i: exchanged(i, 1, w.participant(w.carol)), "SameAccount"),
    ("participant_close", "no data", lambda _, i: with_data(i, b"\7\0"), "BadInstruction"),
    ("participant_close", "all accounts", lambda _, i: fewer_accounts(i), "NotEnoughAccounts"),
    ("participant_close", "a known instruction", lambda _, i: with_data(i, b"\x0a"), "BadInstruction"),
    ("participant_close", "an instruction", lambda _, i: with_data(i, b""), "BadInstruction"),
]


@pytest.mark.parametrize(
    "name",
    [
        "top_up",
        "participant_create",
        "participant_claim",
        "run_withdraw_unused",
        "run_settle",
        "run_release",
        "participant_close",
    ],
)
def test_without_a_change_each_succeeds(world: World, name: str) -> None:
    instruction, signers = happy(world)[name]
    world.chain.rehearse(instruction, signers=signers)


@pytest.mark.parametrize(("name", "what", "change", "error"), REFUSALS, ids=lambda value: value if isinstance(value, str) else "")
def test_each_check_refuses(world: World, name: str, what: str, change: Change, error: str) -> None:
    instruction, signers = happy(world)[name]
    assert world.chain.refused(change(world, instruction), *signers) == CODES[error]


def byte(offset: int, value: bytes) -> Callable[[bytes], bytes]:
    return lambda data: data[:offset] + value + data[offset + len(value) :]


Damage = tuple[str, Callable[[World], Pubkey], Callable[[bytes], bytes], str]
DAMAGES: list[Damage] = [
    ("participant_claim", lambda w: w.treasury.run, byte(0, b"X"), "WrongKind"),
    ("participant_claim", lambda w: w.treasury.run, byte(8, b"\2"), "WrongVersion"),
    ("participant_claim", lambda w: w.treasury.run, lambda data: data + bytes(8), "WrongSize"),
    ("participant_claim", lambda w: w.participant(w.alice), byte(0, b"X"), "WrongKind"),
    ("participant_claim", lambda w: w.participant(w.alice), byte(8, b"\2"), "WrongVersion"),
    ("participant_claim", lambda w: w.participant(w.alice), lambda data: data[:-8], "WrongSize"),
    ("participant_claim", lambda w: w.coordinator, byte(0, b"X"), "WrongKind"),
    ("participant_claim", lambda w: w.coordinator, byte(8, b"\1"), "WrongVersion"),
    ("participant_claim", lambda w: w.coordinator, lambda data: data[:-8], "WrongSize"),
    ("participant_claim", lambda w: w.coordinator, byte(1344, b"X"), "BadImage"),
    ("participant_claim", lambda w: w.coordinator, byte(1352, b"\1"), "BadImage"),
    ("participant_claim", lambda w: w.coordinator, byte(1356, b"\0"), "BadImage"),
    ("participant_claim", lambda w: w.coordinator, byte(1344 + image.offset("accounts"), b"\1\2"), "BadImage"),
    ("run_withdraw_unused", lambda w: w.coordinator, byte(1344, b"X"), "BadImage"),
    ("run_withdraw_unused", lambda w: w.treasury.run, byte(8, b"\2"), "WrongVersion"),
    ("participant_close", lambda w: w.treasury.run, byte(8, b"\2"), "WrongVersion"),
    ("participant_close", lambda w: w.participant(w.carol), byte(8, b"\2"), "WrongVersion"),
    ("participant_create", lambda w: w.treasury.run, byte(8, b"\2"), "WrongVersion"),
    ("top_up", lambda w: w.treasury.run, byte(8, b"\2"), "WrongVersion"),
]


@pytest.mark.parametrize(("name", "where", "damage", "error"), DAMAGES)
def test_accounts_of_another_kind_or_version_are_refused(
    fresh: World, name: str, where: Callable[[World], Pubkey], damage: Callable[[bytes], bytes], error: str
) -> None:
    key = where(fresh)
    account = fresh.chain.account(key)
    fresh.chain.put(key, damage(bytes(account.data)), account.owner)
    instruction, signers = happy(fresh)[name]
    assert fresh.chain.refused(instruction, *signers) == CODES[error]


@pytest.mark.parametrize("where", [lambda w: w.coordinator, lambda w: w.treasury.run, lambda w: w.participant(w.alice)])
def test_accounts_of_another_program_are_refused(fresh: World, where: Callable[[World], Pubkey]) -> None:
    key = where(fresh)
    fresh.chain.put(key, bytes(fresh.chain.account(key).data), TOKEN)
    assert fresh.chain.refused(fresh.claiming(fresh.alice, 1), fresh.alice) == CODES["WrongOwner"]


RUNNING = [state for state in RunState if not state.halted]


@pytest.mark.parametrize("run_state", list(RunState))
def test_the_owner_takes_back_only_while_the_run_is_halted(fresh: World, run_state: RunState) -> None:
    fresh.earn({fresh.alice.pubkey(): (100, 0)}, run_state)
    if run_state in RUNNING:
        assert fresh.chain.refused(fresh.withdrawing(), fresh.owner) == CODES["NotHalted"]
    else:
        assert fresh.withdraw() == 900


def test_a_vault_somebody_could_spend_from_is_refused(fresh: World) -> None:
    data = bytes(fresh.chain.account(fresh.treasury.vault).data)
    fresh.chain.put(fresh.treasury.vault, byte(72, b"\1")(data), TOKEN)
    assert fresh.chain.refused(fresh.claiming(fresh.alice, 1), fresh.alice) == CODES["DelegatedTokens"]


def test_readers_refuse_other_accounts(world: World) -> None:
    for key in (world.mint, world.coordinator, world.participant(world.alice)):
        with pytest.raises(WireError):
            treasurer.parse_run(world.chain.account(key))
    with pytest.raises(WireError):
        treasurer.parse_participant(world.chain.account(world.treasury.run))


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_whatever_a_thief_makes_up_takes_nothing_from_anybody(fresh: World) -> None:
    """It may put money in, and make accounts at its own cost; dora's account, which is done with, anybody may free."""
    fresh.earn({fresh.alice.pubkey(): (100, 0), fresh.bob.pubkey(): (50, 20), fresh.dora.pubkey(): (10, 10)})
    fresh.send(treasurer.participant_create(fresh.payer.pubkey(), fresh.dora.pubkey(), treasury=fresh.treasury), fresh.payer)
    key = fresh.chain.user()
    own = fresh.chain.tokens(key.pubkey(), fresh.mint, 100)
    users = (*fresh.users, fresh.dora)
    kept = (*map(fresh.participant, fresh.users), *map(fresh.elsewhere, users[:3]), *fresh.purse.values())
    places = (*kept, *(user.pubkey() for user in (*users, fresh.owner, fresh.payer)), fresh.coordinator, fresh.mint, own)
    places += (*fresh_places(fresh.treasury), *fresh_places(fresh.other), SYSTEM, TOKEN, TREASURER, COORDINATOR)
    places += (fresh.participant(key), fresh.elsewhere(key))
    mine = key.pubkey()
    models = [
        *(instruction for instruction, _ in happy(fresh).values()),
        treasurer.participant_create(mine, mine, treasury=fresh.treasury),
        treasurer.participant_claim(mine, mine, destination=own, treasury=fresh.treasury, amount=1),
        treasurer.top_up(mine, own, treasury=fresh.treasury, amount=1),
        treasurer.participant_close(mine, mine, run=fresh.treasury.run),
        treasurer.run_withdraw_unused(mine, own, treasury=fresh.treasury, show=[]),
    ]
    thief = Thief(key, models, places, seed=7)

    def run_fields(treasury: treasurer.Treasury) -> tuple[object, ...]:
        run = treasurer.parse_run(fresh.chain.account(treasury.run))
        return run.main_authority, run.join_authority, run.instance, run.coordinator, run.mint, run.vault, run.claimed

    before = {place: bytes(fresh.chain.account(place).data) for place in kept}
    runs = {treasury.run: run_fields(treasury) for treasury in (fresh.treasury, fresh.other)}
    coins, vaults = 100, [fresh.vault(), 1000]

    def lamports() -> int:
        """Of the thief, with what lies in accounts that it made."""
        made = (fresh.participant(key), fresh.elsewhere(key))
        return sum(fresh.chain.account(place).lamports for place in (mine, *filter(fresh.chain.exists, made)))

    wealth = lamports()

    def send(instruction: Instruction) -> str | None:
        try:
            fresh.send(instruction, key)
        except Refused as refusal:
            return refusal.reason
        return None

    def check(instruction: Instruction) -> None:
        nonlocal coins, vaults
        for place, data in before.items():
            assert bytes(fresh.chain.account(place).data) == data, (place, instruction)
        assert {treasury.run: run_fields(treasury) for treasury in (fresh.treasury, fresh.other)} == runs, instruction
        filled, left = [fresh.vault(), fresh.chain.balance(fresh.other.vault)], fresh.chain.balance(own)
        assert left <= coins, instruction
        assert all(new >= old for new, old in zip(filled, vaults, strict=True)), instruction
        assert lamports() <= wealth, instruction
        coins, vaults = left, filled

    thief.try_all(5000, send, check)
    print(thief.accepted, thief.refused)
    assert {bytes(happy(fresh)[name][0].data)[0] for name in ("top_up", "participant_create")} <= set(thief.accepted)
    assert len(thief.refused) > 12, "it was refused for few reasons: what it makes up is too far from what is meant"
    fresh.claim(fresh.alice, 100)


def fresh_places(treasury: treasurer.Treasury) -> tuple[Pubkey, ...]:
    """The accounts of a run."""
    return treasury.run, treasury.vault, treasury.instance, treasury.coordinator
