"""A simulated member that writes down what it does, and whose messages, payloads and work the test decides about."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from psyche_core.client.machine import actions as act
from psyche_core.client.machine import events as ev
from psyche_core.client.machine.epoch import possible_tags
from psyche_core.coordinator.round.assignment import shares
from psyche_core.simulator.members.node import Node
from psyche_core.telemetry import events as telemetry
from psyche_core.wire.messages import Finished

if TYPE_CHECKING:
    from stage import Stage


class Member(Node):
    """See the module. away: it has not come yet, or was killed. odd: it loads a model with a wrong bit."""

    store_fails = 0.0

    def __init__(self, world: Stage, index: int, **others: Any) -> None:
        super().__init__(world, index, **others)
        self.stage = world
        self.away = index in world.late
        self._has_store = index in world.stores
        self._knows_the_model = index not in world.sourceless
        self.busy = self.odd = False
        self.own: set[bytes] = set()
        self.own_by_round: dict[tuple[int, int], bytes] = {}
        self.failed: set[tuple[int, int]] = set()
        self.told: list[telemetry.Event] = []
        self.applied: list[tuple[int, tuple[bytes, ...]]] = []
        self.trained: list[tuple[int, int, act.Share]] = []

    @property
    def masters(self) -> object:
        """Its model."""
        return self.replica.snapshot()

    def boot(self, *, disk: bool = False) -> None:
        self.busy = False
        if not self.away:
            super().boot(disk=disk)

    def deliver(self, event: ev.Event) -> None:
        """Give its machine an event now."""
        self.receive(self.incarnation, event)

    def receive(self, incarnation: int, event: ev.Event, *, lineage: int | None = None) -> None:
        stage = self.stage
        match event:
            case ev.MessageSeen() if stage.loses_message(stage.members[stage.index_of[event.origin]], self, event.message):
                return
            case ev.PayloadChecked() if stage.invalid(self, event.payload_hash):
                event = replace(event, valid=False)
            case ev.CommandAnswered(code=str(code)):
                stage.refused.append((event.command, code))
        super().receive(incarnation, event, lineage=lineage)

    def serves(self, payload_hash: bytes, target: int) -> bool | None:
        return not self.stage.loses_payload(self, self.stage.members[target], payload_hash) and super().serves(
            payload_hash, target
        )

    def _stop(self, action: act.Stop) -> None:
        assert not action.again, action.reason  # nobody restores the coordinator here
        super()._stop(action)

    def _notify(self, action: act.Notify) -> None:
        self.told.append(action.event)

    def _set_timer(self, action: act.SetTimer) -> None:
        if self.stage.reminds:
            super()._set_timer(action)

    def _broadcast(self, action: act.Broadcast) -> None:
        lowest, highest = possible_tags(action.message)
        assert lowest <= action.tag <= highest, "or other members would not keep it as long as this one says"
        if isinstance(action.message, Finished):
            self._check_finished(action.message)
        super()._broadcast(action)

    def _check_finished(self, message: Finished) -> None:
        """Finished means: done with this round, or soon, and holding the payloads of the one before that it waits for."""
        state, notes = self.machine.state, self.machine.notes
        assert state is not None
        assert notes is not None
        before, playing = state.round_at(message.height - 1), state.round_at(message.height)
        assert playing is not None
        if state.slot_of(self.identity) in shares(state, playing) and (message.epoch, message.height) not in self.failed:
            soon = notes.records[message.height].nearly_done and self.busy
            assert soon or (message.epoch, message.height) in self.own_by_round
        for other in self.stage.members if before is not None and before.batches else ():
            place = state.slot_of(other.identity)
            if place is None or message.height - 1 not in notes.records:
                continue

            now = self.machine._state.now  # its own clock, which stands while it sleeps
            waited_for = notes.delivering(notes.records[message.height], frozenset({place}), now=now)
            if waited_for and place in state.healthy_slots and place in shares(state, before):
                published = other.own_by_round.get((message.epoch, message.height - 1))
                assert published is not None
                assert published in self.payloads

    def _store_model(self, action: act.StoreModel) -> None:
        stage = self.stage
        stage.stores_begun.append((self.name, action.step))
        saved = None if stage.store_breaks(self) else self.disk.at_end(action.step)
        stage.clock.after(stage.store_seconds, self._stored, self.incarnation, action, saved)

    # ------------------------------------------------------------------------------------ work

    def _work(self, action: act.Work) -> None:
        assert not self.busy, f"{self.name} was given two pieces of work"
        self.busy = True
        seconds = self.stage.takes(self, action)
        if seconds is None:
            super()._work(action)
        else:
            self.stage.clock.after(seconds, self._work_done, self.incarnation, action, self.lineage)

    def _answer(self, work: act.Work, lineage: int) -> ev.Event:
        self.busy = False
        broken = self.stage.breaks(self, work)
        if broken is None:
            return super()._answer(work, lineage)
        if isinstance(work, act.Train):
            self.failed.add((work.tag >> 20, work.height))
        return broken

    def _load(self, work: act.Load, lineage: int) -> ev.Event:
        ready = super()._load(work, lineage)
        if not self.odd or not isinstance(ready, ev.ModelReady):
            return ready

        self.corrupt(bit=self.index)
        return replace(ready, digest=self.replica.digest())

    def _train(self, work: act.Train) -> ev.Event:
        done = super()._train(work)
        assert isinstance(done, ev.Trained)
        self.own.add(done.payload_hash)
        self.own_by_round[(work.tag >> 20, work.height)] = done.payload_hash
        self.trained.append((work.tag >> 20, work.step, work.share))  # a cut round's step is trained again
        return done

    def _apply(self, work: act.Apply, lineage: int) -> ev.Event:
        assert work.own_accepted == bool(self.own & set(work.payload_hashes))
        self.applied.append((work.step, tuple(sorted(work.payload_hashes))))
        return super()._apply(work, lineage)

    def _fetch_model(self, work: act.FetchModel, lineage: int) -> ev.Event:
        assert (work.build is not None) == bool(work.descriptions)
        return super()._fetch_model(work, lineage)
