"""256 clients and 32 witnesses: the program does what `apply` does, within what an instruction may compute.

An instruction has 200,000 compute units unless its transaction asks for more.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from solders.litesvm import FeatureSet, LiteSVM

from psyche_backend_solana.svm.chain import CoordinatorSvm, member
from psyche_backend_solana.svm.differential import Comparison
from psyche_backend_solana.svm.largest import Case, Largest, compute_units, measured
from psyche_backend_solana.svm.random_commands import RandomCommands
from psyche_core.coordinator import commands
from psyche_core.coordinator.state import Account, CoordinatorState
from psyche_core.types import ClientState, RunState

LIMIT = 200_000


@pytest.fixture(scope="module")
def units() -> dict[str, dict[str, int]]:
    return compute_units()


@pytest.fixture(scope="module")
def chain() -> CoordinatorSvm:
    return CoordinatorSvm(members=257)


@pytest.mark.parametrize("label", ["usual, 0 % verify", "worst, 0 % verify", "accounts"])
def test_without_verifiers_nothing_needs_more_than_a_transaction_has(units: dict[str, dict[str, int]], label: str) -> None:
    assert {name: used for name, used in units[label].items() if used >= LIMIT} == {}
    assert len(units[label]) >= 4


@pytest.mark.parametrize("label", ["usual, 10 % verify, drawn", "worst, 10 % verify, drawn", "usual, 10 % verify"])
def test_with_verifiers_neither(units: dict[str, dict[str, int]], label: str) -> None:
    """As long as not every election has to be drawn within the same instruction."""
    assert {name: used for name, used in units[label].items() if used >= LIMIT} == {}


def test_elections_are_drawn_once(units: dict[str, dict[str, int]]) -> None:
    first, again = units["usual, 0 % verify"], units["usual, 0 % verify, drawn"]
    assert again["witness: the last"] < first["witness: the last"] - 50_000
    assert again["tick: rewards"] == pytest.approx(first["tick: rewards"], abs=500)


@pytest.mark.parametrize("percent", [0, 10])
def test_what_was_derived_is_not_believed(chain: CoordinatorSvm, percent: int) -> None:
    """The elections of another round, or of the same one under other seeds, are drawn again."""
    largest = Largest(torn=False, percent=percent)
    state = largest.playing(0)
    measured(chain, Case("first", state, largest.next_witness(state)))
    memory = chain.memory
    rounds = tuple(replace(stored, seed=stored.seed + 1) for stored in state.epoch.rounds)
    other = replace(state, epoch=replace(state.epoch, rounds=rounds))
    measured(chain, Case("other seeds", other, largest.next_witness(other)), memory=memory)
    fewer = replace(rounds[-1], slots=rounds[-1].slots[:200])
    other = replace(state, epoch=replace(state.epoch, rounds=(*state.epoch.rounds[:-1], fewer)))
    measured(chain, Case("other slots", other, largest.next_witness(other)), memory=memory)
    config = state.config.model_copy(update={"witness_nodes": 7, "verification_percent": 50})
    other = replace(state, config=config)
    measured(chain, Case("other numbers", other, largest.next_witness(other)), memory=memory)


@pytest.mark.parametrize(("accounts", "refusal"), [(255, None), (256, None), (257, "AccountsFull")])
def test_the_last_account(chain: CoordinatorSvm, accounts: int, refusal: str | None) -> None:
    """255 clients without accounts, one more pending, and so many strangers' accounts."""
    largest = Largest(torn=False, percent=0)
    holders = tuple(Account(bytes([7, slot % 256, slot // 256]) + bytes(29)) for slot in range(accounts))
    clients = largest.state.epoch.clients[:255]
    state = replace(
        largest.state,
        run_state=RunState.WaitingForMembers,
        epoch=replace(largest.state.epoch, clients=clients),
        pending=largest.state.pending[:100],
        accounts=tuple(sorted(holders, key=lambda account: account.signer)),
    )
    answer = measured(chain, Case("join", state, commands.Join(member(255))))
    assert answer.refusal == refusal


def test_no_member_more_than_an_epoch_holds(chain: CoordinatorSvm) -> None:
    state = replace(Largest(torn=False, percent=0).state, run_state=RunState.WaitingForMembers)
    assert measured(chain, Case("join", state, commands.Join(member(256)))).refusal == "ClientsFull"


def test_no_statement_more_than_a_round_holds(chain: CoordinatorSvm) -> None:
    """It cannot happen while 32 are elected at most; a state from outside could have it."""
    largest = Largest(torn=False, percent=0)
    state = largest.playing(0)
    current = state.epoch.rounds[-1]
    command = largest.next_witness(state)
    assert isinstance(command, commands.Witness)
    others = [slot for slot in range(256) if slot != command.statement.index][:32]
    statements = tuple(largest.statement(slot, current, seen=[]) for slot in others)
    full = replace(state, epoch=replace(state.epoch, rounds=(*state.epoch.rounds[:-1], replace(current, statements=statements))))
    assert measured(chain, Case("witness", full, command)).refusal == "WitnessesFull"


@pytest.mark.parametrize("cut", [1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255])
@pytest.mark.parametrize("percent", [0, 10, 90])
def test_every_number_of_clients_elects_the_same(chain: CoordinatorSvm, cut: int, percent: int) -> None:
    largest = Largest(torn=False, percent=percent)
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


@pytest.mark.parametrize("features", [LiteSVM.mainnet_feature_set(), FeatureSet.all_enabled()], ids=["mainnet", "all"])
def test_other_features_of_the_chain_change_nothing(features: FeatureSet) -> None:
    """Those of mainnet today, and those that are to come: rules for a program's memory among them."""
    chain = CoordinatorSvm(members=257, features=features)
    for torn in (False, True):
        for case in Largest(torn=torn, percent=0).cases():
            measured(chain, case)


def test_forty_clients_play() -> None:
    """Command by command, as the random comparison does for few."""
    comparison = Comparison(members=40)
    drawn = RandomCommands(Random(5), 40, min_clients=4, init_min_clients=40, witness_nodes=4, verification_percent=10)
    comparison.play(drawn, 1200)
    assert not comparison.coverage.differences, comparison.coverage.differences
    assert comparison.coverage.accepted["Witness"] > 100
