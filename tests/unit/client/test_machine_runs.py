"""Whole runs of real client machines against the real coordinator, in virtual time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psyche_core.client.machine import actions as act
from psyche_core.client.machine import events as ev
from psyche_core.client.machine.epoch import round_tag
from psyche_core.client.machine.machine import ClientMachine
from psyche_core.client.machine.timeouts import Timeouts
from psyche_core.coordinator.commands import ClientsExited, HealthCheck, Withdraw, Witness
from psyche_core.simulator.invariants.replica_checker import ProgressChecker
from psyche_core.simulator.script import Fault
from psyche_core.telemetry import events as telemetry
from psyche_core.types import BatchId, NodeIdentity, RunState
from stage import Member, Stage


def assert_all_equal(world: Stage) -> None:
    weights = {member.masters for member in world.survivors()}
    assert len(weights) == 1, [m.applied for m in world.survivors()]


def sample_numbers(shares: list[tuple[BatchId, ...]]) -> list[int]:
    return [number for share in shares for batch in share for number in range(batch.first, batch.last + 1)]


def accepted_samples(world: Stage) -> list[int]:
    """Samples of every accepted share, from what the trainers were given and the coordinator decided."""
    found: list[int] = []
    for event in world.settled():
        for slot in event.accepted:
            member = next(m for m in world.members if m.machine.identity == world.epoch_clients[event.epoch][slot])
            found += sample_numbers(
                [share for epoch, step, share in member.trained if (epoch, step) == (event.epoch, event.step)]
            )
    return found


@pytest.mark.parametrize("clients", [1, 2, 3, 8])
@pytest.mark.parametrize("witness_nodes", [0, 1])
def test_a_quiet_run_applies_every_trained_round_on_all_replicas(clients: int, witness_nodes: int) -> None:
    world = Stage(clients, witness_nodes=witness_nodes, seed=clients)
    world.run()

    assert world.state.run_state is RunState.Finished
    assert all(member.stop is not None and member.stop.success for member in world.members)
    assert_all_equal(world)
    for member in world.members:
        assert [step for step, _ in member.applied] == list(range(1, 10))
        assert all(len(results) == clients for _, results in member.applied)
    assert world.state.lost_samples == 0
    assert world.state.requeue == ()


def test_every_epoch_end_is_compared_and_equal() -> None:
    world = Stage(3)
    world.run()

    for member in world.members:
        ends = [event for event in member.told if isinstance(event, telemetry.EpochDigest)]
        assert [end.epoch for end in ends] == [0, 1, 2]
        assert not [event for event in member.told if isinstance(event, telemetry.ReplicasDiffer)]
    assert len({tuple(e.sha256 for e in m.told if isinstance(e, telemetry.EpochDigest)) for m in world.members}) == 1


def test_rounds_end_long_before_their_time_limit() -> None:
    """Opportunistic witnessing: with everybody present, rounds take as long as training, not max_round_train_time."""
    world = Stage(3, total_steps=12, rounds_per_epoch=12)
    started = world.now
    world.run()

    assert world.now - started < 12 * 1.2 + 15
    sent = [event for member in world.members for event in member.told if isinstance(event, telemetry.WitnessSent)]
    assert sum(event.opportunistic for event in sent) > len(sent) * 0.9


def test_no_sample_is_lost_or_applied_twice_when_a_client_dies() -> None:
    """F2 and F14 with a crash in the middle of a round."""
    world = Stage(4, total_steps=12, rounds_per_epoch=6)
    victim = world.members[1]
    world.run(until=lambda: world.state.progress.step == 3 and world.state.run_state is RunState.RoundTrain)
    world.kill(victim)
    world.run(limit=900)

    assert world.state.run_state is RunState.Finished
    assert_all_equal(world)
    samples = sorted(accepted_samples(world) + sample_numbers([world.state.requeue]))
    assert samples == sorted(set(samples))
    assert samples == list(range(len(samples)))
    exited = [event for event in world.coordinator_events if isinstance(event, ClientsExited)]
    slot = world.epoch_clients[0].index(victim.identity)
    assert [event.slots for event in exited] == [(slot,)], "the dead client is reported and dropped, nobody else"
    assert not [code for command, code in world.refused if isinstance(command, HealthCheck)]
    assert all(victim.index not in member.peers for member in world.survivors())


@pytest.mark.parametrize("victims", [(0,), (2,), (0, 1)])
def test_survivors_stay_equal_and_finish(victims: tuple[int, ...]) -> None:
    world = Stage(4, total_steps=10, rounds_per_epoch=5, seed=7)
    world.run(until=lambda: world.state.progress.step == 4)
    for victim in victims:
        world.kill(world.members[victim])
    world.run(limit=1200)

    assert world.state.run_state is RunState.Finished
    assert_all_equal(world)
    assert not [code for command, code in world.refused if isinstance(command, HealthCheck) and code == "InvalidHealthCheck"]


def test_a_trainer_that_is_a_little_slower_is_waited_for_and_loses_nothing() -> None:
    world = Stage(3, total_steps=6, rounds_per_epoch=6)
    slow = world.members[2]
    world.train_delay = lambda member: 0.4 if member is slow else 0.3
    world.run(limit=900)

    assert_all_equal(world)
    assert all(len(results) == 3 for _, results in slow.applied)


def test_a_trainer_slower_than_the_round_is_left_out_not_followed() -> None:
    """Its samples come again (F14), the others go on, and it stays equal because it still applies what is accepted."""
    world = Stage(4, total_steps=8, rounds_per_epoch=8)
    slow = world.members[3]
    world.train_delay = lambda member: 60.0 if member is slow else 0.3
    world.run(until=lambda: all(m.stop is not None for m in world.members if m is not slow), limit=2000)

    assert world.state.run_state is RunState.Finished
    others = [member for member in world.members if member is not slow]
    assert len({member.masters for member in others}) == 1
    samples = sorted(accepted_samples(world))
    assert samples == sorted(set(samples))


def test_a_payload_missing_at_one_client_is_fetched_from_another_holder() -> None:
    """F11: client 2 cannot reach client 0 at all, so it needs client 1's copies."""
    world = Stage(3, total_steps=6, rounds_per_epoch=3)
    source, target = world.members[0], world.members[2]
    world.loses_payload = lambda s, t, payload_hash: s is source and t is target
    world.run(limit=900)

    assert_all_equal(world)
    assert world.state.run_state is RunState.Finished


