"""The authorizer in a real SVM: its life from creation to closing, then every check refused once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_instructions import Thief
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from plugins.backend_solana.tests.svm.program_chain import (
    ProgramChain,
    Refused,
    exchanged,
    fewer_accounts,
    read_only,
    with_data,
    without_signer,
)
from psyche_backend_solana.layouts import authorizer
from psyche_backend_solana.layouts.errors import COMMON
from psyche_backend_solana.programs.addresses import AUTHORIZER, SYSTEM
from psyche_core.errors import WireError

CODES = {name: code for code, name in COMMON.items()} | {name: code for code, (name, _) in authorizer.ERRORS.items()}


@dataclass
class World:
    """A grantor's authorization for a grantee, and another one, active, of other people."""

    chain: ProgramChain = field(default_factory=lambda: ProgramChain(["authorizer"]))

    def __post_init__(self) -> None:
        self.grantor, self.grantee, self.payer, self.stranger = (self.chain.user() for _ in range(4))
        self.at = self.make(self.grantor, self.grantee.pubkey())
        self.foreign = self.make(self.stranger, self.stranger.pubkey())
        self.spill = self.chain.user().pubkey()

    def make(self, grantor: Keypair, grantee: Pubkey) -> Pubkey:
        self.chain.send(authorizer.create(self.payer.pubkey(), grantor.pubkey(), grantee=grantee), signers=[self.payer, grantor])
        return authorizer.address(grantor.pubkey(), grantee)

    def read(self) -> authorizer.Authorization:
        return authorizer.parse(self.chain.account(self.at))

    def switch(self, active: bool) -> None:
        self.chain.send(authorizer.grantor_update(self.grantor.pubkey(), self.at, active=active), signers=[self.grantor])

    def name(self, *delegates: Pubkey, clear: bool = False) -> None:
        self.chain.send(self.naming(*delegates, clear=clear), signers=[self.payer, self.grantee])

    def naming(self, *delegates: Pubkey, clear: bool = False) -> Instruction:
        return authorizer.grantee_update(
            self.payer.pubkey(), self.grantee.pubkey(), authorization=self.at, add=delegates, clear=clear
        )

    def rent(self, delegates: int) -> int:
        return self.chain.svm.minimum_balance_for_rent_exemption(authorizer.BYTES + 32 * delegates)


@pytest.fixture(scope="module")
def world() -> World:
    """Only rehearsed upon: nobody changes it."""
    return World()


@pytest.fixture
def fresh() -> World:
    return World()


def test_a_full_life(fresh: World) -> None:
    world, people = fresh, [Pubkey.new_unique() for _ in range(25)]
    made = world.read()
    assert (made.grantor, made.grantee, made.scope) == (world.grantor.pubkey(), world.grantee.pubkey(), "CoordinatorJoinRun")
    assert not made.active
    assert not made.allows(world.grantee.pubkey())
    world.name(*people[:5])
    assert world.read().delegates == tuple(people[:5])
    assert world.chain.account(world.at).lamports == world.rent(5)
    world.name(*people[:20], clear=True)
    assert world.read().delegates == tuple(people[:20])
    world.name(*people[10:])
    assert world.read().delegates == tuple(people), "those already there are not added again"
    world.switch(True)
    assert all(world.read().allows(user) for user in (*people, world.grantee.pubkey()))
    assert not world.read().allows(world.grantor.pubkey())
    before = world.chain.account(world.payer.pubkey()).lamports
    world.name(clear=True)
    assert world.read().delegates == ()
    assert world.chain.account(world.payer.pubkey()).lamports == before + world.rent(25) - world.rent(0)
    with pytest.raises(Refused, match="0x64"):
        world.chain.send(authorizer.close(world.grantor.pubkey(), world.spill, authorization=world.at), signers=[world.grantor])
    world.switch(False)
    before = world.chain.account(world.spill).lamports
    world.chain.send(authorizer.close(world.grantor.pubkey(), world.spill, authorization=world.at), signers=[world.grantor])
    assert not world.chain.exists(world.at)
    assert world.chain.account(world.spill).lamports == before + world.rent(0)
    assert world.make(world.grantor, world.grantee.pubkey()) == world.at
    assert not world.read().active, "one made again is not active"


