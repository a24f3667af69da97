"""Equal bytes in several rounds and from several slots: they are kept as long as any round may apply them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from party import ChainTrainer, Done, Party, trainers
from psyche_core.builtin.memory_transport import MemoryNetwork, MemoryTransport
from psyche_core.client.machine import actions as act
from psyche_core.client.machine import events as ev
from psyche_core.client.machine.buffers import MAX_CHECKS, PayloadBuffer
from psyche_core.interfaces.data import Samples
from psyche_core.telemetry import events as telemetry
from stage import Member, Stage

ROUNDS = 12
"""More than are kept for laggards: the bytes of the first round would be gone twice over."""


class Repeater(ChainTrainer):
    """Sends the same bytes in every round."""

    sends = b"good, as always"

    def train(self, step: int, samples: Samples) -> Done:
        return Done(4.0, samples.count * samples.sequence_length, 0.01, self.sends)


class Zero(Repeater):
    """An honest optimizer whose results are all zeros, which it writes in no bytes at all."""

    sends = b""

    def check(self, payload: bytes) -> None:
        if payload:
            super().check(payload)


class AcceptsNothingness(ChainTrainer):
    """Takes an empty payload for one of zeros."""

    def check(self, payload: bytes) -> None:
        if payload:
            super().check(payload)


def problems(party: Party) -> list[str]:
    return [event.message for told in party.events for event in told if isinstance(event, telemetry.Problem)]


async def everything_is_applied_by_all(party: Party) -> None:
    await party.play()
    count = len(party.trainers)
    assert party.failures == {}
    assert problems(party) == []
    assert [trainer.applied for trainer in party.trainers] == [[(step, count) for step in range(1, ROUNDS + 1)]] * count
    assert len({trainer.weights for trainer in party.trainers}) == 1
    assert all(party.ended(index).success for index in range(count))


@pytest.mark.slow
async def test_who_sends_the_same_bytes_in_every_round_ends_nobody() -> None:
    """Each honest client ended with a KeyError in the sixth round: the bytes had gone with the first round's tag."""
    party = Party([*trainers(2), Repeater("repeater")], total_steps=ROUNDS, rounds_per_epoch=ROUNDS)
    await everything_is_applied_by_all(party)


@pytest.mark.slow
async def test_two_honest_results_of_nothing_are_two_results() -> None:
    members = [AcceptsNothingness("full"), Zero("zero-1"), Zero("zero-2")]
    await everything_is_applied_by_all(Party(members, total_steps=ROUNDS, rounds_per_epoch=ROUNDS))


class Copycat(ChainTrainer):
    """Sends what another member sent four steps ago."""

    def __init__(self, name: str, *, of: ChainTrainer) -> None:
        super().__init__(name)
        self.of = of

    def train(self, step: int, samples: Samples) -> Done:
        copied = f"good{self.of.name} {step - 4}" if step > 4 else f"good{self.name} {step}"
        return Done(4.0, samples.count * samples.sequence_length, 0.01, copied.encode())


@pytest.mark.slow
async def test_who_sends_another_s_old_bytes_ends_nobody() -> None:
    honest = trainers(2)
    party = Party([*honest, Copycat("copycat", of=honest[0])], total_steps=ROUNDS, rounds_per_epoch=ROUNDS)
    await everything_is_applied_by_all(party)


async def test_the_bytes_stay_with_the_transport_for_who_asks_for_them_late() -> None:
    """Published in one round, announced again in a later one: our transport keeps them until the later one expires."""
    network = MemoryNetwork()
    one, two = (MemoryTransport(network, hashlib.sha256(name).digest()) for name in (b"one", b"two"))
    async with one, two:
        for transport in (one, two):
            await transport.set_peers({one.peer_id: b"", two.peer_id: b""})
        payload_hash = await one.publish(b"", tag=1)
        for tag in (1, 7):
            assert await two.fetch(payload_hash, sources=[one.peer_id], max_bytes=9, timeout=5.0, tag=tag) == b""
        await one.expire(8)
        await two.expire(7)
        assert await two.fetch(payload_hash, sources=[], max_bytes=9, timeout=5.0, tag=7) == b""


# ------------------------------------------------------------------------------------------------ the machine


