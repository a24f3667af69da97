"""The mining pool in a real SVM: deposits, extraction, shares of both pots, and every check refused once."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plugins.backend_solana.tests.mining_pool.mining_pool_world import CODES, INDEX, U64, World, settled
from plugins.backend_solana.tests.svm.program_chain import (
    Refused,
)
from psyche_backend_solana.layouts import mining_pool, tokens


def test_a_pool_as_it_is_made(fresh: World) -> None:
    found = mining_pool.parse_pool(fresh.chain.account(fresh.other))
    assert (found.index, found.authority, found.collateral_mint) == (INDEX + 1, fresh.authority.pubkey(), fresh.collateral)
    assert found.collateral_vault == tokens.associated(fresh.other, fresh.collateral)
    assert (found.cap, found.lender_cap, found.metadata, found.redeemable) == (0, 0, '{"name": "Pool"}', None)
    assert not any((found.claiming, found.refunding, found.deposits_frozen, found.claims_frozen))
    vault = tokens.parse(fresh.chain.account(found.collateral_vault))
    assert (vault.owner, vault.mint, vault.amount, vault.restricted) == (fresh.other, fresh.collateral, 0, False)


def test_a_vault_that_somebody_made_before_does_not_stand_in_the_way(fresh: World) -> None:
    for index, mint in ((77, fresh.collateral), (INDEX, fresh.redeemable)):
        pool = mining_pool.pool_address(index)
        fresh.chain.send(tokens.create_associated(fresh.payer.pubkey(), pool, mint=mint), signers=[fresh.payer])
    fresh.make(77)
    fresh.open_claims()
    assert fresh.read().claiming


def test_updates_change_what_they_name(fresh: World) -> None:
    before = fresh.read()
    fresh.update(metadata="ü" * 200)
    fresh.update(cap=7, claims_frozen=True)
    after = fresh.read()
    assert (after.cap, after.lender_cap, after.metadata) == (7, before.lender_cap, "ü" * 200)
    assert (after.claims_frozen, after.deposits_frozen) == (True, False)
    fresh.update(metadata="", lender_cap=3, deposits_frozen=True, claims_frozen=False)
    after = fresh.read()
    assert (after.cap, after.lender_cap, after.metadata, after.claims_frozen, after.deposits_frozen) == (7, 3, "", False, True)
    fresh.update()
    assert fresh.read() == after


def test_limits_of_the_pool_and_of_each_lender(fresh: World) -> None:
    fresh.update(cap=100, lender_cap=60)
    fresh.deposit(0, 60)
    assert fresh.chain.refused(fresh.depositing(0, 1), fresh.lenders[0]) == CODES["OverCap"]
    assert fresh.chain.refused(fresh.depositing(1, 41), fresh.lenders[1]) == CODES["OverCap"]
    fresh.deposit(1, 40)
    fresh.update(cap=50, lender_cap=10)
    assert fresh.chain.refused(fresh.depositing(2, 1), fresh.lenders[2]) == CODES["OverCap"]
    assert (fresh.read().deposited, fresh.lender(0).deposited, fresh.lender(1).deposited) == (100, 60, 40)
    assert fresh.chain.balance(fresh.vault) == 100


def test_freezes(fresh: World) -> None:
    fresh.deposit(0, 10)
    fresh.update(deposits_frozen=True)
    assert fresh.chain.refused(fresh.depositing(0, 1), fresh.lenders[0]) == CODES["Frozen"]
    fresh.update(deposits_frozen=False)
    fresh.deposit(0, 10)
    fresh.open_claims()
    fresh.win(5)
    fresh.update(claims_frozen=True)
    assert fresh.chain.refused(fresh.claiming(0, 1), fresh.lenders[0]) == CODES["Frozen"]
    fresh.open_refunds()
    fresh.refund(0, 20)  # their own collateral cannot be frozen
    fresh.update(claims_frozen=False)
    fresh.claim(0, 5)


def test_extraction_and_a_return(fresh: World) -> None:
    fresh.deposit(0, 300)
    fresh.deposit(1, 100)
    fresh.extract(350)
    assert (fresh.chain.balance(fresh.treasury), fresh.read().extracted) == (350, 350)
    with pytest.raises(Refused, match="insufficient funds"):
        fresh.extract(51)
    back = tokens.transfer(fresh.treasury, fresh.vault, owner=fresh.authority.pubkey(), amount=150)
    fresh.chain.send(back, signers=[fresh.authority])
    fresh.open_refunds()
    assert fresh.chain.refused(fresh.extracting(1), fresh.authority) == CODES["ExtractionClosed"]
    assert fresh.chain.refused(fresh.refunding(1, 51), fresh.lenders[1]) == CODES["OverShare"]
    fresh.refund(1, 50)
    fresh.refund(0, 150)
    assert fresh.chain.balance(fresh.vault) == 0


def test_deposits_close_when_either_pot_opens(fresh: World) -> None:
    """The reference goes on taking deposits, which thin out everybody's share."""
    fresh.deposit(0, 1)
    fresh.open_claims()
    assert fresh.chain.refused(fresh.depositing(1, 1), fresh.lenders[1]) == CODES["DepositsClosed"]
    other = World()
    other.deposit(0, 1)
    other.open_refunds()
    assert other.chain.refused(other.depositing(0, 1), other.lenders[0]) == CODES["DepositsClosed"]


