"""Defects of the reference's client that ours must not have, by their number in its list (client facts, section 9).

Here are those that the machine decides; docs/explanation/reference-defects.md and threat-model.md say where the others are.
"""

from __future__ import annotations

import pytest

from psyche_core.client.machine import actions as act
from psyche_core.client.machine import events as ev
from psyche_core.coordinator.commands import ClientsExited
from psyche_core.coordinator.round.assignment import shares
from psyche_core.simulator.script import Fault
from psyche_core.telemetry import events as telemetry
from psyche_core.types import ClientState, RunState
from psyche_core.wire.messages import Finished, Result, commitment_hash
from stage import Member, Stage, with_a_slow_member_dropped


def all_ended_well(world: Stage) -> None:
    assert all(member.stop is not None and member.stop.success for member in world.survivors())
    assert len({member.masters for member in world.survivors()}) == 1


def applied_steps(member: Member) -> list[int]:
    return [step for step, _ in member.applied]


def test_2_a_batch_whose_announcement_never_came_is_not_skipped() -> None:
    """The reference skipped an accepted batch it had not heard of, with a warning, and drifted."""
    world = Stage(4, total_steps=14, rounds_per_epoch=14)
    deaf, evidence_lost = world.members[3], world.members[0]
    world.loses_message = lambda source, target, message: (
        source is evidence_lost and target is deaf and isinstance(message, Result) and message.step in (4, 5)
    )
    world.run(limit=900)

    all_ended_well(world)
    assert [event for event in deaf.told if isinstance(event, telemetry.Resynced)]


def test_3_a_payload_that_cannot_be_read_is_judged_alike_by_everybody() -> None:
    """The reference left it out on the client that could not read it while the others applied it."""
    world = Stage(4, total_steps=8, rounds_per_epoch=8)
    broken = world.members[1]
    world.invalid = lambda member, payload_hash: payload_hash in broken.own and member is not broken
    world.run(until=lambda: all(m.stop is not None for m in world.members if m is not broken), limit=900)

    others = [member for member in world.members if member is not broken]
    assert len({member.masters for member in others}) == 1
    assert not any(broken.own & set(results) for member in others for _, results in member.applied)


@pytest.mark.parametrize("seed", range(4))
def test_4_which_of_two_results_counts_does_not_depend_on_the_order_they_came_in(seed: int) -> None:
    """The reference took the last of equal candidates in local order of arrival."""
    lies = Fault(kind="two-results", start=0.0, nodes=(0,))
    world = Stage(5, seed=seed, total_steps=8, rounds_per_epoch=8, faults=(lies,))
    liar = world.members[0]
    world.run(until=lambda: all(member.stop is not None for member in world.members), limit=900)

    honest = [member for member in world.members if member is not liar]
    assert all(member.stop is not None and member.stop.success for member in honest)
    assert len({member.masters for member in honest}) == 1
    slot = world.epoch_clients[0].index(liar.identity)
    assert [event for event in world.coordinator_events if isinstance(event, ClientsExited) and event.slots == (slot,)]
    assert liar.stop is not None
    assert "ejected" in liar.stop.reason


def test_5_the_commitment_covers_everything_that_is_applied() -> None:
    """The reference's hash left out fields that changed what was applied; ours covers the complete payload and its place."""
    fields = {"epoch": 1, "step": 2, "seed": 7, "share": (), "trainer": b"t" * 32, "payload_hash": b"p" * 32}
    base = commitment_hash(b"run", **fields)
    others = [
        commitment_hash(b"other", **fields),
        *(
            commitment_hash(b"run", **{**fields, name: value})
            for name, value in {"epoch": 2, "step": 3, "seed": 8, "trainer": b"u" * 32, "payload_hash": b"q" * 32}.items()
        ),
    ]
    assert base not in others
    assert len(set(others)) == len(others)


def test_6_messages_of_the_last_round_count_although_a_member_has_left_since() -> None:
    """The reference checked them against the shifted list of clients, and some members refused them."""
    world = Stage(5, total_steps=10, rounds_per_epoch=10)
    leaver = world.members[0]
    world.run(until=lambda: world.state.progress.step == 4)
    leaver.ask_to_leave()
    world.run(limit=900)

    stayed = world.members[1:]
    assert len({member.masters for member in stayed}) == 1
    assert all(applied_steps(member) == list(range(1, 11)) for member in stayed)
    slot = world.epoch_clients[0].index(leaver.identity)
    assert all(set(event.refused) <= {slot} for event in world.settled())


