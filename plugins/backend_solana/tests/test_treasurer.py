"""The treasurer in a real SVM: who is paid what, what the owner may take back, and every check refused once.

The coordinator's account is put there as its program writes it: header, and the canonical image of a state with accounts.
Creating, updating and closing a run call the coordinator itself: test_treasurer_runs.py.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_instructions import Thief
from solders.instruction import Instruction
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
from plugins.backend_solana.tests.svm.refusals import COORDINATOR_CODES
from psyche_backend_solana.layouts import coordinator as coordinator_layout
from psyche_backend_solana.layouts import treasurer
from psyche_backend_solana.layouts.coordinator_accounts import ACCOUNT_BYTES, HEADER_BYTES, STAGING_BYTES
from psyche_backend_solana.layouts.coordinator_accounts import ACCOUNT_VERSION as VERSION
from psyche_backend_solana.layouts.errors import COMMON
from psyche_backend_solana.programs.addresses import COORDINATOR, SYSTEM, TOKEN, TREASURER
from psyche_core.coordinator import canonical_image as image
from psyche_core.coordinator.state import Account, Client, CoordinatorState, Epoch
from psyche_core.errors import WireError
from psyche_core.testing.backend import small_state
from psyche_core.types import NodeIdentity, RunState

CODES = {name: code for code, name in COMMON.items()} | {name: code for code, (name, _) in treasurer.ERRORS.items()}


def coordinator_account(
    points: Mapping[Pubkey, tuple[int, int]], instance: Pubkey, *, run_state: RunState = RunState.Paused
) -> bytes:
    """As the coordinator's program writes it; points: earned and slashed by user."""
    accounts = tuple(
        Account(bytes(user), earned, slashed) for user, (earned, slashed) in sorted(points.items(), key=lambda x: bytes(x[0]))
    )
    state = replace(small_state(), run_state=run_state, accounts=accounts)
    return coordinator_header(instance) + image.encode(state) + bytes(STAGING_BYTES)


def coordinator_header(instance: Pubkey) -> bytes:
    return struct.pack("<8sI12x32s", b"PsycheCo", VERSION, bytes(instance)).ljust(HEADER_BYTES, b"\0")


def instance_account(run_id: str, main_authority: Pubkey, coordinator: Pubkey) -> bytes:
    """As `init` leaves it."""
    bump = coordinator_layout.instance_address(run_id)[1]
    keys = bytes(main_authority) + bytes(main_authority) + bytes(coordinator)
    return (struct.pack("<8sIB3x", b"PsycheRI", 1, bump) + keys + run_id.encode()).ljust(256, b"\0")


def run_account(bump: int, index: int, keys: tuple[Pubkey, ...], *, claimed: int = 0, created: int = 7) -> bytes:
    """As run_create leaves it. keys: main_authority, join_authority, instance, coordinator, mint, vault."""
    *first, vault = map(bytes, keys)
    fields = (b"PsycheTr", 1, bump, index, *first, claimed, 0, created, vault)
    return struct.pack("<8sIB3xQ32s32s32s32s32sQQQ32s16x", *fields)


