"""The treasurer in a real SVM: who is paid what, what the owner may take back, and every check refused once.

The coordinator's account is put there as its program writes it: header, and the canonical image of a state with accounts.
Creating, updating and closing a run call the coordinator itself: test_treasurer_runs.py.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from solders.pubkey import Pubkey

from plugins.backend_solana.tests.svm.program_chain import (
    Refused,
    read_only,
)
from plugins.backend_solana.tests.svm.refusals import COORDINATOR_CODES
from plugins.backend_solana.tests.treasurer.treasurer_world import (
    CODES,
    World,
    coordinator_header,
    run_account,
)
from psyche_backend_solana.layouts import treasurer
from psyche_backend_solana.layouts.coordinator_accounts import ACCOUNT_BYTES
from psyche_backend_solana.programs.addresses import COORDINATOR, SYSTEM, TREASURER
from psyche_core.coordinator.state import Client, Epoch
from psyche_core.types import NodeIdentity, RunState


def test_each_is_paid_what_it_earned_and_no_more(fresh: World) -> None:
    fresh.claim(fresh.alice, 0)
    fresh.claim(fresh.alice, 60)
    assert fresh.chain.refused(fresh.claiming(fresh.alice, 41), fresh.alice) == CODES["OverClaim"]
    fresh.claim(fresh.alice, 40)
    assert fresh.chain.refused(fresh.claiming(fresh.alice, 1), fresh.alice) == CODES["OverClaim"]
    assert fresh.chain.refused(fresh.claiming(fresh.bob, 31), fresh.bob) == CODES["OverClaim"], "slashed points are not paid"
    fresh.claim(fresh.bob, 30)
    assert fresh.chain.refused(fresh.claiming(fresh.carol, 1), fresh.carol) == CODES["OverClaim"]
    assert [fresh.balance(user) for user in fresh.users] == [100, 30, 0]
    assert (fresh.vault(), fresh.paid().claimed, fresh.paid().participants) == (870, 130, 3)
    found = treasurer.parse_participant(fresh.chain.account(fresh.participant(fresh.alice)))
    assert (found.user, found.claimed, found.run) == (fresh.alice.pubkey(), 100, fresh.treasury.run)


def test_the_owner_may_pay_out_to_the_user(fresh: World) -> None:
    fresh.claim(fresh.alice, 100, by=fresh.owner)
    assert fresh.balance(fresh.alice) == 100
    assert fresh.chain.refused(fresh.claiming(fresh.bob, 30, by=fresh.payer), fresh.payer) == CODES["NotAuthority"]


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
    assert fresh.chain.refused(fresh.claiming(fresh.alice, 1), fresh.alice) == CODES["OverClaim"]
    assert fresh.chain.refused(fresh.claiming(fresh.bob, 1), fresh.bob) == CODES["OverClaim"]


def test_claims_go_on_while_the_run_does(fresh: World) -> None:
    fresh.earn({fresh.alice.pubkey(): (100, 0)}, RunState.RoundTrain)
    fresh.claim(fresh.alice, 100)
    fresh.earn({fresh.alice.pubkey(): (150, 0)}, RunState.RoundTrain)
    fresh.claim(fresh.alice, 50)
    assert fresh.balance(fresh.alice) == 150


def test_an_account_without_an_image_owes_nobody(fresh: World) -> None:
    data = coordinator_header(fresh.treasury.instance).ljust(ACCOUNT_BYTES, b"\0")
    fresh.chain.put(fresh.coordinator, data, COORDINATOR)
    assert fresh.chain.refused(fresh.claiming(fresh.alice, 1), fresh.alice) == CODES["OverClaim"]
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
    assert fresh.chain.refused(closing, fresh.bob) == CODES["StillNeeded"]
    fresh.chain.put(fresh.treasury.run, b"", SYSTEM)  # as after run_close
    fresh.send(closing, fresh.bob)


def test_a_balance_that_was_paid_out_is_freed(fresh: World) -> None:
    """Its room is for newcomers; earned and claimed are forgotten together, so nobody is owed more or less, nor paid twice."""
    alice, bob = fresh.alice.pubkey(), fresh.bob.pubkey()
    fresh.settle(fresh.bob)
    for user in (alice, bob, fresh.carol.pubkey()):
        assert fresh.chain.refused(treasurer.run_release(user, treasury=fresh.treasury), fresh.payer) == CODES["NotPaidOut"]
    fresh.claim(fresh.alice, 99)
    assert fresh.chain.refused(treasurer.run_release(alice, treasury=fresh.treasury), fresh.payer) == CODES["NotPaidOut"]
    fresh.claim(fresh.alice, 1)
    fresh.claim(fresh.bob, 30)
    fresh.send(treasurer.run_release(alice, treasury=fresh.treasury), fresh.payer)
    assert [Pubkey(account.signer) for account in fresh.state().accounts] == [bob]
    assert (fresh.paid().claimed, fresh.paid().forgiven) == (30, 20)
    fresh.send(treasurer.run_release(bob, treasury=fresh.treasury), fresh.payer)
    assert (fresh.state().accounts, fresh.paid().claimed, fresh.paid().forgiven) == ((), 0, 0)
    assert fresh.withdraw() == 870
    fresh.earn({alice: (7, 0)})
    assert fresh.chain.refused(fresh.claiming(fresh.alice, 8), fresh.alice) == CODES["OverClaim"]
    fresh.make_anew(fresh.bob)


def test_who_owes_for_slashed_points_keeps_its_balance(fresh: World) -> None:
    """Freed, it would be rid of what is taken from it: of 40 points it was paid before, and of 5 it never earned."""
    for points, claimed in (((50, 40), 50), ((0, 5), 0)):
        fresh.earn({fresh.bob.pubkey(): (50, 0)})
        fresh.claim(fresh.bob, claimed)
        fresh.earn({fresh.bob.pubkey(): points})
        release = treasurer.run_release(fresh.bob.pubkey(), treasury=fresh.treasury)
        assert fresh.chain.refused(release, fresh.payer) == CODES["NotPaidOut"]


def test_who_may_still_earn_keeps_its_balance(fresh: World) -> None:
    alice = NodeIdentity(bytes(fresh.alice.pubkey()), b"a" * 32)
    fresh.claim(fresh.alice, 100)
    release = treasurer.run_release(fresh.alice.pubkey(), treasury=fresh.treasury)
    for member in ({"pending": (alice,)}, {"epoch": Epoch(clients=(Client(alice),))}):
        fresh.become(**member)
        assert fresh.chain.refused(release, fresh.payer) == COORDINATOR_CODES["InvalidSettlement"]
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
    assert fresh.chain.refused(closing, fresh.alice) == CODES["StillNeeded"]
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
    assert fresh.chain.refused(fresh.claiming(fresh.alice, 1), fresh.alice) == CODES["OtherRun"]
    again = treasurer.participant_create(fresh.payer.pubkey(), fresh.alice.pubkey(), treasury=fresh.treasury)
    assert fresh.chain.refused(read_only(again, 3), fresh.payer) == CODES["NotWritable"]
    fresh.send(again, fresh.payer)
    fresh.claim(fresh.alice, 100)
    assert fresh.chain.refused(again, fresh.payer) == CODES["AlreadyExists"]
    assert fresh.chain.refused(fresh.claiming(fresh.alice, 1), fresh.alice) == CODES["OverClaim"]
    assert fresh.chain.refused(fresh.settling(fresh.bob), fresh.owner) == CODES["OtherRun"]
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
                assert world.chain.refused(world.claiming(world.users[place], amount), world.users[place]) == CODES["OverClaim"]
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