def test_10_a_dropped_client_comes_back_with_the_others_masters_not_with_its_old_ones() -> None:
    world, slow = with_a_slow_member_dropped()

    all_ended_well(world)
    assert slow.trained[-1][1] > 10
    assert {epoch for epoch, _, _ in slow.trained} == {0}, "it came back within the epoch"


def test_a_joiner_that_has_nothing_to_build_the_model_from_gets_everything_from_the_others() -> None:
    """In the reference checkpoints of joiners lack their configuration; here a joiner gets it with the model."""
    world = Stage(3, late=1, total_steps=9, rounds_per_epoch=3, sourceless=(3,))
    world.run(until=lambda: world.state.progress.step == 2)
    late = world.arrive()
    world.run()
    all_ended_well(world)
    assert any(isinstance(event, telemetry.Resynced) for event in late.told)
    assert late.trained
    assert len({member.masters for member in world.members}) == 1


def test_20_who_never_says_finished_stalls_two_rounds_not_every_round() -> None:
    world = Stage(4, total_steps=16, rounds_per_epoch=16)
    silent = world.members[1]
    world.loses_message = lambda source, target, message: source is silent and isinstance(message, Finished)
    moments: dict[int, float] = {}

    def note() -> bool:
        current = world.state.current_round
        if current is not None:
            moments.setdefault(current.height, world.now)
        return all(member.stop is not None for member in world.members)

    world.run(until=note, limit=900)
    all_ended_well(world)
    lengths = [moments[height + 1] - moments[height] for height in range(2, 14)]
    assert sum(length > 9 for length in lengths) <= 2
    assert sum(length < 5 for length in lengths) >= 9


def test_33_reaching_the_end_of_the_run_is_success() -> None:
    world = Stage(3, total_steps=5, rounds_per_epoch=2)
    world.run()
    all_ended_well(world)
    assert {member.stop.reason for member in world.members if member.stop is not None} == {"the run finished after 5 steps"}


def test_34_every_sample_is_trained_and_the_drain_takes_none() -> None:
    world = Stage(3, total_steps=7, rounds_per_epoch=3)
    world.run()
    samples = sorted(
        sample
        for _, _, share in world.members[0].trained + world.members[1].trained + world.members[2].trained
        for batch in share
        for sample in range(batch.first, batch.last + 1)
    )
    assert samples == list(range(7 * 12))
    assert world.state.progress.data_index == 7 * 12


def test_35_a_dead_clients_samples_are_trained_by_the_others() -> None:
    world = Stage(4, total_steps=10, rounds_per_epoch=10)
    world.run(until=lambda: world.state.progress.step == 4)
    world.kill(world.members[2])
    world.run(limit=900)

    all_ended_well(world)
    refused = [event for event in world.settled() if event.refused]
    assert refused
    assert world.state.lost_samples == 0


def test_36_a_client_without_samples_stays_healthy() -> None:
    world = Stage(14, total_steps=6, rounds_per_epoch=6, min_clients=14)
    world.run(until=lambda: world.state.run_state is RunState.Cooldown)
    assert all(client.state is ClientState.Healthy for client in world.state.epoch.clients)
    current = world.state.current_round
    before = world.state.round_at(current.height - 1) if current is not None else None
    assert before is not None
    assert len(shares(world.state, before)) == 12


def test_38_a_share_that_could_not_be_read_is_reported_and_trained_by_others() -> None:
    """The reference removed the batch silently."""
    world = Stage(4, total_steps=8, rounds_per_epoch=8)
    blind = world.members[1]
    world.breaks = lambda member, work: (
        ev.TrainFailed(work.height, "no samples") if member is blind and isinstance(work, act.Train) and work.step == 3 else None
    )
    world.run(limit=900)

    all_ended_well(world)
    assert [event for event in blind.told if isinstance(event, telemetry.Problem) and event.level == "error"]
    assert world.state.lost_samples == 0


def test_52_what_is_remembered_is_bounded_over_a_long_run() -> None:
    world = Stage(4, total_steps=120, rounds_per_epoch=60)
    sizes: list[dict[str, int]] = []

    def note() -> bool:
        if not sizes or world.state.progress.step % 10 == 0:
            sizes.extend(member.machine.size_report() for member in world.members)
        return all(member.stop is not None for member in world.members)

    world.run(until=note, limit=3000)
    all_ended_well(world)
    assert max(size["records"] for size in sizes) <= 7
    assert max(size["candidates"] for size in sizes) <= 7 * 4
    assert max(size["payloads"] for size in sizes) <= 60 * 4  # hashes of one epoch
