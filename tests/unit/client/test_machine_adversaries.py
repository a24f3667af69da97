"""What hostile or broken members say to a client machine, and what it costs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from psyche_core.client.machine import actions as act
from psyche_core.client.machine import events as ev
from psyche_core.client.machine.rounds.round import MAX_CANDIDATES
from psyche_core.client.machine.timeouts import Timeouts
from psyche_core.coordinator.commands import Equivocation
from psyche_core.simulator.members.keys import INSTANCE, signed_by
from psyche_core.telemetry import events as telemetry
from psyche_core.types import BatchId, ClientState, RunState
from psyche_core.wire.messages import Finished, ModelDigest, ModelWanted, Result, commitment_hash
from stage import Member, Stage


def training_world() -> tuple[Stage, Member, Member]:
    """A world in the middle of training step 3, nobody done yet, with an honest client and the liar."""
    world = Stage(4, total_steps=8, rounds_per_epoch=8)
    world.run(until=lambda: world.state.progress.step == 3 and world.state.run_state is RunState.RoundTrain)
    world.train_delay = lambda member: 5.0
    world.run(until=lambda: all(m.machine.notes.newest == 2 and m.busy for m in world.members))  # type: ignore[union-attr]
    return world, world.members[0], world.members[3]


def a_result(world: Stage, liar: Member, *, payload_hash: bytes = b"x" * 32, resigned: bool = False, **changes: object) -> Result:
    """A well signed result of the liar for its share of the current round, changed as asked.

    resigned: the commitment is made and signed again after the change, as a clever liar would.
    """
    notes = liar.machine.notes
    assert notes is not None
    record = notes.records[notes.newest]
    share = record.shares[notes.slot]  # type: ignore[index]  # a member has a slot
    commitment = commitment_hash(
        INSTANCE,
        epoch=notes.number,
        step=record.round.step,
        seed=record.round.seed,
        share=share,
        trainer=liar.identity.p2p,
        payload_hash=payload_hash,
    )
    signature = signed_by(liar.index, commitment)
    result = Result(
        notes.number, record.height, record.round.step, record.round.seed, share, payload_hash, 50, commitment, signature
    )
    result = replace(result, **changes)  # type: ignore[arg-type]  # fields by name
    if not resigned:
        return result

    again = changes.get("commitment") or commitment_hash(
        INSTANCE,
        epoch=result.epoch,
        step=result.step,
        seed=record.round.seed,
        share=result.share,
        trainer=liar.identity.p2p,
        payload_hash=result.payload_hash,
    )
    assert isinstance(again, bytes)
    return replace(result, commitment=again, signature=signed_by(liar.index, again))


def hear(world: Stage, honest: Member, liar: Member, message: Result | Finished | ModelDigest) -> list[act.Action]:
    return honest.machine.handle(ev.MessageSeen(liar.identity.p2p, message), world.now)


def test_a_true_announcement_starts_one_download() -> None:
    """The measure of the tests below: the same announcement, unchanged, is believed."""
    world, honest, liar = training_world()
    assert len([a for a in hear(world, honest, liar, a_result(world, liar)) if isinstance(a, act.FetchPayload)]) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"commitment": b"c" * 32},
        {"signature": bytes(64)},
        {"share": (BatchId(0, 999),)},
        {"share": (BatchId(0, 999),), "resigned": True},
        {"step": 77},
        {"step": 77, "resigned": True},
        {"commitment": b"c" * 32, "resigned": True},
        {"payload_bytes": 10**9},
        {"height": 999},
        {"epoch": 999},
    ],
)
def test_a_false_announcement_starts_no_download(changes: dict[str, Any]) -> None:
    world, honest, liar = training_world()
    assert not [a for a in hear(world, honest, liar, a_result(world, liar, **changes)) if isinstance(a, act.FetchPayload)]


def test_14_many_results_for_one_share_start_one_download_and_one_warning() -> None:
    """Reference client 9.2-14: a trainer could announce unlimited results, each downloaded and kept."""
    world, honest, liar = training_world()
    actions: list[act.Action] = []
    for number in range(100):
        actions += hear(world, honest, liar, a_result(world, liar, payload_hash=bytes([number]) * 32))

    notes = honest.machine.notes
    assert notes is not None
    slot = liar.machine.notes.slot  # type: ignore[union-attr]
    assert len([a for a in actions if isinstance(a, act.FetchPayload)]) <= 1
    assert len(notes.records[notes.newest].candidates[slot]) == MAX_CANDIDATES  # type: ignore[index]
    warnings = [a for a in actions if isinstance(a, act.Notify) and isinstance(a.event, telemetry.Problem)]
    assert len(warnings) == 1
    assert "two results" in str(warnings[0])


def proofs(actions: list[act.Action]) -> list[Equivocation]:
    return [a.command for a in actions if isinstance(a, act.Send) and isinstance(a.command, Equivocation)]


def test_proof_of_two_results_is_repeated_until_it_is_answered() -> None:
    """A server that was away swallowed it, and a share that nobody applied stayed accepted (simulator, seed 2924)."""
    world, honest, liar = training_world()
    first = hear(world, honest, liar, a_result(world, liar, payload_hash=b"a" * 32))
    (proof,) = proofs(first + hear(world, honest, liar, a_result(world, liar, payload_hash=b"b" * 32)))

    timeout = Timeouts().evidence
    assert proofs(honest.machine.handle(ev.TimePassed(), world.now + timeout)) == []
    assert proofs(honest.machine.handle(ev.TimePassed(), world.now + timeout + 0.1)) == [proof]
    assert proofs(honest.machine.handle(ev.TimePassed(), world.now + timeout + 0.2)) == []
    honest.machine.handle(ev.CommandAnswered(proof, "InvalidEvidence"), world.now + timeout + 0.3)
    assert proofs(honest.machine.handle(ev.TimePassed(), world.now + 10 * timeout)) == []


@pytest.mark.parametrize("void", [True, False])
def test_proof_is_repeated_until_its_share_is_void_whatever_its_member_was_ejected_for(void: bool) -> None:
    """Who was ejected by proof about another round may still have a share in this one that nobody applied (seed 247215)."""
    world, honest, liar = training_world()
    first = hear(world, honest, liar, a_result(world, liar, payload_hash=b"a" * 32))
    (proof,) = proofs(first + hear(world, honest, liar, a_result(world, liar, payload_hash=b"b" * 32)))

    slot = liar.machine.notes.slot  # type: ignore[union-attr]
    assert slot is not None
    clients = tuple(
        replace(client, state=ClientState.Ejected) if place == slot else client
        for place, client in enumerate(world.state.epoch.clients)
    )
    rounds = tuple(
        replace(stored, voided=(slot,)) if void and stored.height == proof.height else stored
        for stored in world.state.epoch.rounds
    )
    state = replace(world.state, epoch=replace(world.state.epoch, clients=clients, rounds=rounds))
    honest.machine.handle(ev.StateSeen(state), world.now)
    repeated = proofs(honest.machine.handle(ev.TimePassed(), world.now + 10 * Timeouts().evidence))
    assert repeated == ([] if void else [proof])


def test_who_asks_for_the_final_model_and_never_says_its_digest_is_not_waited_for_long() -> None:
    """One liar held everybody at the run's end for the whole patience for a payload."""
    world = Stage(4, total_steps=4, rounds_per_epoch=4)
    *honest, liar = world.members
    liar.liar = True
    world.loses_message = lambda source, target, message: source is liar and isinstance(message, ModelDigest) and message.ended
    world.run(
        until=lambda: (
            world.state.run_state is RunState.Finished
            and all(member.machine.notes is not None and member.machine.notes.closed for member in honest)
        )
    )
    closed, timeouts = world.now, honest[0].machine._state.timeouts
    for member in honest:
        notes = member.machine.notes
        assert notes is not None
        member.deliver(ev.MessageSeen(liar.identity.p2p, ModelWanted(notes.number, world.state.progress.step - 1, notes.seed)))
    stopped: dict[str, float] = {}

    def all_stopped() -> bool:
        stopped.update({member.name: world.now for member in honest if member.stop is not None and member.name not in stopped})
        return len(stopped) == len(honest)

    world.run(until=all_stopped)
    assert all(member.stop is not None and member.stop.success for member in honest)
    patience = timeouts.offers + timeouts.leaving
    assert patience <= min(stopped.values()) - closed, "it may have to wait for offers, and then chooses"
    assert max(stopped.values()) - closed < patience + 2 < timeouts.payload