def test_everybody_and_scopes_of_any_length(fresh: World) -> None:
    for scope in ("x", "y" * 32, "ünï"):
        made = authorizer.create(fresh.payer.pubkey(), fresh.grantor.pubkey(), grantee=authorizer.EVERYBODY, scope=scope)
        fresh.chain.send(made, signers=[fresh.payer, fresh.grantor])
        at = authorizer.address(fresh.grantor.pubkey(), authorizer.EVERYBODY, scope)
        fresh.chain.send(authorizer.grantor_update(fresh.grantor.pubkey(), at, active=True), signers=[fresh.grantor])
        found = authorizer.parse(fresh.chain.account(at))
        assert found.scope == scope
        assert found.allows(Pubkey.new_unique())


def test_lamports_that_came_before_do_not_stand_in_the_way(fresh: World) -> None:
    other = Keypair()
    at = authorizer.address(fresh.grantor.pubkey(), other.pubkey())
    fresh.chain.svm.airdrop(at, 1_000_000)
    assert fresh.make(fresh.grantor, other.pubkey()) == at
    assert fresh.chain.account(at).lamports == fresh.rent(0)


def test_a_gift_is_not_paid_out_with_the_rent(fresh: World) -> None:
    fresh.name(*(Pubkey.new_unique() for _ in range(3)))
    fresh.chain.svm.airdrop(fresh.at, 5_000_000)
    fresh.name(clear=True)
    assert fresh.chain.account(fresh.at).lamports == fresh.rent(0) + 5_000_000


def test_at_most_256_delegates(fresh: World) -> None:
    for _ in range(8):
        fresh.name(*(Pubkey.new_unique() for _ in range(28)))
    fresh.name(*(Pubkey.new_unique() for _ in range(28)))
    last = [Pubkey.new_unique() for _ in range(5)]
    fresh.name(*last[:4])
    assert len(fresh.read().delegates) == 256
    with pytest.raises(Refused) as refused:
        fresh.name(last[4])
    assert refused.value.code == CODES["TooManyDelegates"]
    fresh.name(*last[:4])  # all known: none more
    assert len(fresh.read().delegates) == 256


@pytest.mark.parametrize("place", [0, 7, 8, 15, 16, 24, 31])
def test_delegates_that_differ_in_one_byte_are_others(fresh: World, place: int) -> None:
    keys = [Pubkey(bytes([9] * place + [last] + [9] * (31 - place))) for last in range(1, 9)]
    fresh.name(*keys[:4])
    fresh.name(*keys[2:], *keys[:3], keys[5])
    assert fresh.read().delegates == tuple(keys)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 11), max_size=8)), max_size=8))
def test_delegates_are_an_ordered_set(fresh: World, steps: list[tuple[bool, list[int]]]) -> None:
    keys = [Pubkey(bytes([place + 1]) * 32) for place in range(12)]
    expected = dict.fromkeys(fresh.read().delegates)
    for clear, places in steps:
        fresh.name(*(keys[place] for place in places), clear=clear)
        expected = dict.fromkeys([*([] if clear else expected), *(keys[place] for place in places)])
        assert fresh.read().delegates == tuple(expected)
        assert fresh.chain.account(fresh.at).lamports == fresh.rent(len(expected))


def happy(world: World) -> dict[str, tuple[Instruction, list[Keypair]]]:
    """Every instruction, as it succeeds in this world."""
    grantor, grantee, payer = world.grantor, world.grantee, world.payer
    another = Pubkey(b"another grantee ................")
    return {
        "create": (authorizer.create(payer.pubkey(), grantor.pubkey(), grantee=another), [payer, grantor]),
        "grantor_update": (authorizer.grantor_update(grantor.pubkey(), world.at, active=True), [grantor]),
        "grantee_update": (world.naming(Pubkey(b"a delegate .....................")), [payer, grantee]),
        "close": (authorizer.close(grantor.pubkey(), world.spill, authorization=world.at), [grantor]),
    }


