"""Bonds: who may join with one, who loses it, and who has it back, by the real programs."""

from __future__ import annotations

import struct

import pytest
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from plugins.backend_solana.tests.bond.bond_world import (
    AMOUNT,
    CODES,
    FUNDS,
    STRUCK,
    SUPPLY,
    WAITING,
    World,
    identity,
    instance_account,
)
from plugins.backend_solana.tests.svm.program_chain import Refused
from psyche_backend_solana.layouts import authorizer, bond
from psyche_backend_solana.lookup.bonds import convicted
from psyche_backend_solana.programs.addresses import COORDINATOR, TOKEN
from psyche_core.coordinator.state import Client
from psyche_core.types import ClientState, RunState
from psyche_core.verification.standing import Standing

PLAYED = (RunState.Warmup, RunState.RoundTrain, RunState.RoundWitness, RunState.Cooldown)
STANDING_STILL = tuple(phase for phase in RunState if phase not in (*PLAYED, RunState.Uninitialized))


def leave(world: World, user: Keypair) -> None:
    """Begin a withdrawal, and let the waiting time pass."""
    world.begin(user)
    world.chain.advance(WAITING)


# ------------------------------------------------------------ joining


def test_who_has_a_bond_joins_and_nobody_else(fresh: World) -> None:
    with pytest.raises(Refused) as without:
        fresh.join(fresh.alice)
    assert without.value.code == CODES["WrongOwner"]  # there is no authorization

    fresh.deposit(fresh.alice)
    fresh.join(fresh.alice)
    assert fresh.state().pending == (identity(fresh.alice),)
    assert (fresh.balance(fresh.alice), fresh.vault(), fresh.read().held) == (FUNDS - AMOUNT, AMOUNT, 1)
    held = fresh.held(fresh.alice)
    assert (held.state, held.user, held.amount) == (bond.BondState.Active, fresh.alice.pubkey(), AMOUNT)
    with pytest.raises(Refused) as others:
        fresh.join(fresh.bob, fresh.terms.authorization(fresh.alice.pubkey()))
    assert others.value.code == CODES["NotAuthority"]


def test_one_bond_lets_one_wallet_join(fresh: World) -> None:
    """The user names no delegates, and no owner grants without a bond: the account of the terms signs in its program alone."""
    fresh.deposit(fresh.alice)
    mine, right = fresh.alice.pubkey(), fresh.terms.authorization(fresh.alice.pubkey())
    for instruction in (
        authorizer.grantee_update(mine, mine, authorization=right, add=[fresh.bob.pubkey()]),
        authorizer.grantor_update(mine, right, active=True),
    ):
        assert fresh.chain.refused(instruction, fresh.alice) == CODES["NotAuthority"]
    assert authorizer.parse(fresh.chain.account(right)).delegates == (mine,)
    own = authorizer.create(fresh.owner.pubkey(), fresh.owner.pubkey(), grantee=fresh.bob.pubkey())
    switch = authorizer.grantor_update(
        fresh.owner.pubkey(), authorizer.address(fresh.owner.pubkey(), fresh.bob.pubkey()), active=True
    )
    fresh.chain.send(own, switch, signers=[fresh.owner])
    with pytest.raises(Refused) as owners:
        fresh.join(fresh.bob, authorizer.address(fresh.owner.pubkey(), fresh.bob.pubkey()))
    assert owners.value.code == CODES["NotAuthority"]


def test_the_right_to_join_ends_when_the_withdrawal_begins(fresh: World) -> None:
    fresh.deposit(fresh.alice)
    fresh.begin(fresh.alice)
    assert fresh.gone(fresh.terms.authorization(fresh.alice.pubkey()))
    assert fresh.held(fresh.alice).state is bond.BondState.Leaving
    with pytest.raises(Refused):
        fresh.join(fresh.alice)
    assert fresh.chain.refused(fresh.depositing(fresh.alice), fresh.alice) == CODES["AlreadyExists"]


# ------------------------------------------------------------ forfeiture


