"""A warmup that is abandoned and repeated has the same epoch number: what is asked in it must not look like the first request."""

from __future__ import annotations

import pytest

from psyche_core.client.machine.events import MessageSeen
from psyche_core.coordinator.commands import Pause, Resume
from psyche_core.telemetry.events import Resynced
from psyche_core.types import RunState
from psyche_core.wire.messages import Message, ModelDigest, ModelWanted
from stage import Member, Stage


def as_transports_do(world: Stage) -> list[tuple[str, Message]]:
    """A message is known by its bytes: a process is given equal ones of one sender once (`p2p.message_log`). Returns the rest."""
    seen: set[tuple[str, int, str, Message]] = set()
    repeated: list[tuple[str, Message]] = []

    def deaf(source: Member, target: Member, message: Message) -> bool:
        known = (target.name, target.incarnation, source.name, message)
        if known in seen:
            repeated.append((source.name, message))
            return True

        seen.add(known)
        return False

    world.loses_message = deaf
    return repeated


@pytest.mark.parametrize("transport", ["delivers each", "delivers equal bytes once"])
def test_who_lacks_the_model_gets_it_in_a_second_warmup(transport: str) -> None:
    """One member has the model. Its offer is waited with for more offers when the warmup is abandoned."""
    world = Stage(3, total_steps=12, rounds_per_epoch=6)
    repeated = as_transports_do(world) if transport == "delivers equal bytes once" else []
    _, *empty = world.members
    world.run(until=lambda: world.state.run_state is RunState.WaitingForMembers and world.state.progress.epoch == 1)
    for member in empty:
        world.restart(member)
    world.run(until=lambda: world.state.run_state is RunState.Warmup)
    world.run(until=lambda: all(member.machine.notes and member.machine.notes.resync.offers for member in empty))
    assert not [told for member in empty for told in member.told if isinstance(told, Resynced)]
    world.server.apply(Pause())
    world.server.apply(Resume())
    world.run(until=lambda: world.state.run_state is RunState.Warmup)
    assert world.state.progress.epoch == 1
    world.run(until=lambda: world.state.run_state is not RunState.Warmup)
    asked = {name for name, message in repeated if isinstance(message, ModelWanted)}
    for member in empty:
        assert Resynced(1, 6) in member.told, f"not delivered, as equal to earlier ones: ModelWanted of {asked}"


def test_a_digest_of_the_next_warmup_that_comes_before_its_state_is_kept() -> None:
    """It names another seed under the same epoch number, and is not delivered again."""
    world = Stage(3, total_steps=12, rounds_per_epoch=6, warmup_time=30)
    world.run(until=lambda: world.state.run_state is RunState.Warmup)
    member, peer, _ = world.members
    world.run(until=lambda: member.machine.notes is not None)
    first = member.machine.notes
    assert first is not None
    early = ModelDigest(first.number, False, b"d" * 32, first.seed ^ 1)
    member.receive(member.incarnation, MessageSeen(peer.identity.p2p, early))
    assert not first.digests.senders(ended=False)
    assert member.machine.size_report()["early_messages"] == 1
