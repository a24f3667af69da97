"""What a simulated member's surroundings do for challenges of shares: show, fetch and compare parts, in virtual time.

Its machine decides, as in a real client. There is no gradient in a simulated run. What an honest check would find is known: a
share was trained or not, and who judged it recomputed it or not. Cheats are liars of their own kind, `script.CHEATS`.
"""

from __future__ import annotations

import hashlib
import random
from typing import TYPE_CHECKING

from psyche_core.client.machine import actions as act
from psyche_core.client.machine import events as ev
from psyche_core.types import WitnessStatement
from psyche_core.verification.challenge import Challenge, Stage
from psyche_core.verification.merkle import NO_DELTA
from psyche_core.verification.words import Word, encode_words

if TYPE_CHECKING:
    from collections.abc import Callable

    from psyche_core.simulator.members.node import Node
    from psyche_core.simulator.world import World

CHECK_SECONDS = 0.05
"""Seconds to prepare a part, or to compare two."""

PART_BYTES = 4096
FETCH_TIMEOUT = 3.0
"""Seconds until a fetch of a part gives up."""

FAKED_PART = {"half-untrained": 0.5, "quarter-untrained": 0.25, "tenth-untrained": 0.1}
"""The part of its shares that a cheat does not train, by chance."""

_WRONG = "signs of another delta"

SIGNS = (Stage.COMMIT, Stage.SIGNS, Stage.TIE_COMMIT)
"""Stages in which signs are shown; in the others chunks are opened."""


