"""Every check of the bond program refuses: each of its instructions, changed in one thing; and what a thief makes up."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from random_instructions import Thief
from solders.account import Account
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from plugins.backend_solana.tests.bond.bond_world import AMOUNT, CODES, SUPPLY, WAITING, World
from plugins.backend_solana.tests.svm.program_chain import (
    Refused,
    exchanged,
    fewer_accounts,
    read_only,
    with_data,
    without_signer,
)
from psyche_backend_solana.layouts import authorizer, bond
from psyche_backend_solana.programs.addresses import AUTHORIZER, BOND, COORDINATOR, SYSTEM, TOKEN
from psyche_core.errors import WireError

Prepared = tuple[World, Instruction, list[Keypair]]


@pytest.fixture(scope="module")
def worlds() -> dict[str, Prepared]:
    """For each instruction a world in which it succeeds. Only rehearsed upon."""
    return {name: prepared(name) for name in NAMES}


NAMES = ["create", "deposit", "withdraw_begin", "withdraw", "forfeit", "close"]


def prepared(name: str) -> Prepared:
    world = World()
    world.deposit(world.alice)
    world.deposit(world.bob)
    alice = world.alice
    if name == "create":
        third = world.place("third")
        return world, world.creating(third), [world.payer, world.owner]
    if name == "deposit":
        return world, world.depositing(world.carol), [world.carol]
    if name == "withdraw_begin":
        return world, world.beginning(alice), [alice]
    if name == "withdraw":
        world.begin(alice)
        world.chain.advance(WAITING)
        return world, world.withdrawing(alice), [alice]
    if name == "forfeit":
        world.eject(alice)
        return world, world.forfeiting(alice), []
    for user in (alice, world.bob):
        world.begin(user)
        world.chain.advance(WAITING)
        world.withdraw(user)
    return world, world.closing(), [world.owner]


def code(prepared: Prepared, changed: Instruction) -> int | None:
    world, _, signers = prepared
    return world.chain.refused(changed, *signers)


@pytest.mark.parametrize("name", NAMES)
def test_each_succeeds_unchanged(worlds: dict[str, Prepared], name: str) -> None:
    world, instruction, signers = worlds[name]
    world.chain.rehearse(instruction, signers=signers)


def test_every_account_is_the_one_that_is_meant(worlds: dict[str, Prepared]) -> None:
    """In each place of each instruction: a stranger's wallet, the other run's account, another mint, the member's neighbour's.

    Two places take others: who pays for `create`, and where the rent of `close` goes.
    """
    free = {("create", 0), ("close", 1)}
    for name in NAMES:
        world, instruction, signers = worlds[name]
        strangers = [
            Keypair().pubkey(),
            world.there.account,
            world.there.terms.instance,
            world.there.terms.bonds,
            world.there.terms.vault,
            world.terms.bond(world.bob.pubkey()),
            world.terms.authorization(world.bob.pubkey()),
            world.chain.mint(7),
            world.chain.tokens(world.owner.pubkey(), world.mint, 500),
            world.purse[world.bob.pubkey()],
        ]
        for place, meta in enumerate(instruction.accounts):
            if (name, place) in free or meta.is_signer:
                continue
            for stranger in strangers:
                if stranger == meta.pubkey:
                    continue
                changed = exchanged(instruction, place, stranger)
                try:
                    world.chain.rehearse(changed, signers=signers)
                except Refused:
                    continue
                message = f"{name} took {stranger} in place {place}"
                raise AssertionError(message)


def test_who_must_sign_and_what_must_be_written(worlds: dict[str, Prepared]) -> None:
    for name in NAMES:
        world, instruction, signers = worlds[name]
        for place, meta in enumerate(instruction.accounts):
            if meta.is_signer:
                assert code(worlds[name], without_signer(instruction, place)) == CODES["MissingSigner"], (name, place)
            if meta.is_writable:
                with pytest.raises(Refused):
                    world.chain.rehearse(read_only(instruction, place), signers=signers)
        assert code(worlds[name], fewer_accounts(instruction)) == CODES["NotEnoughAccounts"], name
        for data in (bytes(instruction.data) + b"\0", b"", b"\x06", b"\xff"):
            assert code(worlds[name], with_data(instruction, data)) == CODES["BadInstruction"], (name, data)


def with_amount(instruction: Instruction, amount: int, waiting: int, grounds: int) -> Instruction:
    number = bytes(instruction.data)[:1]
    return with_data(instruction, number + amount.to_bytes(8, "little") + waiting.to_bytes(8, "little") + bytes([grounds]))


def foreign_purse(world: World, user: Keypair, mint: Pubkey | None = None) -> Pubkey:
    return world.chain.tokens(user.pubkey(), mint or world.mint, 10**6)


def poked(world: World, account: Pubkey, offset: int, value: bytes) -> Pubkey:
    """A copy of an account with some bytes changed."""
    found = world.chain.account(account)
    data = bytes(found.data)
    made = Pubkey.new_unique()
    world.chain.put(made, data[:offset] + value + data[offset + len(value) :], found.owner)
    return made


Change = Callable[[World, Instruction], Instruction]
REFUSALS: list[tuple[str, str, Change, str]] = [
    ("create", "an amount", lambda _, i: with_amount(i, 0, 5, 1), "BadTerms"),
    ("create", "90 days at most", lambda _, i: with_amount(i, 1, bond.MAX_WAITING + 1, 1), "BadTerms"),
    ("create", "a ground", lambda _, i: with_amount(i, 1, 5, 0), "BadTerms"),
    ("create", "a known ground", lambda _, i: with_amount(i, 1, 5, 4), "BadTerms"),
    ("create", "all data", lambda _, i: with_data(i, bytes(i.data)[:-1]), "BadInstruction"),
    ("create", "its own address", lambda w, i: exchanged(i, 2, w.payer.pubkey()), "WrongAddress"),
    ("create", "once", lambda w, _: w.creating(w.here), "AlreadyExists"),
    ("create", "a mint", lambda w, i: exchanged(i, 4, w.payer.pubkey()), "WrongOwner"),
    ("create", "not a token account", lambda w, i: exchanged(i, 4, w.purse[w.alice.pubkey()]), "WrongKind"),
    ("create", "the token program", lambda w, i: exchanged(i, 6, w.mint), "WrongAddress"),
    ("create", "the associated token program", lambda w, i: exchanged(i, 7, w.mint), "WrongAddress"),
    ("create", "the system program", lambda w, i: exchanged(i, 8, w.mint), "WrongAddress"),
    ("deposit", "all data", lambda _, i: with_data(i, bytes(i.data)[:-1]), "BadInstruction"),
    ("deposit", "the amount agreed to", lambda _, i: with_amount(i, AMOUNT - 1, WAITING, 3), "OtherTerms"),
    ("deposit", "the waiting time agreed to", lambda _, i: with_amount(i, AMOUNT, WAITING - 1, 3), "OtherTerms"),
    ("deposit", "the grounds agreed to", lambda _, i: with_amount(i, AMOUNT, WAITING, 1), "OtherTerms"),
    ("deposit", "own tokens", lambda w, i: exchanged(i, 1, foreign_purse(w, w.alice)), "WrongTokenOwner"),
    ("deposit", "of the mint", lambda w, i: exchanged(i, 1, foreign_purse(w, w.carol, w.chain.mint(9))), "WrongMint"),
    ("deposit", "free tokens", lambda w, i: exchanged(i, 1, poked(w, w.purse[w.carol.pubkey()], 72, b"\1")), "DelegatedTokens"),
    ("deposit", "its own bond", lambda w, i: exchanged(i, 3, w.terms.bond(w.alice.pubkey())), "WrongAddress"),
    ("deposit", "the vault", lambda w, i: exchanged(i, 4, w.there.terms.vault), "WrongAddress"),
    ("deposit", "its own right", lambda w, i: exchanged(i, 5, w.terms.authorization(w.bob.pubkey())), "WrongAddress"),
    ("deposit", "the run", lambda w, i: exchanged(i, 6, w.there.terms.instance), "OtherRun"),
    ("deposit", "its state", lambda w, i: exchanged(i, 7, w.there.account), "OtherRun"),
    ("deposit", "the authorizer", lambda _, i: exchanged(i, 8, COORDINATOR), "WrongAddress"),
    ("deposit", "the token program", lambda w, i: exchanged(i, 9, w.mint), "WrongAddress"),
    ("deposit", "the system program", lambda w, i: exchanged(i, 10, w.mint), "WrongAddress"),
    ("withdraw_begin", "the user", lambda w, i: exchanged(i, 2, w.terms.bond(w.bob.pubkey())), "NotAuthority"),
    ("withdraw_begin", "its terms", lambda w, i: exchanged(i, 1, w.there.terms.bonds), "OtherBonds"),
    ("withdraw_begin", "a bond", lambda w, i: exchanged(i, 2, w.terms.bonds), "WrongSize"),
    ("withdraw_begin", "terms", lambda w, i: exchanged(i, 1, w.terms.bond(w.bob.pubkey())), "WrongSize"),
    ("withdraw_begin", "its own right", lambda w, i: exchanged(i, 3, w.terms.authorization(w.bob.pubkey())), "WrongAddress"),
    ("withdraw_begin", "a right", lambda w, i: exchanged(i, 3, w.mint), "WrongOwner"),
    ("withdraw_begin", "the authorizer", lambda _, i: exchanged(i, 4, COORDINATOR), "WrongAddress"),
    ("withdraw", "own tokens", lambda w, i: exchanged(i, 1, w.purse[w.bob.pubkey()]), "WrongTokenOwner"),
    ("withdraw", "of the mint", lambda w, i: exchanged(i, 1, foreign_purse(w, w.alice, w.chain.mint(9))), "WrongMint"),
    ("withdraw", "its terms", lambda w, i: exchanged(i, 2, w.there.terms.bonds), "OtherBonds"),
    ("withdraw", "its bond", lambda w, i: exchanged(i, 3, w.terms.bond(w.bob.pubkey())), "NotAuthority"),
    ("withdraw", "the vault", lambda w, i: exchanged(i, 4, w.there.terms.vault), "WrongAddress"),
    ("withdraw", "the run", lambda w, i: exchanged(i, 5, w.there.terms.instance), "OtherRun"),
    ("withdraw", "its state", lambda w, i: exchanged(i, 6, w.there.account), "OtherRun"),
    ("withdraw", "the token program", lambda w, i: exchanged(i, 7, w.mint), "WrongAddress"),
    ("forfeit", "its terms", lambda w, i: exchanged(i, 0, w.there.terms.bonds), "OtherBonds"),
    ("forfeit", "the ejected one's bond", lambda w, i: exchanged(i, 1, w.terms.bond(w.bob.pubkey())), "NotEjected"),
    ("forfeit", "the vault", lambda w, i: exchanged(i, 2, w.there.terms.vault), "WrongAddress"),
    ("forfeit", "the mint", lambda w, i: exchanged(i, 3, w.chain.mint(5)), "WrongAddress"),
    ("forfeit", "its right", lambda w, i: exchanged(i, 4, w.terms.authorization(w.bob.pubkey())), "WrongAddress"),
    ("forfeit", "the run", lambda w, i: exchanged(i, 5, w.there.terms.instance), "OtherRun"),
    ("forfeit", "its state", lambda w, i: exchanged(i, 6, w.there.account), "OtherRun"),
    ("forfeit", "the authorizer", lambda _, i: exchanged(i, 7, COORDINATOR), "WrongAddress"),
    ("forfeit", "the token program", lambda w, i: exchanged(i, 8, w.mint), "WrongAddress"),
    ("close", "the authority", lambda w, i: exchanged(i, 0, w.chain.payer.pubkey()), "NotAuthority"),
    (
        "close",
        "terms without bonds",
        lambda w, i: exchanged(exchanged(i, 2, w.terms.bonds), 3, w.there.terms.vault),
        "WrongAddress",
    ),
    ("close", "the mint", lambda w, i: exchanged(i, 4, w.chain.mint(5)), "WrongAddress"),
    ("close", "the token program", lambda w, i: exchanged(i, 5, w.mint), "WrongAddress"),
]


@pytest.mark.parametrize(("name", "what", "change", "error"), REFUSALS, ids=[f"{name}: {what}" for name, what, *_ in REFUSALS])
def test_each_check_refuses(worlds: dict[str, Prepared], name: str, what: str, change: Change, error: str) -> None:
    world, instruction, signers = worlds[name]
    assert world.chain.refused(change(world, instruction), *signers) == CODES[error], what


def test_a_bond_is_put_down_whole(worlds: dict[str, Prepared]) -> None:
    world, instruction, signers = worlds["deposit"]
    short = exchanged(instruction, 1, world.chain.tokens(world.carol.pubkey(), world.mint, AMOUNT - 1))
    with pytest.raises(Refused, match="insufficient funds"):
        world.chain.rehearse(short, signers=signers)


def byte(offset: int, value: bytes) -> Callable[[bytes], bytes]:
    return lambda data: data[:offset] + value + data[offset + len(value) :]


def damaged(world: World, key: Pubkey, damage: Callable[[bytes], bytes]) -> None:
    found = world.chain.account(key)
    world.chain.put(key, damage(bytes(found.data)), found.owner)


@pytest.mark.parametrize("name", NAMES[1:])
@pytest.mark.parametrize(
    ("damage", "error"), [(byte(0, b"X"), "WrongKind"), (byte(8, b"\2"), "WrongVersion"), (lambda d: d[:-8], "WrongSize")]
)
def test_terms_and_bonds_of_another_kind_or_version_are_refused(name: str, damage: Callable[[bytes], bytes], error: str) -> None:
    world, instruction, signers = prepared(name)
    user = world.alice.pubkey()
    kept = bytes(world.chain.account(world.terms.bonds).data)
    damaged(world, world.terms.bonds, damage)
    assert world.chain.refused(instruction, *signers) == CODES[error]
    world.chain.put(world.terms.bonds, kept, BOND)
    if name in ("withdraw_begin", "withdraw", "forfeit"):
        damaged(world, world.terms.bond(user), damage)
        assert world.chain.refused(instruction, *signers) == CODES[error]


IMAGE = 1344


@pytest.mark.parametrize("name", ["deposit", "withdraw", "forfeit"])
@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (byte(0, b"X"), "WrongKind"),
        (byte(8, b"\6"), "WrongVersion"),
        (lambda d: d[:-8], "WrongSize"),
        (lambda d: d[:9], "WrongKind"),
        (byte(IMAGE, b"X"), "BadImage"),
        (byte(IMAGE + 8, b"\6"), "BadImage"),
        (byte(IMAGE + 12, b"\0"), "BadImage"),
        (byte(IMAGE + 3152, b"\1\1"), "BadImage"),
        (byte(IMAGE + 189_768, b"\1\1"), "BadImage"),
    ],
)
def test_states_that_are_not_understood_convict_nobody(name: str, damage: Callable[[bytes], bytes], error: str) -> None:
    world, instruction, signers = prepared(name)
    damaged(world, world.here.account, damage)
    assert world.chain.refused(instruction, *signers) == CODES[error]


@pytest.mark.parametrize("name", ["create", "deposit", "withdraw", "forfeit"])
@pytest.mark.parametrize(
    ("damage", "error"), [(byte(0, b"X"), "WrongKind"), (byte(8, b"\2"), "WrongVersion"), (lambda d: d[:-8], "WrongSize")]
)
def test_instances_of_another_kind_are_refused(name: str, damage: Callable[[bytes], bytes], error: str) -> None:
    world, instruction, signers = prepared(name)
    place = {"create": 5, "deposit": 6, "withdraw": 5, "forfeit": 5}[name]
    damaged(world, instruction.accounts[place].pubkey, damage)
    assert world.chain.refused(instruction, *signers) == CODES[error]


@pytest.mark.parametrize("name", ["create", "deposit", "withdraw", "forfeit"])
def test_what_no_coordinator_wrote_is_no_run(name: str) -> None:
    world, instruction, signers = prepared(name)
    place = {"create": 5, "deposit": 6, "withdraw": 5, "forfeit": 5}[name]
    key = instruction.accounts[place].pubkey
    world.chain.put(key, bytes(world.chain.account(key).data), AUTHORIZER)
    assert world.chain.refused(instruction, *signers) == CODES["WrongOwner"]
    if name == "create":
        return
    world, instruction, signers = prepared(name)
    world.chain.put(world.here.account, bytes(world.chain.account(world.here.account).data), AUTHORIZER)
    assert world.chain.refused(instruction, *signers) == CODES["WrongOwner"]


@pytest.mark.parametrize("name", ["deposit", "withdraw", "forfeit", "close"])
@pytest.mark.parametrize(("offset", "error"), [(72, "DelegatedTokens"), (129, "DelegatedTokens"), (32, "WrongTokenOwner")])
def test_a_vault_somebody_could_spend_from_is_refused(name: str, offset: int, error: str) -> None:
    world, instruction, signers = prepared(name)
    damaged(world, world.terms.vault, byte(offset, b"\1"))
    assert world.chain.refused(instruction, *signers) == CODES[error]


def test_readers_refuse_other_accounts() -> None:
    world = World()
    world.deposit(world.alice)
    terms, held = world.chain.account(world.terms.bonds), world.chain.account(world.terms.bond(world.alice.pubkey()))
    with pytest.raises(WireError):
        bond.parse_bonds(held)
    with pytest.raises(WireError):
        bond.parse_bond(terms)
    for value in (0, 4):
        with pytest.raises(WireError, match="grounds"):
            bond.parse_bonds(Account(terms.lamports, byte(13, bytes([value]))(bytes(terms.data)), terms.owner))
    with pytest.raises(WireError, match="state 3"):
        bond.parse_bond(Account(held.lamports, byte(13, b"\3")(bytes(held.data)), held.owner))


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_whatever_a_thief_makes_up_takes_nothing_from_anybody() -> None:
    """It has a bond of its own, may put one down and have it back; the owner may be the thief as well."""
    world = World()
    thief_key = world.owner
    world.purse[thief_key.pubkey()] = world.chain.tokens(thief_key.pubkey(), world.mint, 1000)
    for user in (world.alice, world.bob):
        world.deposit(user)
    world.begin(world.bob)
    world.chain.advance(WAITING)
    mine = thief_key.pubkey()
    rights = [world.terms.authorization(user.pubkey()) for user in (world.alice, world.bob)]
    kept = [world.terms.bond(user.pubkey()) for user in (world.alice, world.bob)]
    kept += [*(world.purse[user.pubkey()] for user in (world.alice, world.bob, world.carol)), rights[0]]
    models = [
        world.depositing(thief_key),
        world.beginning(thief_key),
        world.withdrawing(thief_key),
        world.forfeiting(thief_key),
        world.closing(),
        *(make(user) for user in (world.alice, world.bob) for make in (world.beginning, world.withdrawing, world.forfeiting)),
        authorizer.grantee_update(mine, mine, authorization=rights[0], add=[mine]),
        authorizer.close(mine, mine, authorization=rights[0]),
    ]
    places = (*kept, *rights, world.purse[mine], world.terms.bonds, world.terms.vault, world.mint, world.terms.instance)
    places += (
        world.here.account,
        world.there.account,
        world.there.terms.bonds,
        world.there.terms.vault,
        world.there.terms.instance,
    )
    places += (TOKEN, SYSTEM, BOND, AUTHORIZER, COORDINATOR, *(user.pubkey() for user in (world.alice, world.bob, world.carol)))
    thief = Thief(thief_key, models, places, seed=11)
    before = {place: bytes(world.chain.account(place).data) for place in kept}

    def send(instruction: Instruction) -> str | None:
        try:
            world.chain.send(instruction, signers=[thief_key])
        except Refused as refusal:
            return refusal.reason
        return None

    def check(instruction: Instruction) -> None:
        for place, data in before.items():
            assert bytes(world.chain.account(place).data) == data, (place, instruction)
        own = world.chain.balance(world.purse[mine])
        assert own <= 1000, instruction
        assert own + world.vault() == 1000 + 2 * AMOUNT, instruction
        assert world.supply() == SUPPLY, instruction
        world.chain.advance(WAITING)

    thief.try_all(3000, send, check)
    print(thief.accepted, thief.refused)
    assert set(thief.accepted) >= {1, 2, 3}, "its own bond did not even come and go"
    assert len(thief.refused) > 12, "it was refused for few reasons: what it makes up is too far from what is meant"