def test_18_an_accepted_payload_that_comes_late_is_waited_for() -> None:
    """F11. Reference client 9.2-18: who missed a consensus payload died, and a batch it never heard of was skipped (9.1-2)."""
    world = Stage(4, total_steps=8, rounds_per_epoch=8)
    source, target = world.members[0], world.members[3]
    world.run(until=lambda: world.state.progress.step == 3)
    until = world.now + 15
    world.loses_payload = lambda s, t, payload_hash: t is target and payload_hash in source.own and world.now < until
    world.run(limit=900)

    assert world.state.run_state is RunState.Finished
    assert target.stop is not None
    assert target.stop.success
    assert_all_equal(world)
    assert all(len(results) == 4 for _, results in target.applied[:4])


def resynced(member: Member) -> list[int]:
    """Steps at which a member took the others' masters."""
    return [event.step for event in member.told if isinstance(event, telemetry.Resynced)]


def fetches(world: Stage) -> list[act.FetchModel]:
    """Filled with what members order from now on."""
    seen: list[act.FetchModel] = []

    def look(member: Member, work: act.Work) -> None:
        if isinstance(work, act.FetchModel):
            seen.append(work)

    world.breaks = look
    return seen


def test_31_an_accepted_payload_nobody_gives_makes_the_client_resync_not_die() -> None:
    """Reference client 9.3-31: a laggard that missed one consensus payload terminated."""
    world = Stage(4, total_steps=16, rounds_per_epoch=16)
    source, target = world.members[0], world.members[3]
    world.run(until=lambda: world.state.progress.step == 3)
    withheld = set(source.own)
    world.loses_payload = lambda s, t, payload_hash: (
        t is target and payload_hash in source.own - withheld and world.state.progress.step < 6
    )
    world.run(limit=900)

    assert all(member.stop is not None and member.stop.success for member in world.members)
    assert_all_equal(world)
    assert world.state.run_state is RunState.Finished