@dataclass
class World:
    """A paused run that owes alice 100 and slashed 20 of bob's 50, with 1,000 units in its vault; carol earned nothing."""

    chain: ProgramChain = field(default_factory=lambda: ProgramChain(["coordinator", "treasurer"]))

    def __post_init__(self) -> None:
        self.owner, self.alice, self.bob, self.carol, self.payer, self.dora = (self.chain.user() for _ in range(6))
        self.users = (self.alice, self.bob, self.carol)
        self.mint = self.chain.mint(10**12)
        self.coordinator = Pubkey.new_unique()
        self.treasury = self.run(42, self.coordinator, 1000)
        self.other = self.run(43, Pubkey.new_unique(), 1000)
        self.earn({self.alice.pubkey(): (100, 0), self.bob.pubkey(): (50, 20)})
        for user in self.users:
            for treasury in (self.treasury, self.other):
                self.send(treasurer.participant_create(self.payer.pubkey(), user.pubkey(), treasury=treasury), self.payer)
        self.purse = {user.pubkey(): self.chain.tokens(user.pubkey(), self.mint) for user in (*self.users, self.owner)}
        self.purse[self.payer.pubkey()] = self.chain.tokens(self.payer.pubkey(), self.mint, 500)

    def run(self, index: int, coordinator: Pubkey, funds: int) -> treasurer.Treasury:
        run_id = f"run {index}"
        instance = coordinator_layout.instance_address(run_id)[0]
        made = treasurer.Treasury.of(index, mint=self.mint, instance=instance, coordinator=coordinator)
        self.chain.put(instance, instance_account(run_id, made.run, coordinator), COORDINATOR)
        bump = Pubkey.find_program_address([b"run", index.to_bytes(8, "little")], TREASURER)[1]
        keys = (self.owner.pubkey(), self.owner.pubkey(), made.instance, coordinator, self.mint, made.vault)
        self.chain.put(made.run, run_account(bump, index, keys), TREASURER)
        self.chain.tokens(made.run, self.mint, funds, at=made.vault)
        return made

    def earn(self, points: Mapping[Pubkey, tuple[int, int]], run_state: RunState = RunState.Paused) -> None:
        content = coordinator_account(points, self.treasury.instance, run_state=run_state)
        self.chain.put(self.coordinator, content, COORDINATOR)

    def state(self) -> CoordinatorState:
        data = bytes(self.chain.account(self.coordinator).data)
        return image.decode(data[HEADER_BYTES : HEADER_BYTES + image.SIZE])

    def become(self, **fields: Any) -> None:
        """Changes the coordinator's state as no transaction could."""
        data = bytes(self.chain.account(self.coordinator).data)
        changed = image.encode(replace(self.state(), **fields))
        self.chain.put(self.coordinator, data[:HEADER_BYTES] + changed + data[HEADER_BYTES + image.SIZE :], COORDINATOR)

    def send(self, instruction: Instruction, *signers: Keypair) -> None:
        self.chain.send(instruction, signers=signers)

    def claiming(self, user: Keypair, amount: int, *, by: Keypair | None = None) -> Instruction:
        key = user.pubkey()
        authority = (by or user).pubkey()
        return treasurer.participant_claim(authority, key, destination=self.purse[key], treasury=self.treasury, amount=amount)

    def claim(self, user: Keypair, amount: int, *, by: Keypair | None = None) -> None:
        self.send(self.claiming(user, amount, by=by), by or user)

    def withdrawing(self, *show: Keypair) -> Instruction:
        shown = [self.participant(user) for user in show]
        destination = self.purse[self.owner.pubkey()]
        return treasurer.run_withdraw_unused(self.owner.pubkey(), destination, treasury=self.treasury, show=shown)

    def withdraw(self, *show: Keypair) -> int:
        before = self.balance(self.owner)
        self.send(self.withdrawing(*show), self.owner)
        return self.balance(self.owner) - before

    def settling(self, *show: Keypair) -> Instruction:
        shown = [self.participant(user) for user in show]
        return treasurer.run_settle(self.owner.pubkey(), treasury=self.treasury, show=shown)

    def settle(self, *show: Keypair) -> None:
        self.send(self.settling(*show), self.owner)

    def make_anew(self, user: Keypair) -> None:
        """Close a participant that was never paid, and make it again."""
        key, payer = user.pubkey(), self.payer.pubkey()
        self.send(treasurer.participant_close(key, payer, run=self.treasury.run), user)
        self.send(treasurer.participant_create(payer, key, treasury=self.treasury), self.payer)

    def participant(self, user: Keypair) -> Pubkey:
        return treasurer.participant_address(self.treasury.run, user.pubkey())

    def elsewhere(self, user: Keypair) -> Pubkey:
        return treasurer.participant_address(self.other.run, user.pubkey())

    def balance(self, user: Keypair) -> int:
        return self.chain.balance(self.purse[user.pubkey()])

    def vault(self) -> int:
        return self.chain.balance(self.treasury.vault)

    def paid(self) -> treasurer.Run:
        return treasurer.parse_run(self.chain.account(self.treasury.run))


def refused(world: World, instruction: Instruction, *signers: Keypair) -> int | None:
    with pytest.raises(Refused) as found:
        world.chain.rehearse(instruction, signers=signers)
    return found.value.code


@pytest.fixture(scope="module")
def world() -> World:
    """Only rehearsed upon: nobody changes it. Here dora has earned nothing that was not slashed."""
    made = World()
    made.earn({made.alice.pubkey(): (100, 0), made.bob.pubkey(): (50, 20), made.dora.pubkey(): (10, 10)})
    made.send(treasurer.participant_create(made.payer.pubkey(), made.dora.pubkey(), treasury=made.treasury), made.payer)
    return made