@pytest.mark.parametrize("run_state", [*PLAYED, *STANDING_STILL])
@pytest.mark.parametrize("leaving", [False, True])
def test_the_bond_of_who_was_ejected_is_burned(fresh: World, run_state: RunState, leaving: bool) -> None:
    """Anybody sends it, in every phase in which the account shows it, whether or not the member has begun to withdraw."""
    for user in (fresh.alice, fresh.bob):
        fresh.deposit(user)
    if leaving:
        fresh.begin(fresh.alice)
    fresh.eject(fresh.alice, run_state=run_state)
    fresh.forfeit(fresh.alice)
    assert (fresh.supply(), fresh.vault(), fresh.read().held, fresh.read().burned) == (SUPPLY - AMOUNT, AMOUNT, 1, AMOUNT)
    assert fresh.held(fresh.alice).state is bond.BondState.Forfeited
    assert fresh.gone(fresh.terms.authorization(fresh.alice.pubkey()))
    with pytest.raises(Refused):
        fresh.join(fresh.alice)
    assert fresh.chain.refused(fresh.forfeiting(fresh.alice)) == CODES["NotEjected"]  # once
    if not leaving:
        assert fresh.chain.refused(fresh.beginning(fresh.alice), fresh.alice) == CODES["NotActive"]


def test_nobody_gains_by_a_forfeiture(fresh: World) -> None:
    """No token account and no wallet of anybody changes. The rent of the right to join waits for who paid it."""
    fresh.deposit(fresh.alice)
    rents = [fresh.chain.account(at(fresh.alice.pubkey())).lamports for at in (fresh.terms.authorization, fresh.terms.bond)]
    wallets = [user.pubkey() for user in (fresh.owner, fresh.payer, fresh.bob, fresh.alice)]
    before = [fresh.chain.account(key).lamports for key in wallets]
    fresh.eject(fresh.alice)
    fresh.forfeit(fresh.alice)
    assert [fresh.chain.account(key).lamports for key in wallets] == before
    assert [fresh.balance(user) for user in (fresh.alice, fresh.bob, fresh.carol)] == [FUNDS - AMOUNT, FUNDS, FUNDS]
    fresh.withdraw(fresh.alice)
    assert fresh.chain.account(fresh.alice.pubkey()).lamports == before[3] + sum(rents)


def test_no_account_of_the_user_holds_a_forfeiture_up(fresh: World) -> None:
    """The transaction does not name the user, whose account may be one that takes nothing, as that of a program."""
    fresh.deposit(fresh.alice)
    fresh.eject(fresh.alice)
    assert fresh.alice.pubkey() not in [meta.pubkey for meta in fresh.forfeiting(fresh.alice).accounts]


@pytest.mark.parametrize("strikes", [0, 1])
@pytest.mark.parametrize("health", [state for state in ClientState if state is not ClientState.Ejected])
def test_who_is_healthy_dropped_or_withdrawn_keeps_its_bond(fresh: World, health: ClientState, strikes: int) -> None:
    """Also with a strike: an honest member that loses its line is dropped, and may have one."""
    fresh.deposit(fresh.alice)
    for run_state in PLAYED:
        fresh.become([Client(identity(fresh.alice), health, standing=Standing(strikes=strikes))], run_state=run_state)
        assert fresh.chain.refused(fresh.forfeiting(fresh.alice)) == CODES["NotEjected"]


@pytest.mark.parametrize(
    ("grounds", "standing", "burned"),
    [
        (bond.Ground.Signatures, Standing(), True),
        (bond.Ground.Signatures, Standing(strikes=1), True),
        (bond.Ground.Signatures, STRUCK, False),
        (bond.Ground.Strikes, Standing(strikes=1), False),
        (bond.Ground.Strikes, STRUCK, True),
        (bond.Ground.Strikes, Standing(strikes=7), True),
    ],
)
def test_terms_name_the_grounds(grounds: bond.Ground, standing: Standing, burned: bool) -> None:
    """Two signatures, which no honest member gives, or two strikes, which one that restarts twice in an epoch may get."""
    world = World(grounds=grounds)
    world.deposit(world.alice)
    world.eject(world.alice, standing)
    assert convicted(world.state(), grounds) == ((world.alice.pubkey(),) if burned else ())
    if burned:
        world.forfeit(world.alice)
        assert world.supply() == SUPPLY - AMOUNT
        return
    assert world.chain.refused(world.forfeiting(world.alice)) == CODES["NotEjected"]
    leave(world, world.alice)
    world.become()
    world.withdraw(world.alice)
    assert (world.balance(world.alice), world.supply()) == (FUNDS, SUPPLY)