def test_a_withheld_payload_everybody_lacks_costs_its_trainer_the_round_only() -> None:
    world = Stage(4, total_steps=6, rounds_per_epoch=6)
    liar = world.members[0]
    world.loses_payload = lambda s, t, payload_hash: s is liar
    world.run(until=lambda: all(m.stop is not None for m in world.members[1:]), limit=2000)

    assert world.state.run_state is RunState.Finished
    assert len({member.masters for member in world.members[1:]}) == 1


def test_1_a_client_with_another_model_takes_the_others_before_the_first_round() -> None:
    """Reference client 9.1-1: no hash of the weights was ever exchanged."""
    world = Stage(4)
    odd = world.members[1]
    odd.odd = True
    world.run()

    assert resynced(odd)[0] == 0
    assert [event for event in world.members[0].told if isinstance(event, telemetry.ReplicasDiffer)]
    assert all(member.stop is not None and member.stop.success for member in world.members)
    assert_all_equal(world)


def test_without_a_majority_for_any_model_nobody_trains_on_unlike_replicas() -> None:
    world = Stage(3)
    world.progress = ProgressChecker(bound=5000.0, excused_until=0.0)
    for member in world.members:
        member.odd = member.liar = True
    world.run(limit=5000)

    ended_well = [member for member in world.members if member.stop is not None and member.stop.success]
    assert len(ended_well) < 3
    assert len({member.masters for member in ended_well}) <= 1
    assert not [member.trained for member in world.members if member not in ended_well and member.trained]


def test_a_replica_that_drifts_during_an_epoch_is_repaired_in_the_same_epoch() -> None:
    world = Stage(4, total_steps=24, rounds_per_epoch=24)
    odd = world.members[2]
    world.run(until=lambda: world.state.progress.step == 5)
    odd.corrupt(bit=2)
    seen = fetches(world)
    world.run()

    assert len(resynced(odd)) == 1
    assert not seen[-1].epoch_end
    assert odd.trained[-1][1] > resynced(odd)[0]
    assert {epoch for epoch, _, _ in odd.trained} == {0}
    assert all(member.stop is not None and member.stop.success for member in world.members)
    assert_all_equal(world)


def test_replicas_that_changed_between_epochs_are_not_passed_on_and_find_out_themselves() -> None:
    """Two of three holders, each with another wrong model: no majority could tell a joiner which one is right."""
    world = Stage(3, late=1, total_steps=12, rounds_per_epoch=6)
    world.run(until=lambda: world.state.progress.step == 3)
    late = world.arrive()
    sound, *odd = world.members[:3]
    world.run(until=lambda: all(member.machine.notes.closed for member in (sound, *odd)))  # type: ignore[union-attr]  # each has
    for number, member in enumerate(odd, start=1):
        member.corrupt(bit=number)
    right = sound.masters
    world.run(until=lambda: bool(resynced(late)))

    assert late.masters == right
    world.run()
    assert [resynced(member) for member in (sound, *odd, late)] == [[], [6], [6], [6]]
    assert all("by itself" in str(member.told) for member in odd)
    assert all(member.stop is not None and member.stop.success for member in world.members)
    assert_all_equal(world)


def test_leaving_when_asked_withdraws_and_the_others_go_on() -> None:

    world = Stage(4, total_steps=8, rounds_per_epoch=8)
    leaver = world.members[1]
    world.run(until=lambda: world.state.progress.step == 3)
    leaver.ask_to_leave()
    world.run(limit=900)

    assert leaver.stop is not None
    assert leaver.stop.success
    others = [member for member in world.members if member is not leaver]
    assert len({member.masters for member in others}) == 1
    assert world.state.run_state is RunState.Finished