Change = Callable[[World, Instruction], Instruction]
REFUSALS: list[tuple[str, str, Change, str]] = [
    ("create", "payer signs", lambda _, i: without_signer(i, 0), "MissingSigner"),
    ("create", "payer pays", lambda _, i: read_only(i, 0), "NotWritable"),
    ("create", "grantor signs", lambda _, i: without_signer(i, 1), "MissingSigner"),
    ("create", "account is written", lambda _, i: read_only(i, 2), "NotWritable"),
    ("create", "its own address", lambda w, i: exchanged(i, 2, w.spill), "WrongAddress"),
    ("create", "of this grantor", lambda w, i: exchanged(i, 1, w.payer.pubkey()), "WrongAddress"),
    ("create", "the system program", lambda w, i: exchanged(i, 3, w.spill), "WrongAddress"),
    (
        "create",
        "once",
        lambda w, _: authorizer.create(w.payer.pubkey(), w.grantor.pubkey(), grantee=w.grantee.pubkey()),
        "AlreadyExists",
    ),
    ("create", "scope not empty", lambda _, i: with_data(i, bytes(i.data)[:33] + bytes(33)), "BadScope"),
    ("create", "scope of 32 at most", lambda _, i: with_data(i, bytes(i.data)[:33] + b"\x21" + b"x" * 32), "BadScope"),
    ("create", "scope without NUL", lambda _, i: with_data(i, bytes(i.data)[:33] + b"\x03a\0b" + bytes(29)), "BadScope"),
    ("create", "zero after the scope", lambda _, i: with_data(i, bytes(i.data)[:-1] + b"x"), "BadScope"),
    ("create", "all data", lambda _, i: with_data(i, bytes(i.data)[:-1]), "BadInstruction"),
    ("create", "no more data", lambda _, i: with_data(i, bytes(i.data) + b"\0"), "BadInstruction"),
    ("create", "all accounts", lambda _, i: fewer_accounts(i), "NotEnoughAccounts"),
    ("grantor_update", "grantor signs", lambda _, i: without_signer(i, 0), "MissingSigner"),
    ("grantor_update", "account is written", lambda _, i: read_only(i, 1), "NotWritable"),
    ("grantor_update", "its own grantor", lambda w, i: exchanged(i, 1, w.foreign), "NotAuthority"),
    ("grantor_update", "an account of the authorizer", lambda w, i: exchanged(i, 1, w.spill), "WrongOwner"),
    ("grantor_update", "a flag is 0 or 1", lambda _, i: with_data(i, b"\1\2"), "BadInstruction"),
    ("grantor_update", "all data", lambda _, i: with_data(i, b"\1"), "BadInstruction"),
    ("grantor_update", "no more data", lambda _, i: with_data(i, b"\1\1\1"), "BadInstruction"),
    ("grantor_update", "all accounts", lambda _, i: fewer_accounts(i), "NotEnoughAccounts"),
    ("grantee_update", "payer signs", lambda _, i: without_signer(i, 0), "MissingSigner"),
    ("grantee_update", "payer pays", lambda _, i: read_only(i, 0), "NotWritable"),
    ("grantee_update", "grantee signs", lambda _, i: without_signer(i, 1), "MissingSigner"),
    ("grantee_update", "account is written", lambda _, i: read_only(i, 2), "NotWritable"),
    ("grantee_update", "its own grantee", lambda w, i: exchanged(i, 2, w.foreign), "NotAuthority"),
    ("grantee_update", "an account of the authorizer", lambda w, i: exchanged(i, 2, w.spill), "WrongOwner"),
    ("grantee_update", "the system program", lambda w, i: exchanged(i, 3, w.spill), "WrongAddress"),
    ("grantee_update", "as many keys as said", lambda _, i: with_data(i, b"\2\0\2" + bytes(32)), "BadInstruction"),
    ("grantee_update", "no more keys", lambda _, i: with_data(i, b"\2\0\1" + bytes(64)), "BadInstruction"),
    ("grantee_update", "a flag is 0 or 1", lambda _, i: with_data(i, b"\2\2\0"), "BadInstruction"),
    ("grantee_update", "all accounts", lambda _, i: fewer_accounts(i), "NotEnoughAccounts"),
    ("close", "grantor signs", lambda _, i: without_signer(i, 0), "MissingSigner"),
    ("close", "spill is written", lambda _, i: read_only(i, 1), "NotWritable"),
    ("close", "account is written", lambda _, i: read_only(i, 2), "NotWritable"),
    ("close", "its own grantor", lambda w, i: exchanged(i, 2, w.foreign), "NotAuthority"),
    ("close", "an account of the authorizer", lambda w, i: exchanged(i, 2, w.spill), "WrongOwner"),
    ("close", "not into itself", lambda w, i: exchanged(i, 1, w.at), "SameAccount"),
    ("close", "no data", lambda _, i: with_data(i, b"\3\0"), "BadInstruction"),
    ("close", "all accounts", lambda _, i: fewer_accounts(i), "NotEnoughAccounts"),
    ("close", "a known instruction", lambda _, i: with_data(i, b"\4"), "BadInstruction"),
    ("close", "an instruction", lambda _, i: with_data(i, b""), "BadInstruction"),
]


@pytest.mark.parametrize("name", ["create", "grantor_update", "grantee_update", "close"])
def test_without_a_change_each_succeeds(world: World, name: str) -> None:
    instruction, signers = happy(world)[name]
    world.chain.rehearse(instruction, signers=signers)