def test_only_this_runs_own_account_convicts(fresh: World) -> None:
    fresh.deposit(fresh.alice)
    fresh.become([Client(identity(fresh.alice))], run_state=RunState.RoundTrain)
    guilty = Client(identity(fresh.alice), ClientState.Ejected, standing=STRUCK)
    fresh.become([guilty], run_state=RunState.RoundTrain, place=fresh.there)
    forged = Pubkey.new_unique()
    fresh.chain.put(forged, bytes(fresh.chain.account(fresh.there.account).data), fresh.carol.pubkey())

    def by(instance: Pubkey, account: Pubkey) -> int | None:
        terms = bond.terms_of(fresh.terms.bonds, mint=fresh.mint, instance=instance, account=account)
        return fresh.chain.refused(bond.forfeit(fresh.alice.pubkey(), terms=terms))

    assert by(fresh.terms.instance, fresh.terms.account) == CODES["NotEjected"]
    assert by(fresh.there.terms.instance, fresh.there.account) == CODES["OtherRun"]
    assert by(fresh.terms.instance, fresh.there.account) == CODES["OtherRun"]
    assert by(fresh.terms.instance, forged) == CODES["OtherRun"]
    others = bond.Terms(
        fresh.there.terms.bonds, fresh.mint, fresh.there.terms.vault, fresh.there.terms.instance, fresh.there.account
    )
    real = bond.forfeit(fresh.alice.pubkey(), terms=others)
    mixed = list(real.accounts)
    mixed[1] = fresh.forfeiting(fresh.alice).accounts[1]
    assert fresh.chain.refused(type(real)(real.program_id, bytes(real.data), mixed)) == CODES["OtherBonds"]


# ------------------------------------------------------------ withdrawal


def test_who_leaves_has_its_bond_back_after_the_waiting_time(fresh: World) -> None:
    fresh.deposit(fresh.alice)
    assert fresh.chain.refused(fresh.withdrawing(fresh.alice), fresh.alice) == CODES["NotLeaving"]
    fresh.begin(fresh.alice)
    assert fresh.chain.refused(fresh.beginning(fresh.alice), fresh.alice) == CODES["NotActive"]
    fresh.chain.advance(WAITING - 1)
    assert fresh.chain.refused(fresh.withdrawing(fresh.alice), fresh.alice) == CODES["TooEarly"]
    fresh.chain.advance(1)
    fresh.withdraw(fresh.alice)
    assert (fresh.balance(fresh.alice), fresh.vault(), fresh.read().held, fresh.supply()) == (FUNDS, 0, 0, SUPPLY)
    assert fresh.gone(fresh.terms.bond(fresh.alice.pubkey()))
    assert fresh.chain.refused(fresh.withdrawing(fresh.alice), fresh.alice) == CODES["WrongOwner"]  # twice
    fresh.deposit(fresh.alice)
    fresh.join(fresh.alice)


def test_nobody_withdraws_for_another(fresh: World) -> None:
    fresh.deposit(fresh.alice)
    fresh.deposit(fresh.bob)
    theirs, mine = fresh.beginning(fresh.alice), fresh.beginning(fresh.bob)
    mixed = [mine.accounts[0], *theirs.accounts[1:]]
    assert fresh.chain.refused(type(theirs)(theirs.program_id, bytes(theirs.data), mixed), fresh.bob) == CODES["NotAuthority"]
    leave(fresh, fresh.alice)
    theirs, mine = fresh.withdrawing(fresh.alice), fresh.withdrawing(fresh.bob)
    mixed = [*mine.accounts[:2], *theirs.accounts[2:]]
    assert fresh.chain.refused(type(theirs)(theirs.program_id, bytes(theirs.data), mixed), fresh.bob) == CODES["NotAuthority"]


@pytest.mark.parametrize("run_state", PLAYED)
@pytest.mark.parametrize("health", ClientState)
def test_an_epoch_without_end_keeps_no_bond_of_who_has_left(run_state: RunState, health: ClientState) -> None:
    """Seven days after the waiting time it is paid; not to who plays, is pending, or was ejected on a ground of the terms."""
    world = World(grounds=bond.Ground.Signatures)
    world.deposit(world.alice)
    leave(world, world.alice)
    gone = Client(identity(world.alice), health, standing=STRUCK)
    world.become([gone], run_state=run_state)
    world.chain.advance(bond.LONGEST_EPOCH - 1)
    assert world.chain.refused(world.withdrawing(world.alice), world.alice) == CODES["StillMember"]
    world.chain.advance(1)
    world.become([gone], pending=[world.bob, world.alice], run_state=run_state)
    assert world.chain.refused(world.withdrawing(world.alice), world.alice) == CODES["StillMember"]
    world.become([Client(identity(world.alice), ClientState.Ejected)], run_state=run_state)
    assert world.chain.refused(world.withdrawing(world.alice), world.alice) == CODES["Ejected"]
    world.become([gone], run_state=run_state)
    if health is ClientState.Healthy:
        assert world.chain.refused(world.withdrawing(world.alice), world.alice) == CODES["StillMember"]
        return
    world.withdraw(world.alice)
    assert (world.balance(world.alice), world.supply()) == (FUNDS, SUPPLY)