def test_who_leaves_last_waits_for_nobody_to_take_its_results() -> None:
    world = Stage(1, total_steps=8, rounds_per_epoch=8, min_clients=1, max_round_train_time=60)
    (last,) = world.members
    world.run(until=lambda: world.state.progress.step == 3)
    asked = world.now
    last.ask_to_leave()
    world.run(until=lambda: last.stop is not None)
    assert last.stop is not None
    assert last.stop.success
    assert world.now - asked < Timeouts().leaving / 2


def test_a_client_still_training_when_the_next_epoch_begins_finishes_the_last_one_first() -> None:
    world = Stage(4, total_steps=9, rounds_per_epoch=3)
    slow = world.members[3]
    world.run(until=lambda: world.state.progress.step == 3 and world.state.run_state is RunState.RoundTrain)
    world.train_delay = lambda member: 3.0 if member is slow else 0.3
    world.run(until=lambda: world.state.run_state is RunState.Cooldown)
    world.train_delay = lambda member: 0.3
    world.run(limit=900)

    assert all(member.stop is not None and member.stop.success for member in world.members)
    assert_all_equal(world)
    assert [step for step, _ in slow.applied] == list(range(1, 10))


def test_7_a_late_joiner_gets_the_model_from_the_members_at_the_next_epoch() -> None:
    """Reference client 9.1-7: one that finished its start late joined training without the missed applies."""
    world = Stage(3, late=1, total_steps=12, rounds_per_epoch=6)
    world.run(until=lambda: world.state.progress.step == 3)
    late = world.arrive()
    seen = fetches(world)
    world.run()

    assert late.stop is not None
    assert late.stop.success
    assert resynced(late) == [6]
    assert [(work.step, work.epoch_end) for work in seen] == [(6, True)], "which is kept as long as other ends"
    assert late.trained
    assert_all_equal(world)


def test_a_restarted_client_never_signs_a_second_result_for_a_share() -> None:
    # Long enough to give up on what only the earlier process announced: nobody repeats it here.
    world = Stage(4, total_steps=60, rounds_per_epoch=60)
    gone = world.members[3]
    world.run(until=lambda: world.state.progress.step == 6 and bool(gone.own))
    world.train_delay = lambda member: 0.1 if member is gone else 9.5
    world.run(until=lambda: gone.trained[-1][1] == 8)
    world.train_delay = lambda member: 0.4
    before = {(epoch, step) for epoch, step, _ in gone.trained}
    world.restart(gone)  # it has the model again while the others still train the round in which it signed a result
    world.run(until=lambda: gone.running and gone.machine.masters_at is not None)
    current = world.state.current_round
    assert current is not None
    assert current.step == 8
    world.run()

    after = [(epoch, step) for epoch, step, _ in gone.trained]
    assert before.isdisjoint(after[len(before) :])
    assert after[len(before) :], "it came back and trained in the same epoch"
    assert all(member.stop is not None and member.stop.success for member in world.members)
    assert_all_equal(world)


def skipping(clients: int) -> Fault:
    """States come late, and then only some of them."""
    return Fault(kind="slow-rpc", start=0.0, duration=1500.0, nodes=tuple(range(clients)), amount=1.0)