@pytest.mark.parametrize(("name", "what", "change", "error"), REFUSALS, ids=lambda value: value if isinstance(value, str) else "")
def test_each_check_refuses(world: World, name: str, what: str, change: Change, error: str) -> None:
    instruction, signers = happy(world)[name]
    assert world.chain.refused(change(world, instruction), *signers) == CODES[error]


def test_more_accounts_than_any_instruction_has_are_refused(world: World) -> None:
    instruction, signers = happy(world)["grantor_update"]
    for count, code in ((24, None), (25, CODES["TooManyAccounts"])):
        more = [AccountMeta(Pubkey(bytes([number]) * 32), False, False) for number in range(100, 100 + count - 2)]
        longer = Instruction(instruction.program_id, bytes(instruction.data), [*instruction.accounts, *more])
        if code is None:
            world.chain.rehearse(longer, signers=signers)
        else:
            assert world.chain.refused(longer, *signers) == code


DAMAGES = {
    "WrongSize": [lambda data: data[:191], lambda data: data + bytes(32), lambda data: data[:112] + b"\1" + data[113:]],
    "WrongKind": [lambda data: b"PsycheRI" + data[8:], lambda data: bytes(8) + data[8:]],
    "WrongVersion": [lambda data: data[:8] + b"\2\0\0\0" + data[12:], lambda data: data[:8] + bytes(4) + data[12:]],
}


@pytest.mark.parametrize(("error", "damage"), [(error, damage) for error, damages in DAMAGES.items() for damage in damages])
@pytest.mark.parametrize("name", ["grantor_update", "grantee_update", "close"])
def test_other_accounts_of_the_program_are_refused(fresh: World, name: str, error: str, damage: Callable[[bytes], bytes]) -> None:
    data = bytes(fresh.chain.account(fresh.at).data)
    fresh.chain.put(fresh.at, damage(data), AUTHORIZER)
    instruction, signers = happy(fresh)[name]
    assert fresh.chain.refused(instruction, *signers) == CODES[error]
    with pytest.raises(WireError):
        fresh.read()


def test_an_account_of_another_program_is_no_authorization(fresh: World) -> None:
    fresh.chain.put(fresh.at, bytes(fresh.chain.account(fresh.at).data), SYSTEM)
    with pytest.raises(WireError, match="belongs to"):
        fresh.read()


@pytest.mark.parametrize("scope", ["", "x" * 33, "a\0b"])
def test_the_encoder_refuses_what_the_program_would(scope: str) -> None:
    with pytest.raises(ValueError):
        authorizer.create(Pubkey.new_unique(), Pubkey.new_unique(), grantee=authorizer.EVERYBODY, scope=scope)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_whatever_a_thief_makes_up_changes_nobodys_authorization(fresh: World) -> None:
    fresh.switch(True)
    fresh.name(Pubkey(b"a delegate of old .............."))
    key = fresh.chain.user()
    own = fresh.make(key, key.pubkey())
    to_make = authorizer.address(key.pubkey(), Pubkey(b"another grantee ................"))
    people = (user.pubkey() for user in (fresh.grantor, fresh.grantee, fresh.payer, fresh.stranger))
    places = (*people, fresh.at, fresh.foreign, own, to_make, fresh.spill, SYSTEM, AUTHORIZER)
    mine = key.pubkey()
    models = [
        *(instruction for instruction, _ in happy(fresh).values()),
        authorizer.create(mine, mine, grantee=mine),
        authorizer.create(mine, mine, grantee=Pubkey(b"another grantee ................")),
        authorizer.grantor_update(mine, own, active=True),
        authorizer.grantee_update(mine, mine, authorization=own, add=[Pubkey(b"x" * 32)], clear=False),
        authorizer.close(mine, mine, authorization=own),
    ]
    thief = Thief(key, models, places, seed=7)
    before = {place: fresh.chain.account(place) for place in (fresh.at, fresh.foreign)}

    def send(instruction: Instruction) -> str | None:
        try:
            fresh.chain.send(instruction, signers=[key])
        except Refused as refusal:
            return refusal.reason
        return None

    def check(instruction: Instruction) -> None:
        assert {place: fresh.chain.account(place) for place in before} == before, instruction

    thief.try_all(3000, send, check)
    print(thief.accepted, thief.refused)
    assert len(thief.accepted) == 4, "of its own authorization it may do all of this"
    assert len(thief.refused) > 8, "it was refused for few reasons: what it makes up is too far from what is meant"