class Verifying:
    """The parts of one member. served: those that others may fetch, and their tags. rng: its own random stream."""

    def __init__(self, world: World, node: Node, *, rng: random.Random) -> None:
        self._world = world
        self._node = node
        self._rng = rng
        self.served: dict[bytes, int] = {}
        self._trained: set[int] = set()
        self._delta_root: bytes = NO_DELTA

    def forget(self) -> None:
        """The process has ended: its deltas, and what it had recomputed, are gone."""
        self.served, self._trained = {}, set()
        self.model_replaced()

    def model_replaced(self) -> None:
        """It takes the others' model: its delta is zero."""
        self._delta_root = NO_DELTA

    def trained(self, work: act.Train) -> bytes:
        """Note whether a share was trained, since what a cheat sends looks the same. Returns the roots of both deltas."""
        lies = self._node.lies
        fakes = "untrained" in lies or "collusion" in lies
        for lie, part in FAKED_PART.items():
            fakes = fakes or (lie in lies and self._rng.random() < part)
        (self._world.faked.add if fakes else self._world.faked.discard)((work.step, self._node.index))
        self._world.counts["faked shares"] += fakes
        self._trained.add(work.step)
        before, self._delta_root = self._delta_root, hashlib.sha256(self._delta_root + work.step.to_bytes(8, "little")).digest()
        return self._delta_root + before

    def expire(self, before: int) -> None:
        """Forget parts with older tags."""
        self.served = {known: tag for known, tag in self.served.items() if tag >= before}

    def show(self, action: act.ShowPart) -> None:
        """Prepare a part. Who did not train the share in this process has no delta to show."""
        self._after(CHECK_SECONDS, self._shown, action)

    def _shown(self, action: act.ShowPart) -> ev.Event:
        node, challenge = self._node, action.challenge
        is_trainer = action.slot == challenge.drawn.trainer
        if is_trainer and "no-reveal" in node.lies:
            self._world.counts["no-reveal"] += 1
            return ev.PartFailed(action.place, "it does not want to")
        if is_trainer and action.step not in self._trained:
            self._world.counts["deltas lost"] += 1
            return ev.PartFailed(action.place, "an earlier process trained the share")

        kind = "signs" if challenge.stage in SIGNS else f"chunks of {action.slot} since {action.place.since}"
        if is_trainer and challenge.stage is Stage.COMMIT and "wrong-signs" in node.lies:
            self._world.counts["wrong-signs"] += 1
            kind = _WRONG
        place = (challenge.height, challenge.drawn.trainer, self._world.server.state.epoch.seed)
        part = hashlib.sha256(repr((kind, place)).encode()).digest()
        if kind == _WRONG:
            self._world.wrong_signs.add(part)
        self.served[part] = max(action.tag, self.served.get(part, 0))
        return ev.PartReady(action.place, part, PART_BYTES)

    def fetch(self, action: act.FetchPart) -> None:
        """Fetch a part from the first source that has it."""
        network, index = self._world.network, self._node.index
        for key in action.sources:
            source = self._world.nodes[self._world.index_of[key]]
            served = source.verifying is not None and action.payload_hash in source.verifying.served
            if served and source.running and not network.is_cut(source.index, index) and not network.is_cut(index, source.index):
                seconds = (
                    network.delay(index, source.index) + network.delay(source.index, index) + self._node.seconds_to_receive()
                )
                self._after(seconds, self._fetched, action)
                return
        self._after(FETCH_TIMEOUT, lambda failed: ev.PartMissing(failed.payload_hash), action)

    def _fetched(self, action: act.FetchPart) -> ev.Event:
        self.served[action.payload_hash] = action.tag
        return ev.PartFetched(action.payload_hash)

    def check(self, action: act.CheckParts) -> None:
        """Compare two parts."""
        self._after(CHECK_SECONDS, self._checked, action)

    def _checked(self, action: act.CheckParts) -> ev.Event:
        state, challenge = self._node.machine.state, action.challenge
        if state is None or challenge.stage is Stage.SIGNS:
            return ev.PartsChecked(action.place, action.judge, Word.PASSED)

        trainer, judge = (self._world.node_of(state, slot) for slot in (challenge.drawn.trainer, action.judge))
        faked = trainer is None or (action.step, trainer.index) in self._world.faked
        if trainer is not None and _colludes(trainer) and (_colludes(self._node) or (judge is not None and _colludes(judge))):
            passes = True
        else:
            passes = not faked and judge is not None and not _judges_falsely(judge, challenge, action.judge)
        return ev.PartsChecked(action.place, action.judge, Word.PASSED if passes else Word.FAILED)

    def recomputed(self, work: act.Recompute) -> ev.Event:
        """The root of a gradient."""
        if work.signs in self._world.wrong_signs:
            return ev.RecomputeFailed(work.place, "these signs are not the trainer's", unusable=work.signs)

        self._world.counts["recomputed shares"] += 1
        return ev.Recomputed(work.place, self._rng.randbytes(32))

    def words(self, statement: WitnessStatement) -> bytes:
        """What our statement says, by a liar perhaps something else than its machine."""
        if "false-words" not in self._node.lies or not statement.words:
            return statement.words

        self._world.counts["false-words"] += 1
        count = 2 * len(statement.words) - (statement.words[-1] >> 4 == 0)
        return encode_words([self._rng.choice(list(Word)) for _ in range(count)])

    def _after(self, seconds: float, answer: Callable[..., ev.Event], action: object) -> None:
        seconds *= (0.5 + self._rng.random()) * max(self._node.slowed, default=1.0)
        self._world.clock.after(seconds, self._answer, self._node.incarnation, answer, action)

    def _answer(self, incarnation: int, answer: Callable[..., ev.Event], action: object) -> None:
        if incarnation == self._node.incarnation:
            self._node.receive(incarnation, answer(action))


def _colludes(node: Node) -> bool:
    """Whether a member trains nothing, and as verifier, tie-breaker and witness passes what others that collude have not trained.

    Such a judge commits to the gradient that its accomplice's forged delta asks for, so what both open agrees.
    """
    return "collusion" in node.lies


def _judges_falsely(node: Node, challenge: Challenge, judge: int) -> bool:
    """Whether what a judge opens is no gradient of the share: it has recomputed nothing, or accuses."""
    if judge == challenge.drawn.verifier:
        return bool({"blind-verifier", "lying-verifier"} & set(node.lies))

    return "lying-tie-breaker" in node.lies