@pytest.fixture
def fresh() -> World:
    return World()


def test_each_is_paid_what_it_earned_and_no_more(fresh: World) -> None:
    fresh.claim(fresh.alice, 0)
    fresh.claim(fresh.alice, 60)
    assert refused(fresh, fresh.claiming(fresh.alice, 41), fresh.alice) == CODES["OverClaim"]
    fresh.claim(fresh.alice, 40)
    assert refused(fresh, fresh.claiming(fresh.alice, 1), fresh.alice) == CODES["OverClaim"]
    assert refused(fresh, fresh.claiming(fresh.bob, 31), fresh.bob) == CODES["OverClaim"], "slashed points are not paid"
    fresh.claim(fresh.bob, 30)
    assert refused(fresh, fresh.claiming(fresh.carol, 1), fresh.carol) == CODES["OverClaim"]
    assert [fresh.balance(user) for user in fresh.users] == [100, 30, 0]
    assert (fresh.vault(), fresh.paid().claimed, fresh.paid().participants) == (870, 130, 3)
    found = treasurer.parse_participant(fresh.chain.account(fresh.participant(fresh.alice)))
    assert (found.user, found.claimed, found.run) == (fresh.alice.pubkey(), 100, fresh.treasury.run)


def test_the_owner_may_pay_out_to_the_user(fresh: World) -> None:
    fresh.claim(fresh.alice, 100, by=fresh.owner)
    assert fresh.balance(fresh.alice) == 100
    assert refused(fresh, fresh.claiming(fresh.bob, 30, by=fresh.payer), fresh.payer) == CODES["NotAuthority"]


def test_a_vault_that_is_short_pays_what_it_holds(fresh: World) -> None:
    fresh.chain.tokens(fresh.treasury.run, fresh.mint, 99, at=fresh.treasury.vault)
    with pytest.raises(Refused, match="insufficient funds"):
        fresh.claim(fresh.alice, 100)
    fresh.claim(fresh.alice, 99)
    top_up = treasurer.top_up(fresh.payer.pubkey(), fresh.purse[fresh.payer.pubkey()], treasury=fresh.treasury, amount=7)
    fresh.send(top_up, fresh.payer)
    fresh.claim(fresh.alice, 1)
    assert (fresh.vault(), fresh.balance(fresh.payer)) == (6, 493)


@pytest.mark.parametrize("count", [1, 2, 3, 255, 512])
def test_every_member_is_found_among_all_accounts(fresh: World, count: int) -> None:
    points = {Pubkey.new_unique(): (1, 0) for _ in range(count - 1)} | {fresh.alice.pubkey(): (70, 0)}
    fresh.earn(points)
    fresh.claim(fresh.alice, 70)
    assert refused(fresh, fresh.claiming(fresh.alice, 1), fresh.alice) == CODES["OverClaim"]
    assert refused(fresh, fresh.claiming(fresh.bob, 1), fresh.bob) == CODES["OverClaim"]


def test_claims_go_on_while_the_run_does(fresh: World) -> None:
    fresh.earn({fresh.alice.pubkey(): (100, 0)}, RunState.RoundTrain)
    fresh.claim(fresh.alice, 100)
    fresh.earn({fresh.alice.pubkey(): (150, 0)}, RunState.RoundTrain)
    fresh.claim(fresh.alice, 50)
    assert fresh.balance(fresh.alice) == 150


def test_an_account_without_an_image_owes_nobody(fresh: World) -> None:
    data = coordinator_header(fresh.treasury.instance).ljust(ACCOUNT_BYTES, b"\0")
    fresh.chain.put(fresh.coordinator, data, COORDINATOR)
    assert refused(fresh, fresh.claiming(fresh.alice, 1), fresh.alice) == CODES["OverClaim"]
    assert fresh.withdraw() == 1000


def test_what_is_owed_stays_when_the_owner_takes_back_the_rest(fresh: World) -> None:
    assert fresh.withdraw() == 850, "bob counts as if not slashed while nobody shows his account"
    assert fresh.withdraw() == 0
    assert fresh.withdraw(fresh.bob) == 20
    fresh.claim(fresh.alice, 100)
    assert fresh.withdraw(fresh.bob, fresh.alice, fresh.carol) == 0
    fresh.claim(fresh.bob, 30)
    assert (fresh.vault(), fresh.withdraw(fresh.bob)) == (0, 0)