def test_shares_of_both_pots(fresh: World) -> None:
    world = settled()
    assert world.chain.refused(world.claiming(0, 751), world.lenders[0]) == CODES["OverShare"]
    world.claim(0, 750)
    world.claim(1, 250)
    assert world.chain.refused(world.claiming(1, 1), world.lenders[1]) == CODES["OverShare"]
    world.win(3)
    assert world.chain.refused(world.claiming(0, 4), world.lenders[0]) == CODES["OverShare"]
    world.claim(0, 3)
    world.claim(1, 1)
    assert world.chain.balance(world.pot) == 0
    assert world.chain.refused(world.refunding(1, 38), world.lenders[1]) == CODES["OverShare"]
    world.refund(1, 37)
    world.refund(0, 112)
    assert world.chain.refused(world.refunding(0, 1), world.lenders[0]) == CODES["OverShare"]
    assert world.chain.refused(world.claiming(2, 1), world.lenders[2]) == CODES["OverShare"]
    assert world.chain.refused(world.refunding(2, 1), world.lenders[2]) == CODES["OverShare"]
    assert (world.read().claimed, world.read().refunded, world.lender(1).refunded) == (1004, 149, 37)


def test_a_pool_without_deposits_pays_nobody(fresh: World) -> None:
    fresh.open_claims()
    fresh.win(100)
    fresh.claim(0, 0)
    assert fresh.chain.refused(fresh.claiming(0, 1), fresh.lenders[0]) == CODES["OverShare"]


def test_a_pot_beyond_64_bits_does_not_lock_the_pool(fresh: World) -> None:
    fresh.deposit(0, 3)
    fresh.deposit(1, 1)
    fresh.open_claims()
    fresh.win(U64)
    fresh.claim(0, U64 // 4 * 3)
    fresh.win(U64 // 4 * 3)  # what was paid is put in again
    fresh.claim(1, U64 // 4)
    assert fresh.read().claimed == U64 // 4 * 4
    assert fresh.chain.refused(fresh.claiming(1, 1), fresh.lenders[1]) == CODES["OverShare"]


def test_an_account_is_closed_only_without_deposits(fresh: World) -> None:
    fresh.deposit(0, 1)
    closing = mining_pool.lender_close(fresh.lenders[0].pubkey(), fresh.payer.pubkey(), pool=fresh.pool)
    assert fresh.chain.refused(closing, fresh.lenders[0]) == CODES["StillNeeded"]
    closing = mining_pool.lender_close(fresh.lenders[1].pubkey(), fresh.payer.pubkey(), pool=fresh.pool)
    fresh.chain.send(closing, signers=[fresh.lenders[1]])
    assert not fresh.chain.exists(fresh.lender_key(1))
    assert fresh.read().lenders == 2


AMOUNTS = st.one_of(st.integers(0, 50), st.integers(0, 2**60), st.sampled_from([0, 1, 2**32, 2**61]))


@settings(max_examples=30, deadline=None)
@given(deposits=st.tuples(AMOUNTS, AMOUNTS, AMOUNTS), wins=st.lists(AMOUNTS, min_size=1, max_size=2), part=st.integers(0, 100))
def test_everybody_gets_the_floor_of_its_share_in_whatever_order(
    deposits: tuple[int, int, int], wins: list[int], part: int
) -> None:
    """Conservation of both tokens, floor shares, and the order of lenders makes no difference."""
    outcomes = set()
    for order in itertools.islice(itertools.permutations(range(3)), 0, None, 2):
        world = World(funds=deposits)
        for place, amount in enumerate(deposits):
            world.deposit(place, amount)
        extracted = sum(deposits) * part // 100
        world.extract(extracted)
        world.open_claims()
        world.open_refunds()
        left, total = sum(deposits) - extracted, sum(deposits)
        pot = 0
        for won in wins:
            world.win(won)
            pot += won
            for place in order:
                mine = mining_pool.share(pot, deposits[place], total) - world.lender(place).claimed
                assert world.chain.refused(world.claiming(place, mine + 1), world.lenders[place]) == CODES["OverShare"]
                world.claim(place, mine)
        for place in order:
            mine = mining_pool.share(left, deposits[place], total)
            assert world.chain.refused(world.refunding(place, mine + 1), world.lenders[place]) == CODES["OverShare"]
            world.refund(place, mine)
        claimed = [world.chain.balance(account) for account in world.winnings]
        refunds = [world.chain.balance(account) for account in world.purses]
        assert claimed == [mining_pool.share(pot, mine, total) for mine in deposits]
        assert sum(claimed) + world.chain.balance(world.pot) == pot
        assert sum(refunds) + world.chain.balance(world.vault) + world.chain.balance(world.treasury) == total
        assert (world.read().claimed, world.read().refunded) == (sum(claimed), sum(refunds))
        assert world.chain.balance(world.pot) < 3 or total == 0
        outcomes.add((*claimed, *refunds))
    assert len(outcomes) == 1
