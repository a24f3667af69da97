"""256 clients and 32 witnesses: the program does what `apply` does, within what an instruction may compute.

An instruction has 200,000 compute units unless its transaction asks for more.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from solders.litesvm import FeatureSet, LiteSVM

from plugins.backend_solana.tests.svm.coordinator_svm import CoordinatorSvm, member, proved
from plugins.backend_solana.tests.svm.differential import Comparison
from plugins.backend_solana.tests.svm.largest import PERCENTS, Case, Largest, compute_units, measured
from plugins.backend_solana.tests.svm.random_commands import RandomCommands
from psyche_core.coordinator import commands
from psyche_core.coordinator.round.assignment import shares
from psyche_core.coordinator.round.witness import accepted_slots
from psyche_core.coordinator.state import Account, CoordinatorState, Round
from psyche_core.types import BatchId, ClientState, RunState, bitmap

LIMIT = 200_000
MOST = 1_200_000
"""Compute units that a round's end may need where as many shares are challenged as can be. A transaction can have 1,400,000."""


@pytest.fixture(scope="module")
def units() -> dict[str, dict[str, int]]:
    return compute_units()


@pytest.fixture(scope="module")
def chain() -> CoordinatorSvm:
    return CoordinatorSvm(members=257)


@pytest.mark.parametrize("label", ["usual, 0 % verify", "worst, 0 % verify", "usual, 10 % verify", "accounts"])
def test_nothing_needs_more_than_a_transaction_has(units: dict[str, dict[str, int]], label: str) -> None:
    """Not even where an instruction has to draw every election that it asks for."""
    needed = {name: used for name, used in units[label].items() if "128" not in name}
    assert {name: used for name, used in needed.items() if used >= LIMIT} == {}
    assert len(needed) >= 4


@pytest.mark.parametrize("label", ["usual, 10 % verify", "worst, 10 % verify"])
def test_the_end_of_a_round_fits_into_a_transaction_however_many_shares_are_challenged(
    units: dict[str, dict[str, int]], label: str
) -> None:
    assert {name: used for name, used in units[label].items() if used >= MOST} == {}
    assert sum("128" in name for name in units[label]) == 14


def test_elections_are_drawn_once(units: dict[str, dict[str, int]]) -> None:
    first, again = units["usual, 0 % verify"], units["usual, 0 % verify, drawn"]
    assert again["witness: the last"] < first["witness: the last"] - 50_000
    assert again["tick: rewards"] == pytest.approx(first["tick: rewards"], abs=500)


@pytest.mark.parametrize("percent", PERCENTS)
def test_what_was_derived_is_not_believed(chain: CoordinatorSvm, percent: int) -> None:
    """The elections of another round, or of the same one under other seeds, are drawn again."""
    largest = Largest(torn=False, percent=percent, instance=chain.instance)
    state = largest.playing(0)
    measured(chain, Case("first", state, largest.next_witness(state)))
    memory = chain.memory
    rounds = tuple(replace(stored, seed=stored.seed + 1) for stored in state.epoch.rounds)
    other = replace(state, epoch=replace(state.epoch, rounds=rounds))
    measured(chain, Case("other seeds", other, largest.next_witness(other)), memory=memory)
    fewer = replace(rounds[-1], slots=rounds[-1].slots[:200])
    other = replace(state, epoch=replace(state.epoch, rounds=(*state.epoch.rounds[:-1], fewer)))
    measured(chain, Case("other slots", other, largest.next_witness(other)), memory=memory)
    config = state.config.model_copy(update={"witness_nodes": 7})
    other = replace(state, config=config)
    measured(chain, Case("other numbers", other, largest.next_witness(other)), memory=memory)