def test_a_slash_after_the_payment_takes_nothing_from_others(fresh: World) -> None:
    """Owed is not earned less slashed less claimed over all: bob was paid before he was slashed, and alice is owed 100 still."""
    fresh.earn({fresh.alice.pubkey(): (100, 0), fresh.bob.pubkey(): (50, 0)})
    fresh.claim(fresh.bob, 50)
    fresh.earn({fresh.alice.pubkey(): (100, 0), fresh.bob.pubkey(): (50, 50)})
    assert fresh.withdraw(fresh.bob) == 850
    fresh.claim(fresh.alice, 100)
    assert fresh.vault() == 0


def test_who_was_settled_need_not_be_shown(fresh: World) -> None:
    assert fresh.withdraw() == 850
    fresh.settle(fresh.bob, fresh.alice, fresh.bob)
    assert fresh.paid().forgiven == 20
    assert (fresh.withdraw(), fresh.withdraw(fresh.bob)) == (20, 0)
    fresh.settle(fresh.bob)
    assert fresh.paid().forgiven == 20, "what was remembered is not remembered once more"
    fresh.earn({fresh.alice.pubkey(): (100, 0), fresh.bob.pubkey(): (70, 45)})
    top_up = treasurer.top_up(fresh.payer.pubkey(), fresh.purse[fresh.payer.pubkey()], treasury=fresh.treasury, amount=100)
    fresh.send(top_up, fresh.payer)
    assert fresh.withdraw() == 80, "25 more of bob's were slashed since: the vault keeps them until somebody says so"
    assert fresh.withdraw(fresh.bob) == 25


def test_who_was_settled_cannot_close_its_account_before_its_run_is(fresh: World) -> None:
    """Or the owner would have to make and settle it again, at its own cost, as often as its member likes."""
    fresh.settle(fresh.bob)
    closing = treasurer.participant_close(fresh.bob.pubkey(), fresh.payer.pubkey(), run=fresh.treasury.run)
    assert refused(fresh, closing, fresh.bob) == CODES["StillNeeded"]
    fresh.chain.put(fresh.treasury.run, b"", SYSTEM)  # as after run_close
    fresh.send(closing, fresh.bob)


def test_a_balance_that_was_paid_out_is_freed(fresh: World) -> None:
    """Its room is for newcomers; earned and claimed are forgotten together, so nobody is owed more or less, nor paid twice."""
    alice, bob = fresh.alice.pubkey(), fresh.bob.pubkey()
    fresh.settle(fresh.bob)
    for user in (alice, bob, fresh.carol.pubkey()):
        assert refused(fresh, treasurer.run_release(user, treasury=fresh.treasury), fresh.payer) == CODES["NotPaidOut"]
    fresh.claim(fresh.alice, 99)
    assert refused(fresh, treasurer.run_release(alice, treasury=fresh.treasury), fresh.payer) == CODES["NotPaidOut"]
    fresh.claim(fresh.alice, 1)
    fresh.claim(fresh.bob, 30)
    fresh.send(treasurer.run_release(alice, treasury=fresh.treasury), fresh.payer)
    assert [Pubkey(account.signer) for account in fresh.state().accounts] == [bob]
    assert (fresh.paid().claimed, fresh.paid().forgiven) == (30, 20)
    fresh.send(treasurer.run_release(bob, treasury=fresh.treasury), fresh.payer)
    assert (fresh.state().accounts, fresh.paid().claimed, fresh.paid().forgiven) == ((), 0, 0)
    assert fresh.withdraw() == 870
    fresh.earn({alice: (7, 0)})
    assert refused(fresh, fresh.claiming(fresh.alice, 8), fresh.alice) == CODES["OverClaim"]
    fresh.make_anew(fresh.bob)


def test_who_owes_for_slashed_points_keeps_its_balance(fresh: World) -> None:
    """Freed, it would be rid of what is taken from it: of 40 points it was paid before, and of 5 it never earned."""
    for points, claimed in (((50, 40), 50), ((0, 5), 0)):
        fresh.earn({fresh.bob.pubkey(): (50, 0)})
        fresh.claim(fresh.bob, claimed)
        fresh.earn({fresh.bob.pubkey(): points})
        release = treasurer.run_release(fresh.bob.pubkey(), treasury=fresh.treasury)
        assert refused(fresh, release, fresh.payer) == CODES["NotPaidOut"]