def test_payloads_that_were_lost_are_asked_for_again() -> None:
    """A worker that lost bytes in whatever way answers PayloadsLost: the round is applied when they are here again."""
    world = Stage(3)
    loser, lost = world.members[0], list[bytes]()

    def lose(member: Member, work: act.Work) -> ev.WorkDone | None:
        if member is not loser or not isinstance(work, act.Apply) or work.step != 3 or lost:
            return None

        gone = tuple(payload_hash for payload_hash in work.payload_hashes if payload_hash not in member.own)
        lost.extend(gone)
        for payload_hash in gone:
            del member.payloads[payload_hash]
        return ev.PayloadsLost(work.height, gone)

    world.breaks = lose
    world.run()
    assert lost
    assert loser.applied == world.members[1].applied == world.members[2].applied
    assert not [event for event in loser.told if isinstance(event, telemetry.Resynced)], (
        "they could be had, so no model was fetched"
    )
    assert all(member.stop is not None and member.stop.success for member in world.members)


def test_payloads_that_nobody_has_any_more_lead_to_a_resync() -> None:
    world = Stage(3, total_steps=120, rounds_per_epoch=120)
    world.train_delay = lambda member: 1.0
    loser, lost = world.members[0], set[bytes]()

    def lose(member: Member, work: act.Work) -> ev.WorkDone | None:
        if member is loser and isinstance(work, act.Apply) and work.step == 3:
            lost.update(set(work.payload_hashes) - member.own)
            return ev.PayloadsLost(work.height, tuple(lost))
        return None

    world.breaks = lose
    world.loses_payload = lambda source, target, payload_hash: target is loser and payload_hash in lost
    world.run()
    assert [event for event in loser.told if isinstance(event, telemetry.Resynced)]
    assert {member.masters for member in world.members} == {world.members[1].masters}
    assert all(member.stop is not None and member.stop.success for member in world.members)


# ------------------------------------------------------------------------------------------------ the inbox

HASHES = [bytes([number]) * 32 for number in range(3)]
MOVES = st.lists(
    st.tuples(
        st.sampled_from(["want", "arrive", "fail", "spoil", "lose", "expire"]), st.sampled_from(HASHES), st.integers(0, 12)
    ),
    max_size=40,
)


@given(MOVES)
def test_what_the_inbox_holds_is_what_a_shelf_with_tags_holds(moves: Sequence[tuple[str, bytes, int]]) -> None:
    """Against a plain model of the bytes themselves: kept with the highest tag they came with, gone when it expires."""
    inbox, shelf, expired = PayloadBuffer(), dict[bytes, int](), -1
    for move, payload_hash, tag in moves:
        match move:
            case "want":
                live = inbox.live(tag)
                wanted = inbox.wants(payload_hash, tag=live)
                assert not (wanted and shelf.get(payload_hash, -1) >= live), "what is here for long enough is not fetched"
                assert not inbox.wants(payload_hash, tag=live), "asked for twice"
            case "arrive":
                inbox.checked(payload_hash, valid=True, tag=tag)
                if tag >= expired:
                    shelf[payload_hash] = max(shelf.get(payload_hash, -1), tag)
            case "fail":
                inbox.fetch_failed(payload_hash)
            case "spoil":
                inbox.check_failed(payload_hash)
            case "lose":
                inbox.lost(payload_hash)
                shelf.pop(payload_hash, None)
            case "expire":
                inbox.expire(tag)
                expired = max(expired, tag)
                shelf = {known: kept for known, kept in shelf.items() if kept >= expired}
        assert inbox.valid == shelf


def test_a_payload_that_expired_is_fetched_again() -> None:
    inbox = PayloadBuffer()
    assert inbox.wants(HASHES[0], tag=1)
    inbox.checked(HASHES[0], valid=True, tag=1)
    assert not inbox.wants(HASHES[0], tag=1)
    assert inbox.wants(HASHES[0], tag=2), "it is here, but for the first round only"
    inbox.checked(HASHES[0], valid=True, tag=2)
    inbox.expire(3)
    assert not inbox.holds(HASHES[0], tag=2)
    assert inbox.wants(HASHES[0], tag=3)


def test_a_check_without_a_verdict_is_repeated_a_few_times_only() -> None:
    inbox = PayloadBuffer()
    for _ in range(MAX_CHECKS):
        assert inbox.wants(HASHES[0], tag=1)
        inbox.check_failed(HASHES[0])
    assert not inbox.wants(HASHES[0], tag=1)
    assert HASHES[0] not in inbox.invalid