def test_a_client_that_misses_states_follows_all_the_same() -> None:
    """Reference client 9.1-8: a skipped coordinator state left the step machine in the old round."""
    world = Stage(3, total_steps=20, rounds_per_epoch=7, seed=3, faults=(skipping(3),))
    world.run(limit=1500)

    assert_all_equal(world)
    assert world.state.run_state is RunState.Finished


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    clients=st.integers(2, 6),
    witness_nodes=st.integers(0, 2),
    skip=st.booleans(),
    kill_at=st.one_of(st.none(), st.integers(1, 8)),
)
def test_whatever_the_timing_survivors_are_equal_and_no_sample_is_applied_twice(
    seed: int, clients: int, witness_nodes: int, skip: bool, kill_at: int | None
) -> None:
    world = Stage(clients, seed=seed, witness_nodes=witness_nodes, faults=(skipping(clients),) if skip else ())
    world.train_delay = lambda member: world.random.choice([0.1, 0.5, 3.0])
    if kill_at is not None and clients > 3:
        world.run(until=lambda: world.state.progress.step >= kill_at, limit=2000)
        world.kill(world.members[seed % clients])
    world.run(until=lambda: world.state.run_state is RunState.Finished, limit=4000)
    world.run(limit=600)

    finished = [member for member in world.survivors() if member.stop is not None and member.stop.success]
    assert finished
    assert len({member.masters for member in finished}) == 1
    samples = accepted_samples(world)
    assert len(samples) == len(set(samples))
    everything = sorted(samples + sample_numbers([world.state.requeue]))
    assert everything == list(range(len(everything)))


def test_statements_carry_the_witness_s_own_figures() -> None:
    world = Stage(2, total_steps=3, rounds_per_epoch=3)
    for member in world.members:
        member.deliver(ev.BandwidthSeen(1234.0))
    world.run()

    metadata = [command.metadata for command in world.commands if isinstance(command, Witness)][-1]
    assert metadata is not None
    assert (metadata.bandwidth_per_sec, metadata.tokens_per_sec, metadata.loss) == (1234.0, 128.0, 2.0)


def test_who_starts_while_witnesses_speak_loads_once_the_round_is_decided() -> None:
    """What they are about to accept would be missing in the model that it loads, see `LOADABLE`."""
    world = Stage(4, total_steps=8, rounds_per_epoch=8)
    world.run(until=lambda: world.state.progress.step == 4 and world.state.run_state is RunState.RoundTrain)
    key = world.members[0].identity.p2p
    anew = ClientMachine(NodeIdentity(key, key), world.state.run_id, sign=lambda _: bytes(64), timeouts=Timeouts())
    speaking = replace(world.state, run_state=RunState.RoundWitness)
    assert not [action for action in anew.handle(ev.StateSeen(speaking), 0.0) if isinstance(action, act.Load)]
    loads = [action for action in anew.handle(ev.StateSeen(world.state), 0.1) if isinstance(action, act.Load)]
    assert [load.state for load in loads] == [world.state]


def test_a_new_process_begins_with_the_messages_of_its_first_epoch() -> None:
    """Of earlier ones it knows no id, so a liar could give it an honest member's old messages, up to that member's share."""
    world = Stage(4, total_steps=8, rounds_per_epoch=3)
    world.run(until=lambda: world.state.progress.epoch == 1 and world.state.run_state is RunState.Warmup)
    key = world.members[0].identity.p2p
    anew = ClientMachine(NodeIdentity(key, key), world.state.run_id, sign=lambda _: bytes(64), timeouts=Timeouts())
    actions = anew.handle(ev.StateSeen(world.state), 0.0)
    assert [action for action in actions if isinstance(action, act.Expire)] == [act.Expire(round_tag(1, 0))]
    stayed = world.members[1].machine.handle(ev.StateSeen(world.state), world.now)
    assert not [action for action in stayed if isinstance(action, act.Expire)], "others may still need what it has"


def test_who_is_leaving_while_the_coordinator_goes_back_leaves_and_does_not_begin_anew() -> None:
    world = Stage(4, total_steps=40, rounds_per_epoch=40)
    world.run(until=lambda: world.state.progress.step == 4)
    leaver, older = world.members[0], world.state
    world.run(until=lambda: leaver.machine.state is not None and leaver.machine.state.progress.step == 8)
    leaver.machine.handle(ev.LeaveRequested(), world.now)
    actions = leaver.machine.handle(ev.StateSeen(older), world.now)
    assert [type(action.command) for action in actions if isinstance(action, act.Send)] == [Withdraw]
    stop = leaver.machine.stopped
    assert stop is not None
    assert (stop.success, stop.again) == (True, False)
    assert "as asked" in stop.reason