def test_who_may_still_earn_keeps_its_balance(fresh: World) -> None:
    alice = NodeIdentity(bytes(fresh.alice.pubkey()), b"a" * 32)
    fresh.claim(fresh.alice, 100)
    release = treasurer.run_release(fresh.alice.pubkey(), treasury=fresh.treasury)
    for member in ({"pending": (alice,)}, {"epoch": Epoch(clients=(Client(alice),))}):
        fresh.become(**member)
        assert refused(fresh, release, fresh.payer) == COORDINATOR_CODES["InvalidSettlement"]
    fresh.become(pending=(), epoch=Epoch())
    fresh.send(release, fresh.payer)


def test_as_many_are_settled_as_one_instruction_takes(fresh: World) -> None:
    users = [fresh.chain.user() for _ in range(treasurer.MOST_SETTLED)]
    for user in users:
        fresh.send(treasurer.participant_create(fresh.payer.pubkey(), user.pubkey(), treasury=fresh.treasury), fresh.payer)
    fresh.earn({user.pubkey(): (10, 3) for user in users})
    fresh.settle(*users)
    assert fresh.paid().forgiven == 3 * len(users)


def test_a_paid_participant_cannot_forget(fresh: World) -> None:
    fresh.claim(fresh.alice, 100)
    closing = treasurer.participant_close(fresh.alice.pubkey(), fresh.payer.pubkey(), run=fresh.treasury.run)
    assert refused(fresh, closing, fresh.alice) == CODES["StillNeeded"]
    closing = treasurer.participant_close(fresh.carol.pubkey(), fresh.payer.pubkey(), run=fresh.treasury.run)
    fresh.send(closing, fresh.carol)
    assert not fresh.chain.exists(fresh.participant(fresh.carol))
    assert fresh.paid().participants == 2


def test_a_participant_is_closed_after_its_run(fresh: World) -> None:
    fresh.claim(fresh.alice, 100)
    fresh.chain.put(fresh.treasury.run, b"", SYSTEM)  # as after run_close
    fresh.send(treasurer.participant_close(fresh.alice.pubkey(), fresh.payer.pubkey(), run=fresh.treasury.run), fresh.alice)
    assert not fresh.chain.exists(fresh.participant(fresh.alice))


def test_an_index_used_again_remembers_no_payments_of_before(fresh: World) -> None:
    fresh.claim(fresh.alice, 100)
    fresh.settle(fresh.bob)
    bump = fresh.paid().bump
    keys = (
        fresh.owner.pubkey(),
        fresh.owner.pubkey(),
        fresh.treasury.instance,
        fresh.coordinator,
        fresh.mint,
        fresh.treasury.vault,
    )
    fresh.chain.put(fresh.treasury.run, run_account(bump, 42, keys, created=8), TREASURER)
    assert refused(fresh, fresh.claiming(fresh.alice, 1), fresh.alice) == CODES["OtherRun"]
    again = treasurer.participant_create(fresh.payer.pubkey(), fresh.alice.pubkey(), treasury=fresh.treasury)
    assert refused(fresh, read_only(again, 3), fresh.payer) == CODES["NotWritable"]
    fresh.send(again, fresh.payer)
    fresh.claim(fresh.alice, 100)
    assert refused(fresh, again, fresh.payer) == CODES["AlreadyExists"]
    assert refused(fresh, fresh.claiming(fresh.alice, 1), fresh.alice) == CODES["OverClaim"]
    assert refused(fresh, fresh.settling(fresh.bob), fresh.owner) == CODES["OtherRun"]
    fresh.send(treasurer.participant_create(fresh.payer.pubkey(), fresh.bob.pubkey(), treasury=fresh.treasury), fresh.payer)
    fresh.settle(fresh.bob)
    assert fresh.paid().forgiven == 20


Step = tuple[str, int, int]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("claim"), st.integers(0, 2), st.integers(0, 200)),
        st.tuples(st.just("earn"), st.integers(0, 2), st.integers(0, 100)),
        st.tuples(st.just("slash"), st.integers(0, 2), st.integers(0, 60)),
        st.tuples(st.just("withdraw"), st.integers(0, 7), st.just(0)),
        st.tuples(st.just("settle"), st.integers(1, 7), st.just(0)),
        st.tuples(st.just("make anew"), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("top_up"), st.just(0), st.integers(0, 20)),
    ),
    max_size=14,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