def test_another_clients_share_cannot_be_answered() -> None:
    world, honest, liar = training_world()
    result = a_result(world, liar)
    actions = honest.machine.handle(ev.MessageSeen(world.members[1].identity.p2p, result), world.now)
    assert not [a for a in actions if isinstance(a, act.FetchPayload)]


def test_a_stranger_is_not_heard() -> None:
    world, honest, liar = training_world()
    actions = honest.machine.handle(ev.MessageSeen(b"s" * 32, a_result(world, liar)), world.now)
    assert not [a for a in actions if isinstance(a, act.FetchPayload)]


def test_19_a_payload_that_does_not_fit_costs_its_sender_the_round_and_nobody_else_anything() -> None:
    """Reference client 9.1-3 and 9.2-13: a bad result was left out by some and crashed others."""
    world = Stage(4, total_steps=8, rounds_per_epoch=8)
    liar = world.members[3]
    world.invalid = lambda member, payload_hash: payload_hash in liar.own
    world.run(until=lambda: all(m.stop is not None for m in world.members if m is not liar), limit=2000)

    assert world.state.run_state is RunState.Finished
    assert len({member.masters for member in world.members[:3]}) == 1
    assert all(not set(results) & liar.own for _, results in world.members[0].applied)


def test_an_accepted_payload_that_our_table_refuses_is_left_out_and_the_difference_is_noticed() -> None:
    """The check is the same everywhere, so this is a broken client or a lying quorum: it must not hang, and not go on unlike."""
    world = Stage(4, total_steps=8, rounds_per_epoch=8)
    source, target = world.members[0], world.members[3]
    target.liar = True
    world.invalid = lambda member, payload_hash: member is target and payload_hash in source.own
    world.run(until=lambda: all(member.stop is not None for member in world.members), limit=900)

    assert target.stop is not None
    assert [event for event in target.told if isinstance(event, telemetry.Problem) and "differs" in event.message]
    if target.stop.success:  # what it could not read, it took from the others' model
        assert target.masters == world.members[1].masters


def test_a_false_digest_of_one_member_moves_nobody() -> None:
    world, honest, liar = training_world()
    hear(world, honest, liar, ModelDigest(0, False, b"f" * 32, world.state.epoch.seed))
    assert honest.stop is None
    world.run(until=lambda: world.state.progress.step == 6)
    assert honest.stop is None