@pytest.mark.parametrize("health", [state for state in ClientState if state is not ClientState.Ejected])
def test_who_may_still_be_ejected_waits_for_the_epochs_end(fresh: World, health: ClientState) -> None:
    """A proof against who has withdrawn or was dropped is heard until then."""
    fresh.deposit(fresh.alice)
    leave(fresh, fresh.alice)
    for run_state in PLAYED:
        fresh.become([Client(identity(fresh.alice), health)], run_state=run_state)
        assert fresh.chain.refused(fresh.withdrawing(fresh.alice), fresh.alice) == CODES["StillMember"]
    for run_state in STANDING_STILL:
        fresh.become([Client(identity(fresh.alice), health)], run_state=run_state)
        fresh.chain.rehearse(fresh.withdrawing(fresh.alice), signers=[fresh.alice])
        fresh.become(pending=[fresh.bob, fresh.alice], run_state=run_state)
        assert fresh.chain.refused(fresh.withdrawing(fresh.alice), fresh.alice) == CODES["StillMember"]


def test_who_was_ejected_has_nothing_back(fresh: World) -> None:
    fresh.deposit(fresh.alice)
    leave(fresh, fresh.alice)
    for run_state in (*PLAYED, *STANDING_STILL):
        fresh.eject(fresh.alice, run_state=run_state)
        assert fresh.chain.refused(fresh.withdrawing(fresh.alice), fresh.alice) == CODES["Ejected"]
    fresh.forfeit(fresh.alice)
    fresh.withdraw(fresh.alice)
    assert (fresh.balance(fresh.alice), fresh.vault()) == (FUNDS - AMOUNT, 0)
    assert fresh.gone(fresh.terms.bond(fresh.alice.pubkey()))


def test_one_ejection_burns_one_bond(fresh: World) -> None:
    """Who was ejected puts the next one down when the run begins another epoch: before, it would be burned for what is past."""
    fresh.deposit(fresh.alice)
    fresh.eject(fresh.alice, run_state=RunState.WaitingForMembers)
    fresh.forfeit(fresh.alice)
    fresh.withdraw(fresh.alice)
    assert fresh.chain.refused(fresh.depositing(fresh.alice), fresh.alice) == CODES["Ejected"]
    fresh.become([Client(identity(fresh.bob))], run_state=RunState.Warmup)
    fresh.deposit(fresh.alice)
    fresh.join(fresh.alice)
    assert fresh.supply() == SUPPLY - AMOUNT


# ------------------------------------------------------------ the run's end


def ended(world: World, how: str) -> None:
    if how == "closed":
        world.free()
    elif how == "another join authority":
        content = instance_account("run", world.owner.pubkey(), world.owner.pubkey(), world.here.account)
        world.chain.put(world.terms.instance, content, COORDINATOR)
    else:
        data = bytearray(world.chain.account(world.here.account).data)
        data[8:12] = (4).to_bytes(4, "little")
        world.chain.put(world.here.account, bytes(data), COORDINATOR)


@pytest.mark.parametrize("how", ["closed", "another join authority", "an older version"])
def test_bonds_come_back_where_the_run_is_no_more(fresh: World, how: str) -> None:
    """Nobody is ejected from it any more; what the account showed last does not count."""
    fresh.deposit(fresh.alice)
    leave(fresh, fresh.alice)
    fresh.eject(fresh.alice)
    ended(fresh, how)
    assert fresh.chain.refused(fresh.forfeiting(fresh.alice)) == CODES["NotEjected"]
    fresh.withdraw(fresh.alice)
    assert fresh.balance(fresh.alice) == FUNDS


def test_a_run_that_was_made_again_is_seen_as_it_is_now(fresh: World) -> None:
    fresh.deposit(fresh.alice)
    old = fresh.here.account
    anew = fresh.place("run")
    fresh.become([Client(identity(fresh.alice), ClientState.Ejected)], run_state=RunState.RoundTrain, place=anew)
    assert fresh.chain.refused(fresh.forfeiting(fresh.alice)) == CODES["OtherRun"]
    assert old != anew.account
    fresh.chain.send(bond.forfeit(fresh.alice.pubkey(), terms=anew.terms))
    assert fresh.supply() == SUPPLY - AMOUNT