def test_nothing_is_lost_and_nobody_is_paid_too_much(steps: list[Step]) -> None:
    """Whatever happens in whatever order: units are conserved, and the owner never takes what somebody is owed."""
    world = World()
    points = {user.pubkey(): [0, 0] for user in world.users}
    claimed, settled = [0, 0, 0], [0, 0, 0]
    world.earn({})
    everything = 1000 + 500
    for kind, place, amount in steps:
        if kind == "claim":
            key = world.users[place].pubkey()
            allowed = max(points[key][0] - points[key][1], 0) - claimed[place]
            if amount > allowed:
                assert refused(world, world.claiming(world.users[place], amount), world.users[place]) == CODES["OverClaim"]
            elif amount <= world.vault():
                world.claim(world.users[place], amount)
                claimed[place] += amount
        elif kind in ("earn", "slash"):
            points[world.users[place].pubkey()][kind == "slash"] += amount
            world.earn({user: (earned, slashed) for user, (earned, slashed) in points.items()})
        elif kind == "withdraw":
            shown = [bit for bit in range(3) if place >> bit & 1]
            unslashed = [earned - had for (earned, _), had in zip(points.values(), claimed, strict=True)]
            owed = [max(earned - slashed - had, 0) for (earned, slashed), had in zip(points.values(), claimed, strict=True)]
            kept = sum(owed[bit] if bit in shown else unslashed[bit] - settled[bit] for bit in range(3))
            before = world.vault()
            assert world.withdraw(*(world.users[bit] for bit in shown)) == max(before - kept, 0)
            assert world.vault() >= min(before, sum(owed))
        elif kind == "settle":
            shown = [bit for bit in range(3) if place >> bit & 1]
            world.settle(*(world.users[bit] for bit in shown))
            for bit in shown:
                earned, slashed = points[world.users[bit].pubkey()]
                settled[bit] = earned - claimed[bit] - max(max(earned - slashed, 0) - claimed[bit], 0)
        elif kind == "make anew":
            if not claimed[place] and not settled[place]:
                world.make_anew(world.users[place])
        else:
            source = world.purse[world.payer.pubkey()]
            world.send(treasurer.top_up(world.payer.pubkey(), source, treasury=world.treasury, amount=amount), world.payer)
        held = world.vault() + sum(world.balance(user) for user in (*world.users, world.owner, world.payer))
        assert held == everything
        assert [world.balance(user) for user in world.users] == claimed
    assert (world.paid().claimed, world.paid().forgiven) == (sum(claimed), sum(settled))


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
    with pytest.raises(Refused) as found:
        world.chain.rehearse(change(world, instruction), signers=signers)
    assert found.value.code == CODES[error], found.value


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
    assert refused(fresh, instruction, *signers) == CODES[error]


@pytest.mark.parametrize("where", [lambda w: w.coordinator, lambda w: w.treasury.run, lambda w: w.participant(w.alice)])
def test_accounts_of_another_program_are_refused(fresh: World, where: Callable[[World], Pubkey]) -> None:
    key = where(fresh)
    fresh.chain.put(key, bytes(fresh.chain.account(key).data), TOKEN)
    assert refused(fresh, fresh.claiming(fresh.alice, 1), fresh.alice) == CODES["WrongOwner"]


RUNNING = [state for state in RunState if not state.halted]


@pytest.mark.parametrize("run_state", list(RunState))
def test_the_owner_takes_back_only_while_the_run_is_halted(fresh: World, run_state: RunState) -> None:
    fresh.earn({fresh.alice.pubkey(): (100, 0)}, run_state)
    if run_state in RUNNING:
        assert refused(fresh, fresh.withdrawing(), fresh.owner) == CODES["NotHalted"]
    else:
        assert fresh.withdraw() == 900


def test_a_vault_somebody_could_spend_from_is_refused(fresh: World) -> None:
    data = bytes(fresh.chain.account(fresh.treasury.vault).data)
    fresh.chain.put(fresh.treasury.vault, byte(72, b"\1")(data), TOKEN)
    assert refused(fresh, fresh.claiming(fresh.alice, 1), fresh.alice) == CODES["DelegatedTokens"]


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
