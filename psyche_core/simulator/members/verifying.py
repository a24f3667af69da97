"""What a simulated member does about challenged shares: it recomputes, commits, opens its chunks and says words.

All of it takes virtual time. There is no gradient in a simulated run. What an honest check would find is known: a share was trained or not, and who judged it
recomputed it or not. So words follow from that, and from whose part has reached the witness. Cheats are liars of their own kind,
`script.CHEATS`. Runs without verification have no such object.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from psyche_core.coordinator.commands import VerifierCommit
from psyche_core.coordinator.lifecycle.challenges import challenge_of, words_due
from psyche_core.coordinator.state import CoordinatorState, OpenChallenge
from psyche_core.types import RunState, WitnessStatement
from psyche_core.verification.challenge import Challenge, Stage
from psyche_core.verification.words import Word, encode_words

if TYPE_CHECKING:
    from psyche_core.simulator.members.node import Node
    from psyche_core.simulator.world import World

_RECOMPUTE = (Stage.COMMIT, Stage.RECOMMIT, Stage.TIE_COMMIT)

CHECK_SECONDS = 0.05
"""Seconds to read a part, or to prove 16 chunks."""

Place = tuple[int, int, int, int]
"""A stage of a challenge: seed of the epoch, round and slot of the share, and the round with which the stage began."""


class Verifying:
    """The duties of one member. rng: its own random stream."""

    def __init__(self, world: World, node: Node, *, rng: random.Random) -> None:
        self._world = world
        self._node = node
        self._rng = rng
        self._begun: set[tuple[Place, str]] = set()
        self._recomputed: set[Place] = set()
        self._sent: set[tuple[Place, int]] = set()
        self.given: dict[Place, float] = {}

    def forget(self) -> None:
        """The process has ended: what it had recomputed, and its deltas, are gone."""
        self._begun, self._recomputed, self._sent, self.given = set(), set(), set(), {}

    def state_seen(self, state: CoordinatorState) -> None:
        """Do what open challenges ask of us in a state that our machine has seen."""
        slot = state.slot_of(self._node.identity)
        if slot is None or state.run_state not in (RunState.RoundTrain, RunState.RoundWitness):
            return

        for stored in state.epoch.challenges:
            challenge = challenge_of(state, stored)
            place = place_of(state, stored)
            if slot == stored.trainer and (stored.stage is Stage.COMMIT or slot in challenge.expected):
                self._once(place, "give", CHECK_SECONDS, self._give_as_trainer, place, step_of(state, stored))
            elif slot in challenge.expected and stored.stage in _RECOMPUTE:
                self._recompute(state, stored, challenge, place=place, slot=slot)
            elif slot in challenge.expected:
                self._once(place, "give", CHECK_SECONDS, self._give_as_judge, place)

    def _once(self, place: Place, duty: str, seconds: float, call: object, *arguments: object) -> None:
        if (place, duty) not in self._begun:
            self._begun.add((place, duty))
            self._after(seconds, call, *arguments)

    def _after(self, seconds: float, call: object, *arguments: object) -> None:
        seconds *= (0.5 + self._rng.random()) * max(self._node.slowed, default=1.0)
        self._world.clock.after(seconds, self._call, self._node.incarnation, call, arguments)

    def _call(self, incarnation: int, call: object, arguments: tuple[object, ...]) -> None:
        if incarnation != self._node.incarnation or not self._node.running:
            return
        if self._node.paused:
            self._world.clock.after(0.2, self._call, incarnation, call, arguments)
            return

        call(*arguments)  # type: ignore[operator]  # a method of ours

    # ------------------------------------------------------------------------------------ giving

    def _give_as_trainer(self, place: Place, step: int) -> None:
        """Signs, or opened chunks; a process that began after it had trained the share has no delta to show."""
        if "no-reveal" in self._node.lies:
            self._world.counts["no-reveal"] += 1
        elif step in self._node.trained_steps:
            self.given[place] = self._world.clock.now

    def _give_as_judge(self, place: Place) -> None:
        self.given[place] = self._world.clock.now

    # ------------------------------------------------------------------------------------ recomputing

    def _recompute(
        self, state: CoordinatorState, stored: OpenChallenge, challenge: Challenge, *, place: Place, slot: int
    ) -> None:
        if self._node.machine.masters_at is None or challenge.committed(slot):
            return
        self._once(place, "recompute", self._world.train_seconds * self._node.speed, self._recomputed_now, place)
        if place in self._recomputed:
            self._commit(state, stored, place=place)

    def _recomputed_now(self, place: Place) -> None:
        self._recomputed.add(place)
        state = self._node.machine.state
        stored = None if state is None else next((one for one in state.epoch.challenges if place_of(state, one) == place), None)
        if state is not None and stored is not None:
            self._commit(state, stored, place=place)

    def _commit(self, state: CoordinatorState, stored: OpenChallenge, *, place: Place) -> None:
        current = state.current_round
        if current is None or (place, current.seed) in self._sent:
            return

        self._sent.add((place, current.seed))
        trainer = self._world.node_of(state, stored.trainer)
        lacks = stored.stage is Stage.COMMIT and (trainer is None or not self.has(place, trainer))
        root = None if lacks else self._rng.randbytes(32)
        self._world.counts["complaints" if lacks else "commitments"] += 1
        command = VerifierCommit(
            self._node.identity, state.progress.epoch, current.seed, stored.height, stored.trainer, root
        )  # fmt: skip
        self._world.server.submit(self._node, command)

    # ------------------------------------------------------------------------------------ saying

    def has(self, place: Place, giver: Node) -> bool:
        """Whether another member's part of this stage has reached us."""
        if giver is self._node:
            return place in self.given

        since = giver.verifying.given.get(place) if giver.verifying is not None else None
        if since is None or self._world.network.is_cut(giver.index, self._node.index):
            return False
        return since + self._world.network.delay(giver.index, self._node.index) + CHECK_SECONDS <= self._world.clock.now

    def with_words(self, statement: WitnessStatement) -> bytes:
        """The words of our statement about the current round."""
        state = self._node.machine.state
        if state is None or state.current_round is None or state.current_round.height != statement.height:
            return b""

        due = words_due(state)
        if "false-words" in self._node.lies:
            self._world.counts["false-words"] += 1
            return encode_words([self._rng.choice(list(Word)) for _ in due])
        return encode_words([self._word(state, challenge, judge) for challenge, judge in due])

    def _word(self, state: CoordinatorState, challenge: Challenge, judge: int) -> Word:
        place = (state.epoch.seed, challenge.height, challenge.drawn.trainer, challenge.since)
        trainer, other = self._world.node_of(state, challenge.drawn.trainer), self._world.node_of(state, judge)
        has_trainers = trainer is not None and self.has(place, trainer)
        if challenge.stage is Stage.SIGNS:
            return Word.PASSED if has_trainers else Word.TRAINER_MISSING

        has_judges = other is not None and self.has(place, other)
        if trainer is None or other is None or not (has_trainers and has_judges):
            missing = {(False, False): Word.BOTH_MISSING, (False, True): Word.TRAINER_MISSING}
            return missing.get((has_trainers, has_judges), Word.JUDGE_MISSING)

        current = state.current_round
        step = challenge.height if current is None else current.step - (current.height - challenge.height)
        truly = (step, trainer.index) not in self._world.faked and not _judges_falsely(other, challenge, judge)
        return Word.PASSED if truly else Word.FAILED


def _judges_falsely(node: Node, challenge: Challenge, judge: int) -> bool:
    """Whether what a judge opens is no gradient of the share: it has recomputed nothing, or accuses."""
    if judge == challenge.drawn.verifier:
        return bool({"blind-verifier", "lying-verifier"} & set(node.lies))

    return "lying-tie-breaker" in node.lies


def place_of(state: CoordinatorState, stored: OpenChallenge) -> Place:
    """The present stage of an open challenge."""
    return (state.epoch.seed, stored.height, stored.trainer, stored.since)


def step_of(state: CoordinatorState, stored: OpenChallenge) -> int:
    """The step of a challenged share: within an epoch each round has its own."""
    current = state.current_round
    assert current is not None
    return current.step - (current.height - stored.height)