def test_terms_close_only_without_bonds_and_are_made_again(fresh: World) -> None:
    """What a stranger sent to the vault is burned; the owner gets rents alone. Forfeited bonds do not hold it up."""
    for user in (fresh.alice, fresh.bob):
        fresh.deposit(user)
    assert fresh.chain.refused(fresh.closing(), fresh.owner) == CODES["StillNeeded"]
    leave(fresh, fresh.bob)
    fresh.withdraw(fresh.bob)
    fresh.eject(fresh.alice, Standing())
    fresh.forfeit(fresh.alice)
    fresh.chain.tokens(fresh.terms.bonds, fresh.mint, 77, at=fresh.terms.vault)
    fresh.chain.send(fresh.closing(), signers=[fresh.owner])
    assert fresh.gone(fresh.terms.bonds)
    assert fresh.gone(fresh.terms.vault)
    assert fresh.supply() == SUPPLY - AMOUNT - 77
    fresh.chain.send(fresh.creating(fresh.here, amount=7), signers=[fresh.payer, fresh.owner])
    assert (fresh.read().amount, fresh.read().held, fresh.read().burned) == (7, 0, 0)
    fresh.deposit(fresh.bob)
    fresh.withdraw(fresh.alice)  # what is left of the old bond
    assert (fresh.vault(), fresh.balance(fresh.alice), fresh.read().held) == (7, FUNDS - AMOUNT, 1)


def test_a_burned_bond_is_closed_for_its_rent_when_its_terms_are_gone(fresh: World) -> None:
    fresh.deposit(fresh.alice)
    fresh.eject(fresh.alice)
    fresh.forfeit(fresh.alice)
    fresh.chain.send(fresh.closing(), signers=[fresh.owner])
    rent = fresh.chain.account(fresh.terms.bond(fresh.alice.pubkey())).lamports
    before = fresh.chain.account(fresh.alice.pubkey()).lamports
    fresh.withdraw(fresh.alice)
    assert fresh.gone(fresh.terms.bond(fresh.alice.pubkey()))
    assert fresh.chain.account(fresh.alice.pubkey()).lamports == before + rent


def test_wrapped_sol_makes_no_terms(fresh: World) -> None:
    """The token program does not burn it, so such a bond could not be lost."""
    fresh.chain.put(bond.NATIVE_MINT, struct.pack("<I32sQBBI32s", 0, bytes(32), 0, 9, 1, 0, bytes(32)), TOKEN)
    third = fresh.place("third")
    third.terms = bond.terms_of(third.terms.bonds, mint=bond.NATIVE_MINT, instance=third.terms.instance, account=third.account)
    assert fresh.chain.refused(fresh.creating(third), fresh.payer, fresh.owner) == CODES["NativeMint"]


def test_terms_belong_to_whom_the_run_named(fresh: World) -> None:
    """Another wallet's terms for this run have another address, which is not its join authority."""
    instance = fresh.terms.instance
    other = bond.bonds_address(fresh.carol.pubkey(), instance)
    terms = bond.terms_of(other, mint=fresh.mint, instance=instance, account=fresh.here.account)
    made = bond.create(fresh.carol.pubkey(), fresh.carol.pubkey(), terms=terms, amount=1, waiting=0)
    assert fresh.chain.refused(made, fresh.carol) == CODES["OtherRun"]


def test_the_longest_search_fits_into_an_ordinary_transaction(fresh: World) -> None:
    """In a full epoch with all others pending: the programs look at every slot, within what a transaction has without asking."""
    crowd = [Keypair() for _ in range(255)]
    fresh.deposit(fresh.alice)
    clients = [*(Client(identity(user)) for user in crowd), Client(identity(fresh.alice), ClientState.Ejected)]
    fresh.become(clients, pending=crowd, run_state=RunState.Cooldown)
    units = {"forfeit": fresh.forfeit(fresh.alice).compute_units}
    fresh.become(clients[:255], pending=[*crowd, fresh.bob], run_state=RunState.Paused)
    units["deposit"] = fresh.deposit(fresh.carol).compute_units
    units["withdraw_begin"] = fresh.begin(fresh.carol).compute_units
    fresh.chain.advance(WAITING)
    units["withdraw"] = fresh.withdraw(fresh.carol).compute_units
    assert max(units.values()) < 100_000, units
    print(units)