@pytest.mark.parametrize(("accounts", "refusal"), [(255, None), (256, None), (257, "AccountsFull")])
def test_the_last_account(chain: CoordinatorSvm, accounts: int, refusal: str | None) -> None:
    """255 clients without accounts, one more pending, and so many strangers' accounts."""
    largest = Largest(torn=False, percent=0, instance=chain.instance)
    holders = tuple(Account(bytes([7, slot % 256, slot // 256]) + bytes(29)) for slot in range(accounts))
    clients = largest.state.epoch.clients[:255]
    state = replace(
        largest.state,
        run_state=RunState.WaitingForMembers,
        epoch=replace(largest.state.epoch, clients=clients),
        pending=largest.state.pending[:100],
        accounts=tuple(sorted(holders, key=lambda account: account.signer)),
    )
    answer = measured(chain, Case("join", state, proved(255, chain.instance)))
    assert answer.refusal == refusal


def test_no_member_more_than_an_epoch_holds(chain: CoordinatorSvm) -> None:
    state = replace(Largest(torn=False, percent=0, instance=chain.instance).state, run_state=RunState.WaitingForMembers)
    assert measured(chain, Case("join", state, proved(256, chain.instance))).refusal == "ClientsFull"


def test_no_statement_more_than_a_round_holds(chain: CoordinatorSvm) -> None:
    """It cannot happen while 32 are elected at most; a state from outside could have it."""
    largest = Largest(torn=False, percent=0, instance=chain.instance)
    state = largest.playing(0)
    current = state.epoch.rounds[-1]
    command = largest.next_witness(state)
    assert isinstance(command, commands.Witness)
    others = [slot for slot in range(256) if slot != command.statement.index][:32]
    statements = tuple(largest.statement(slot, current, seen=[]) for slot in others)
    full = replace(state, epoch=replace(state.epoch, rounds=(*state.epoch.rounds[:-1], replace(current, statements=statements))))
    assert measured(chain, Case("witness", full, command)).refusal == "WitnessesFull"


@pytest.mark.parametrize("cut", [1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255])
@pytest.mark.parametrize("percent", PERCENTS)
def test_every_number_of_clients_elects_the_same(chain: CoordinatorSvm, cut: int, percent: int) -> None:
    largest = Largest(torn=False, percent=percent, instance=chain.instance)
    left = tuple(
        client if slot % 256 < cut else replace(client, state=ClientState.Dropped)
        for slot, client in enumerate(largest.state.epoch.clients)
    )
    largest.state = replace(largest.state, epoch=replace(largest.state.epoch, clients=left))
    state: CoordinatorState = largest.playing(0)
    rounds = tuple(
        replace(stored, slots=tuple(range(cut)), statements=(), batches=stored.batches) for stored in state.epoch.rounds
    )
    state = replace(state, epoch=replace(state.epoch, rounds=rounds))
    for slot in range(0, cut, max(cut // 5, 1)):
        command = commands.Witness(member(slot), largest.statement(slot, rounds[-1], seen=[slot]))
        measured(chain, Case(f"witness {slot}", state, command))


def fewer_samples(largest: Largest, state: CoordinatorState, samples: int) -> CoordinatorState:
    """The same run with so few samples in each round that not every trainer has one."""
    made: list[Round] = []
    for stored in state.epoch.rounds:
        fewer = replace(stored, batches=(BatchId(stored.height * 1000, stored.height * 1000 + samples - 1),))
        seen = largest.seen(made[-1]) if made else []
        statements = tuple(largest.statement(statement.index, stored, seen=seen) for statement in stored.statements)
        made.append(replace(fewer, statements=statements))
    return replace(state, epoch=replace(state.epoch, rounds=tuple(made)))


@pytest.mark.parametrize("percent", PERCENTS)
@pytest.mark.parametrize("samples", [None, 1, 100])
def test_a_proof_about_any_stored_share(chain: CoordinatorSvm, percent: int, samples: int | None) -> None:
    """Of some slots, and of one that has no share; before the round's elections were drawn, and after.

    About an older round every election is asked for; a run drew that round's when it was settled.
    """
    largest = Largest(torn=True, percent=percent, instance=chain.instance)
    state = largest.playing(0)
    if samples is not None:
        state = fewer_samples(largest, state, samples)
    for place, judged in enumerate(state.epoch.rounds):
        given = sorted(shares(state, judged))
        undecided = place >= len(state.epoch.rounds) - 2
        for slot in {given[0], given[len(given) // 2], given[-1]}:
            case = Case("equivocation", state, largest.evidence(state, place, slot, any_share=True))
            answer = measured(chain, case)
            assert answer.units < LIMIT or not undecided
            assert measured(chain, case, memory=chain.memory).refusal == answer.refusal
            assert answer.refusal is None
        without = [slot for slot in range(256) if slot not in given]
        command = largest.evidence(state, place, given[0], any_share=True)
        if without:
            other = Case("equivocation", state, replace(command, index=without[0]))
            assert measured(chain, other).refusal == "InvalidEvidence"


@pytest.mark.parametrize("missing", [0, 1])
def test_a_quorum_and_one_less(chain: CoordinatorSvm, missing: int) -> None:
    """Of 32 witnesses who judge an older share 22 saw it, or 21."""
    largest = Largest(torn=False, percent=0, instance=chain.instance)
    state = largest.playing(32, RunState.Cooldown, drain=True)
    judged, judging = state.epoch.rounds[1:3]
    slot = max(shares(state, judged))
    others = [other for other in largest.seen(judged) if other != slot]
    statements = tuple(
        replace(statement, participants=bitmap(others if place < 10 + missing else [*others, slot]))
        for place, statement in enumerate(judging.statements)
    )
    rounds = (*state.epoch.rounds[:2], replace(judging, statements=statements), state.epoch.rounds[3])
    state = replace(state, epoch=replace(state.epoch, rounds=rounds))
    assert (slot in accepted_slots(state, rounds[1])) is not bool(missing)
    measured(chain, Case("equivocation", state, largest.evidence(state, 1, slot, any_share=True)))


@pytest.mark.parametrize("features", [LiteSVM.mainnet_feature_set(), FeatureSet.all_enabled()], ids=["mainnet", "all"])
def test_other_features_of_the_chain_change_nothing(features: FeatureSet) -> None:
    """Those of mainnet today, and those that are to come: rules for a program's memory among them."""
    chain = CoordinatorSvm(members=257, features=features)
    for torn in (False, True):
        for case in Largest(torn=torn, percent=0, instance=chain.instance).cases():
            measured(chain, case)


def test_forty_clients_play() -> None:
    """Command by command, as the random comparison does for few."""
    comparison = Comparison(members=40)
    drawn = RandomCommands(Random(5), 40, min_clients=4, init_min_clients=40, witness_nodes=4)
    comparison.play(drawn, 1200)
    assert not comparison.coverage.differences, comparison.coverage.differences
    assert comparison.coverage.accepted["Witness"] > 100
