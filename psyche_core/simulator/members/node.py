"""A simulated member: what the runtime does around the real client machine, in virtual time: messages, and what others fetch.

Its work is in `worker`, its life as a process in `process`.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

from psyche_core.client.machine import actions as act
from psyche_core.client.machine import events as ev
from psyche_core.client.machine.replica.resync_state import MAX_ATTEMPTS
from psyche_core.coordinator.commands import Equivocation, Withdraw, Witness
from psyche_core.simulator.members.keys import INSTANCE, key_of, with_real_signatures
from psyche_core.simulator.members.verifying import Verifying
from psyche_core.simulator.members.worker import Worker, described, manifest_of, offer_of
from psyche_core.simulator.replicas.replica import Payload, Replica
from psyche_core.simulator.run_result import InvariantViolation
from psyche_core.wire.messages import Message, ModelOffer, Result, seal, unseal

if TYPE_CHECKING:
    from psyche_core.simulator.world import World
    from psyche_core.types import NodeIdentity


RESTART = 10.0
"""Virtual seconds until a member that gave up because its own work failed is started again."""


class Node(Worker):
    """One member. The methods with an underscore carry its machine's actions out."""

    def __init__(self, world: World, index: int, *, rng: random.Random, liar: bool) -> None:
        super().__init__(world, index, rng=rng, liar=liar)
        self.lying_rng: random.Random = random.Random()
        self.repeated_payload: Payload | None = None
        self.downlinks: list[float] = []
        self._withheld: dict[bytes, frozenset[int]] = {}
        self.verifying: Verifying | None = (
            Verifying(world, self, rng=world.stream(f"verification {index}")) if world.verified else None
        )

    # ------------------------------------------------------------------------------------ actions

    def _stop(self, action: act.Stop) -> None:
        if action.again:
            self.trace(f"begins anew: {action.reason}")
            self.counts["began anew"] += 1
            self.crash()
            self._world.clock.after(self._rng.random(), self._restart, self.incarnation)
            return

        if not action.success and max(self.failures.values(), default=0) >= MAX_ATTEMPTS:
            # So much of its own work failed in one epoch that it may give up. Whoever runs it starts it again.
            self.trace(f"gives up: {action.reason}")
            self.counts["gave up for failing work"] += 1
            self.failures.clear()
            self.crash()
            self._world.clock.after(RESTART, self._restart, self.incarnation)
            return

        self.stop: act.Stop | None = action
        self.running = False
        self.links: set[int] = set()
        self.trace(f"stops: {action.reason}")
        self._world.network.changed()
        self._world.stopped(self)

    def _notify(self, action: act.Notify) -> None:
        if self._world.timeline is not None:
            self.trace(f"  {action.event}")

    def _join(self, action: act.Join) -> None:  # noqa: ARG002 - carries nothing
        self.joined = True
        self._world.server.submit(self, self.join_command())

    def _send(self, action: act.Send) -> None:
        command = action.command
        if isinstance(command, Withdraw):
            self.joined: bool = False
        elif isinstance(command, Equivocation):
            command = with_real_signatures(command)
        elif isinstance(command, Witness) and self.verifying is not None:
            command = replace(command, statement=replace(command.statement, words=self.verifying.words(command.statement)))
        if self.lies:
            self._world.lies.send(self, command)
        else:
            self._world.server.submit(self, command)

    def _show_part(self, action: act.ShowPart) -> None:
        if self.verifying is not None:
            self.verifying.show(action)

    def _fetch_part(self, action: act.FetchPart) -> None:
        if self.verifying is not None:
            self.verifying.fetch(action)

    def _check_parts(self, action: act.CheckParts) -> None:
        if self.verifying is not None:
            self.verifying.check(action)

    def _roots(self, work: act.Train) -> bytes:
        return b"" if self.verifying is None else self.verifying.trained(work)

    def _fetch_model(self, work: act.FetchModel, lineage: int) -> ev.Event:
        if self.verifying is not None:
            self.verifying.model_replaced()
        return super()._fetch_model(work, lineage)

    def _recompute(self, work: act.Recompute) -> ev.Event:
        assert self.verifying is not None
        return self.verifying.recomputed(work)

    def _expire(self, action: act.Expire) -> None:
        super()._expire(action)
        if self.verifying is not None:
            self.verifying.expire(action.before)

    def _forget(self, *, disk: bool) -> None:
        super()._forget(disk=disk)
        if self.verifying is not None:
            self.verifying.forget()

    def _set_peers(self, action: act.SetPeers) -> None:
        if action.members == self.members:
            return  # only the seed is another, and all members are connected here

        self.members: tuple[NodeIdentity, ...] = action.members
        known = self._world.index_of
        self.peers: set[int] = {known[member.p2p] for member in action.members if member.p2p in known} - {self.index}
        self._world.network.changed()

    def _broadcast(self, action: act.Broadcast) -> None:
        if self.lies:
            self._world.lies.broadcast(self, action.message, action.tag)
        else:
            self.broadcast(action.message, action.tag)

    def broadcast(self, message: Message, tag: int, *, held_back: dict[int, float] | None = None) -> None:
        """Broadcast a message."""
        if self._world.script.sealed:
            origin, read = unseal(seal(key_of(self.index), INSTANCE, message), run=INSTANCE)
            if (origin, read) != (self.identity.p2p, message):
                raise InvariantViolation("messages-travel-whole", f"{message} was read back as {read}")
        if message.__class__ is Result:
            self._world.announced.record(self.index, message)
        if self.liar and isinstance(message, ModelOffer) and message.manifest_hash != manifest_of(self.replica.digest()):
            self._world.false_offers.add((self._world.server.state.generation, message.step))
        if self._world.timeline is not None:
            self.trace(f"says {message.__class__.__name__} {described(message)}")
        self._world.network.broadcast(self, message, tag, held_back=held_back)

    def _fetch_payload(self, action: act.FetchPayload) -> None:
        self._world.network.fetch(self, action)

    def _prefetch(self, action: act.Prefetch) -> None:
        pass

    def _set_timer(self, action: act.SetTimer) -> None:
        self._world.clock.after(action.seconds / self.clock_rate, self._timer_expired, self.incarnation, action)

    def _timer_expired(self, incarnation: int, action: act.SetTimer) -> None:
        self.receive(incarnation, ev.TimerExpired(action.tag))

    # ------------------------------------------------------------------------------------ serving others

    def serves(self, payload_hash: bytes, target: int) -> bool | None:
        """Whether this member sends a payload; None when it does not answer at all."""
        if payload_hash not in self.payloads:
            return False
        if payload_hash in self._withheld and target not in self._withheld[payload_hash]:
            self.counts["withhold"] += 1
            return None

        return True

    def withhold(self, payload_hash: bytes, served: frozenset[int]) -> None:
        """Serve a payload to these members only."""
        self._withheld[payload_hash] = served

    def serve_again(self, payload_hash: bytes) -> None:
        """Serve a payload to everybody again."""
        self._withheld.pop(payload_hash, None)

    def seconds_to_receive(self) -> float:
        """How much longer a payload takes on our downlink than on a fast one."""
        if not self.downlinks:
            return 0.0

        self.counts["slow-downlink"] += 1
        return max(self.downlinks) * self._world.train_seconds * (0.75 + 0.5 * self._rng.random())

    def _made_up(self, step: int) -> Replica:
        """A model that liars made up for a step, the same for all of them."""
        replica = self._world.new_replica()
        replica.corrupt(step)
        return replica

    def made_up_digest(self, step: int) -> bytes:
        """Its full digest."""
        return self._made_up(step).digest()

    def offers_made_up_model(self, epoch: int, step: int, *, seed: int, tag: int) -> ModelOffer:
        """Begin to serve it; returns the offer. seed: of the epoch; tag: until when it is served."""
        made_up = self._made_up(step)
        offer = offer_of(epoch, step, seed, made_up.digest())
        self.snapshots[offer.manifest_hash] = (tag, step, made_up.snapshot())
        return offer
