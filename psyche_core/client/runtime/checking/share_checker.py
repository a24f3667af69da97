"""Carries out what the machine asks for in challenges of shares: shows, fetches and compares parts, and recomputes.

Nothing here decides anything. A failure is reported in the answer; only lost ranks and cancellation raise.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import anyio.to_thread

from psyche_core.client.machine import actions as act
from psyche_core.client.machine import events as ev
from psyche_core.client.runtime.checking.applied_steps import AppliedSteps
from psyche_core.client.runtime.checking.comparing import Opened, compare
from psyche_core.client.runtime.checking.kept_deltas import DeltaLost, KeptDeltas, table_of
from psyche_core.client.runtime.checking.kept_gradients import KeptGradients
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.errors import PayloadRejected, RanksLost, TransportError, WireError
from psyche_core.interfaces import Transport
from psyche_core.interfaces.data import Samples
from psyche_core.interfaces.replay import AppliedStep, Replay
from psyche_core.verification.challenge import Stage
from psyche_core.verification.merkle import HASH_BYTES
from psyche_core.verification.parts import ChunkTable, decode_payload, decode_signs
from psyche_core.verification.replay import Rule
from psyche_core.verification.words import Word

logger: logging.Logger = logging.getLogger("psyche.client")

FETCH_TIMEOUT = 60.0
"""Seconds until a fetch of a part times out; the machine then asks again. Signs take an eighth of a byte per parameter."""

SIGNS_STAGES = (Stage.COMMIT, Stage.SIGNS, Stage.TIE_COMMIT)


@runtime_checkable
class CheckedTrainer(Protocol):
    """Interface of a trainer whose shares are checked; psyche_core.training.trainer.Trainer implements it."""

    @property
    def replay(self) -> Replay | None:
        """See Trainer.replay."""

    def trained_after(self, step: int, *, first: bool) -> int:
        """See Trainer.trained_after."""

    def recompute(
        self,
        step: int,
        samples: Samples,
        *,
        signs: Sequence[Any] | None,
        undone: Sequence[AppliedStep],
        ahead: bytes | None = None,
    ) -> list[Any]:
        """See Trainer.recompute."""

    def trained_with(self, step: int) -> float:
        """See Trainer.trained_with."""


class ShareChecker:
    """Checks shares for one client.

    transport: sends and fetches the parts. explain: returns one sentence about an unexpected exception.
    """

    def __init__(self, transport: Transport, *, explain: Callable[[BaseException], str]) -> None:
        self._transport = transport
        self._explain = explain
        self._trainer: CheckedTrainer | None = None
        self._replay: Replay | None = None
        self._table = ChunkTable(())
        self._state: CoordinatorState | None = None
        self._deltas = KeptDeltas()
        self._gradients = KeptGradients()
        self._applied = AppliedSteps()
        self._parts: dict[bytes, tuple[int, bytes]] = {}
        self._rates = (0, 0.0)
        self._signs: dict[tuple[int, int], tuple[int, bytes]] = {}

    def follow(self, state: CoordinatorState) -> None:
        """Take in the newest state."""
        self._state = state

    @property
    def rule(self) -> Rule:
        """The thresholds of the run."""
        if self._state is None:
            return Rule()

        named = self._state.model.thresholds
        return Rule(threshold=named.threshold, median_threshold=named.median_threshold)

    @property
    def wanted(self) -> bool:
        """Whether the run's shares are checked."""
        return self._state is not None and self._state.config.verification_percent > 0

    def use(self, trainer: object, *, step: int | None) -> None:
        """Use another model. step: of its master weights, None if unknown."""
        self._trainer = trainer if isinstance(trainer, CheckedTrainer) else None
        self._replay = None if self._trainer is None else self._trainer.replay
        self._table = ChunkTable(()) if self._replay is None else table_of(self._replay)
        self.masters_replaced(step)

    def masters_replaced(self, step: int | None) -> None:
        """Note that the master weights are now those after this step, from other members or from disk, and that delta is zero."""
        self._applied.begin(step)
        self._deltas.reset()

    def delta_forgotten(self) -> None:
        """Note that delta is zero; the master weights are the same."""
        self._deltas.reset()

    def applied(self, work: act.Apply, payloads: Sequence[bytes], *, learning_rate: float) -> None:
        """Record an applied step."""
        if self.wanted:
            self._applied.add(work.step, payloads, work.payload_hashes, learning_rate=learning_rate)

    async def roots(self, step: int) -> bytes:
        """Keep the delta of our new result. Return what its commitment covers: 64 bytes, or b"" if shares are not checked."""
        replay = self._replay
        if not self.wanted or replay is None:
            return b""

        return await anyio.to_thread.run_sync(self._deltas.commit, replay, step)

    def expire(self, before: int) -> None:
        """Forget everything with older tags."""
        self._parts = {known: kept for known, kept in self._parts.items() if kept[0] >= before}
        self._signs = {known: kept for known, kept in self._signs.items() if kept[0] >= before}
        self._gradients.expire(before)
        self._deltas.expire(before)

    async def show(self, action: act.ShowPart) -> ev.PartReady | ev.PartFailed:
        """Prepare our part and serve it."""
        if action.slot == action.challenge.drawn.trainer:
            self._deltas.pin(action.step, tag=action.tag)
        try:
            part = await anyio.to_thread.run_sync(self._own_part, action)
            payload_hash = await self._transport.publish(part, tag=action.tag)
        except DeltaLost as error:
            return ev.PartFailed(action.place, str(error))
        except Exception as error:
            logger.debug("a part of a challenge could not be shown", exc_info=error)
            return ev.PartFailed(action.place, f"what is challenged could not be shown: {self._explain(error)}")

        self._parts[payload_hash] = (action.tag, part)
        return ev.PartReady(action.place, payload_hash, len(part))

    def _own_part(self, action: act.ShowPart) -> bytes:
        challenge, place = action.challenge, action.place
        if challenge.stage in SIGNS_STAGES:
            return self._shown_signs(action)

        numbers = challenge.opened(self._table.total)
        if action.slot == challenge.drawn.trainer:
            return self._deltas.deltas(action.step, self._table, numbers=numbers)

        part = self._gradients.part(place, self._table, numbers=numbers)
        if part is None:
            message = f"this client no longer has the gradient of step {action.step} that it recomputed"
            raise DeltaLost(message)
        return part

    def _shown_signs(self, action: act.ShowPart) -> bytes:
        """Return our own signs, or payload to look ahead by; as a verifier, what the share's trainer showed us."""
        if action.slot == action.challenge.drawn.trainer:
            return self._deltas.lookahead(action.step)

        _, shown = self._signs.get((action.place.about, action.place.trainer), (0, None))
        if shown is None:
            message = f"this client no longer has the signs with which it recomputed a share of step {action.step}"
            raise DeltaLost(message)
        return shown

    async def fetch(self, action: act.FetchPart) -> ev.PartFetched | ev.PartMissing:
        """Fetch another member's part, unless it is longer than our own table allows."""
        limit = self._table.max_bytes
        try:
            if not 0 < action.payload_bytes <= limit:
                message = f"a part of {action.payload_bytes} bytes is longer than this model's {limit}"
                raise TransportError(message)
            part = await self._transport.fetch(
                action.payload_hash,
                sources=action.sources,
                max_bytes=action.payload_bytes,
                timeout=FETCH_TIMEOUT,
                tag=action.tag,
            )
        except (TransportError, TimeoutError) as error:
            logger.info("part %s of a challenge: %s", action.payload_hash[:4].hex(), error)
        except Exception as error:
            logger.debug("fetching a part of a challenge failed", exc_info=error)
            logger.warning("part %s of a challenge: %s", action.payload_hash[:4].hex(), self._explain(error))
        else:
            self._parts[action.payload_hash] = (action.tag, part)
            return ev.PartFetched(action.payload_hash)
        return ev.PartMissing(action.payload_hash)

    async def check(self, action: act.CheckParts) -> ev.PartsChecked:
        """Compare what a trainer and a judge opened."""
        word = Word.NOTHING
        try:
            word = await anyio.to_thread.run_sync(self._word, action)
        except Exception as error:  # a bug of ours or of a plugin: we make no statement about anybody
            logger.debug("comparing opened chunks failed", exc_info=error)
            logger.warning("a share of step %d could not be checked: %s", action.step, self._explain(error))
        return ev.PartsChecked(action.place, action.judge, word)

    def _word(self, action: act.CheckParts) -> Word:
        challenge, roots, replay, trainer = action.challenge, action.result.roots, self._replay, self._trainer
        trainers, judges = self._bytes_of(action.trainers), self._bytes_of(action.judges)
        if replay is None or trainer is None or trainers is None:
            return Word.NOTHING
        if challenge.stage is Stage.SIGNS:
            return Word.PASSED if self._signs_fit(trainers, roots[HASH_BYTES:]) else Word.TRAINER_MISSING

        committed = dict(challenge.roots).get(action.judge)
        if judges is None or committed is None or self._state is None:
            return Word.NOTHING

        found = compare(
            replay,
            self._table,
            Opened(
                numbers=challenge.opened(self._table.total),
                roots=roots,
                payload=self._applied.payload(action.step, action.result.payload_hash),
                trainers=trainers,
                judges=judges,
                committed=committed,
                signer=self._state.epoch.clients[action.judge].id.signer,
                step=action.step,
                learning_rate=trainer.trained_with(action.step),
                largest_rate=self._largest_rate(action.step),
            ),
            self.rule,
        )
        logger.debug("share of step %d, slot %d: %s", action.step, challenge.drawn.trainer, found)
        return found.word

    def _largest_rate(self, step: int) -> float:
        """The largest learning rate of the steps up to this one."""
        assert self._trainer is not None
        known, rate = self._rates
        if step < known:
            known, rate = 0, 0.0
        rate = max((self._trainer.trained_with(one) for one in range(known + 1, step + 1)), default=rate)
        self._rates = step, max(rate, self._rates[1] if step >= self._rates[0] else 0.0)
        return self._rates[1]

    def _signs_fit(self, part: bytes, root: bytes) -> bool:
        try:
            self._lookahead(part, root)
        except WireError:
            return False
        return True

    def _lookahead(self, part: bytes, root: bytes) -> tuple[Sequence[Any] | None, bytes | None]:
        """Return by which signs a share looked ahead, and by which payload; one of them is None. root: of the delta before it.

        Raises WireError.
        """
        if self._table.ahead_bytes is None:
            shown = decode_signs(part, self._table, root=root)
            return (None if shown is None else shown.signs), None

        payload = decode_payload(part, self._table, root=root)
        if payload and self._replay is not None:
            try:
                self._replay.positions(payload)
            except PayloadRejected as error:
                message = f"it looked ahead by a payload that nobody accepts: {error}"
                raise WireError(message) from error
        return None, payload

    def _bytes_of(self, part_hash: bytes) -> bytes | None:
        _, part = self._parts.get(part_hash, (0, None))
        return part

    async def recompute(self, work: act.Recompute, samples: Samples) -> ev.Recomputed | ev.RecomputeFailed:
        """Recompute the gradient of another member's share. Raises RanksLost."""
        trainer, part, place = self._trainer, self._bytes_of(work.signs), work.place
        if trainer is None or part is None:
            return ev.RecomputeFailed(place, "the signs of the trainer's delta are no longer here")

        undone = self._applied.since(trainer.trained_after(work.step, first=place.about == 0))
        if undone is None:
            reason = (
                f"a checked share of step {work.step} cannot be recomputed: this client has begun, or taken others' model, since"
            )
            return ev.RecomputeFailed(place, reason)

        root = work.result.roots[HASH_BYTES:]
        try:  # in a thread: all signs of a model are hashed
            signs, ahead = await anyio.to_thread.run_sync(self._lookahead, part, root)
        except WireError as error:
            reason = f"the signs that belong to a checked share of step {work.step} cannot be used: {error}"
            return ev.RecomputeFailed(place, reason, unusable=work.signs)

        def compute() -> bytes:
            groups = trainer.recompute(work.step, samples, signs=signs, undone=undone, ahead=ahead)
            return self._gradients.add(place, groups, tag=work.tag)

        try:
            recomputed = await anyio.to_thread.run_sync(compute)
        except RanksLost:
            raise
        except Exception as error:
            logger.debug("recomputing a share failed", exc_info=error)
            return ev.RecomputeFailed(place, f"a share of step {work.step} was not recomputed: {self._explain(error)}")

        self._signs[place.about, place.trainer] = (work.tag, part)
        return ev.Recomputed(place, recomputed)
