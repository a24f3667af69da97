"""What a client keeps, shows, recomputes and compares of checked shares, with the real optimizer and without a run."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import anyio
import numpy as np
import pytest
import torch

from psyche_core.builtin.memory_transport import MemoryNetwork, MemoryTransport
from psyche_core.client.machine import actions as act
from psyche_core.client.machine import events as ev
from psyche_core.client.runtime.checking.comparing import Comparison, Opened, compare
from psyche_core.client.runtime.checking.kept_deltas import KEPT_RESULTS, DeltaLost, KeptDelta, KeptDeltas, _tree, table_of
from psyche_core.client.runtime.checking.kept_gradients import KeptGradients
from psyche_core.client.runtime.checking.share_checker import ShareChecker
from psyche_core.client.runtime.worker import describe_exception
from psyche_core.interfaces.data import Samples
from psyche_core.interfaces.replay import AppliedStep, Replay
from psyche_core.testing.toy_model import toy_samples
from psyche_core.training.trainer import Trained
from psyche_core.verification.challenge import Challenge, Stage
from psyche_core.verification.drawing import Drawn
from psyche_core.verification.merkle import NO_DELTA, committed_root
from psyche_core.verification.parts import decode_payload, decode_signs, encode_payload
from psyche_core.verification.replay import Rule
from psyche_core.verification.words import Word
from psyche_core.wire.messages import Result
from psyche_core.wire.signing import SecretKey
from tests.integration.checked_members import Member, TrainsOnOtherData

RATE, SIGNER = 0.01, bytes(range(32))


@dataclass
class Played:
    """A trainer's steps, and a verifier that has applied all of them."""

    trainer: Member
    verifier: Member
    deltas: KeptDeltas
    roots: dict[int, bytes]
    payloads: dict[int, bytes]
    applied: list[AppliedStep]

    @property
    def replay(self) -> Replay:
        replay = self.verifier.replay
        assert replay is not None
        return replay

    def gradient(self, step: int) -> list[Any]:
        """What the verifier recomputes of a step, which its masters are long past."""
        part, table, root = self.deltas.lookahead(step), table_of(self.replay), self.roots[step][32:]
        undone, samples = self.applied[max(0, step - 2) :][::-1], toy_samples(500 + step)
        if table.ahead_bytes is not None:
            ahead = decode_payload(part, table, root=root)
            return self.verifier.recompute(step, samples, signs=None, undone=undone, ahead=ahead)

        shown = decode_signs(part, table, root=root)
        return self.verifier.recompute(step, samples, signs=None if shown is None else shown.signs, undone=undone)

    def opened(self, step: int, *, numbers: Sequence[int] = tuple(range(3, 60, 4)), groups: list[Any] | None = None) -> Opened:
        gradients, place = KeptGradients(), act.StagePlace(step, 0, step + 2)
        root = gradients.add(place, self.gradient(step) if groups is None else groups, tag=0)
        table = table_of(self.replay)
        judges = gradients.part(place, table, numbers=numbers)
        assert judges is not None
        return Opened(
            numbers=numbers,
            roots=self.roots[step],
            payload=self.payloads[step],
            trainers=self.deltas.deltas(step, table, numbers=numbers),
            judges=judges,
            committed=committed_root(root, SIGNER),
            signer=SIGNER,
            step=step,
            learning_rate=RATE,
            largest_rate=RATE,
        )

    def compared(self, opened: Opened) -> Comparison:
        return compare(self.replay, table_of(self.replay), opened, Rule())


def played(
    steps: int,
    *,
    trainer: type[Member] = Member,
    compiled: bool = False,
    memory: bool = False,
    lookahead: Literal["delta", "payload"] = "delta",
    skipped: Sequence[int] = (),
    refused: Sequence[int] = (),
) -> Played:
    """Each step has the results of the trainer, and of another member.

    skipped: steps in which the trainer has no share. refused: those in which its result is not accepted.
    """
    one, verifier, other = (kind(compiled=compiled, memory=memory, lookahead=lookahead) for kind in (trainer, Member, Member))
    found = Played(one, verifier, KeptDeltas(), {}, {}, [])
    sent: dict[int, list[bytes]] = {}
    for step in range(1, steps + 1):
        done = step - 2
        for member in (found.trainer, other, found.verifier) if done >= 1 else ():
            accepted = member is other or (member is found.trainer and done not in skipped and done not in refused)
            member.apply(done, sent[done], own_accepted=accepted)
        if done >= 1:
            found.applied.append(AppliedStep(tuple(sent[done]), RATE))
        sent[step] = [other.train(step, toy_samples(100 + step)).payload]
        if step in skipped:
            continue
        found.payloads[step] = found.trainer.train(step, toy_samples(500 + step)).payload
        sent[step] += [] if step in refused else [found.payloads[step]]
        replay = found.trainer.replay
        assert replay is not None
        found.roots[step] = found.deltas.commit(replay, step)
        found.deltas.pin(step, tag=0)
    return found


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("lookahead", ["delta", "payload"])
@pytest.mark.parametrize("skipped", [(), (3,), (2, 3, 4)])
def test_an_honest_share_passes_long_after_it_was_trained(
    compiled: bool, memory: bool, skipped: tuple[int, ...], lookahead: Literal["delta", "payload"]
) -> None:
    """The verifier goes back over eight steps, weight decay included; also where the trainer had no share in between."""
    run = played(9, compiled=compiled, memory=memory, skipped=skipped, lookahead=lookahead)
    for step in run.roots:
        found = run.compared(run.opened(step))
        assert found.word is Word.PASSED, (step, found)
        assert found.score is not None
        assert found.score < 1e-6
    assert run.roots[1][32:] == NO_DELTA
    before = dict(zip(sorted(run.roots)[1:], sorted(run.roots), strict=False))
    assert all(run.roots[step][32:] == run.roots[earlier][:32] for step, earlier in before.items())


@pytest.mark.parametrize("skipped", [(), (4,), (3, 4, 5, 6, 7), (4, 5, 6, 7)])
def test_a_share_after_refused_results_passes_however_long_ago_they_were(skipped: tuple[int, ...]) -> None:
    """Results of steps 2 and 3 were not accepted, perhaps while the member had nothing to train for some rounds."""
    run = played(10, skipped=skipped, refused=(2, 3))
    assert {run.compared(run.opened(step)).word for step in run.roots} == {Word.PASSED}


def test_recomputing_leaves_the_verifier_s_own_training_as_it_was() -> None:
    one, other = played(6), played(6)
    one.gradient(4)
    assert one.verifier.full_digest() == other.verifier.full_digest()
    assert one.verifier.train(7, toy_samples(7)).payload == other.verifier.train(7, toy_samples(7)).payload


@pytest.mark.parametrize("memory", [False, True])
def test_other_work_fails(memory: bool) -> None:
    run = played(6, trainer=TrainsOnOtherData, memory=memory)
    assert {run.compared(run.opened(step)).word for step in (2, 3, 4, 5)} == {Word.FAILED}
    honest = played(6, memory=memory)
    opened = honest.opened(4)
    assert honest.compared(replace(opened, payload=honest.payloads[3])).word is Word.FAILED, (
        "another payload than it committed to"
    )
    assert honest.compared(replace(opened, payload=b"nonsense")).word is Word.FAILED
    wrong = honest.opened(4, groups=[-group for group in honest.gradient(4)])
    assert honest.compared(wrong).word is Word.FAILED
    assert honest.compared(replace(opened, largest_rate=1e-9)).word is Word.FAILED, "larger than any delta can be"


def test_a_memory_that_does_not_follow_from_the_one_before_fails() -> None:
    """Who commits to other mean squares than its gradients have would give its results another weight."""

    class Forgets(Member):
        def train(self, step: int, samples: Samples) -> Trained:
            done = super().train(step, samples)
            if step == 4:
                for name, tensor in self._optimizer.private_state().items():
                    if name.startswith("mean_square."):
                        tensor.mul_(0.25)
            return done

    run = played(6, trainer=Forgets, memory=True)
    assert [run.compared(run.opened(step)).word for step in (2, 3, 4)] == [Word.PASSED, Word.PASSED, Word.FAILED]


@pytest.mark.parametrize("memory", [1e20, 1e4, 1.0])
def test_who_once_made_its_memory_too_large_cannot_stop_training_then(memory: float) -> None:
    """Gradients divided by its roots are nothing, and so is what it adds: the right contribution, but for that."""

    class StopsTraining(Member):
        def train(self, step: int, samples: Samples) -> Trained:
            if step < 4:
                return super().train(step, samples)
            if step == 4:
                for name, state in self._optimizer.private_state().items():
                    if name.startswith("mean_square."):
                        state.fill_(memory)
                replay: Any = self._optimizer.replay
                replay._delta.normal_(std=0.05, generator=torch.Generator().manual_seed(9))
            return super().train(step, toy_samples(7, count=1))

    run = played(12, trainer=StopsTraining, memory=True)
    words = {step: run.compared(run.opened(step)).word for step in run.roots}
    assert [step for step, word in words.items() if word is Word.FAILED] == list(range(4, 13)), words


@pytest.mark.parametrize("factor", [0.5, -1.0, 3.0])
def test_what_is_taken_off_a_delta_is_not_the_trainer_s_to_choose(factor: float) -> None:
    """Else it could put whatever it wants to send next into delta, and its contribution would still be its gradient."""
    run = played(6)
    before, after = run.deltas._kept[3], run.deltas._kept[4]
    replay, table = run.replay, table_of(run.replay)
    gone = taken_off(before)
    moved = replay.elements([(1 - factor) * dense for dense in gone])
    groups = tuple((new + replay.decay * change).astype(np.float32) for new, change in zip(after.groups, moved, strict=True))
    honest = zip(after.groups, before.groups, replay.elements(gone), strict=True)
    gradient = [(new - replay.decay * (old - off)) / RATE for new, old, off in honest]
    run.deltas._kept = {
        3: rebuilt(replace(before, values=tuple(np.float32(factor) * values for values in before.values))),
        4: rebuilt(replace(after, groups=groups)),
    }
    run.roots[4] = run.deltas._kept[4].tree.root + run.deltas._kept[3].tree.root
    found = run.compared(run.opened(4, numbers=tuple(range(0, table.total, 5)), groups=gradient))
    assert found.word is Word.FAILED
    assert found.score is not None
    assert found.score < 1e-3, "what was added is its gradient all the same"


def taken_off(kept: KeptDelta) -> list[Any]:
    """The coefficients that are taken off a delta, zero elsewhere."""
    found = []
    for group, places, values in zip(kept.groups, kept.places, kept.values, strict=True):
        dense = np.zeros_like(group)
        dense.reshape(-1)[places] = values
        found.append(dense)
    return found


def rebuilt(kept: KeptDelta) -> KeptDelta:
    """The same with the tree of what it says."""
    return replace(kept, tree=_tree(kept.groups, kept.places, kept.values, kept.memory, kept.remembered))


def test_a_run_that_is_set_back_trains_its_steps_again() -> None:
    """The newest results are kept, whatever their steps are."""
    run = played(8)
    run.deltas.expire(1)
    replay = run.trainer.replay
    assert replay is not None
    for _ in range(2):
        run.trainer.forget()
        run.deltas.reset()
        for step in (2, 3):
            run.trainer.train(step, toy_samples(step))
            run.deltas.commit(replay, step)
        run.deltas.lookahead(3)


def test_what_does_not_fit_its_root_is_missing() -> None:
    run = played(6)
    opened, other = run.opened(4), run.opened(5)
    for changes, word in (
        ({"trainers": other.trainers}, Word.TRAINER_MISSING),
        ({"trainers": b""}, Word.TRAINER_MISSING),
        ({"judges": other.judges}, Word.JUDGE_MISSING),
        ({"signer": bytes(32)}, Word.JUDGE_MISSING),
        ({"judges": b"", "trainers": b""}, Word.BOTH_MISSING),
        ({"payload": None}, Word.NOTHING),
    ):
        assert run.compared(replace(opened, **changes)).word is word, changes


def test_deltas_are_kept_for_a_few_results_and_for_challenged_ones() -> None:
    run = played(3)
    run.deltas.expire(1)
    replay = run.trainer.replay
    assert replay is not None
    deltas, table = KeptDeltas(), table_of(replay)
    for step in range(4, 4 + 2 * KEPT_RESULTS):
        run.trainer.apply(step - 2, [run.payloads[step - 2]], own_accepted=True)
        run.payloads[step] = run.trainer.train(step, toy_samples(500 + step)).payload
        deltas.commit(replay, step)
        if step == 5:
            deltas.pin(5, tag=7)
    deltas.lookahead(5)
    deltas.deltas(5, table, numbers=(1, 2))
    with pytest.raises(DeltaLost, match="cannot show its share of step 6: an earlier process trained it, or it was long ago"):
        deltas.lookahead(6)
    deltas.expire(8)
    with pytest.raises(DeltaLost, match="step 5"):
        deltas.lookahead(5)
    deltas.reset()
    run.trainer.train(99, toy_samples(99))
    assert deltas.commit(replay, 99)[32:] == NO_DELTA, "delta was zero before"


# ------------------------------------------------------------------------------------------------ the checker itself


def challenge_of(step: int, *, stage: Stage = Stage.COMMIT) -> Challenge:
    return Challenge(height=step - 1, drawn=Drawn(0, 1), since=step + 1, stage=stage)


def place_of(step: int) -> act.StagePlace:
    return act.StagePlace(step - 1, 0, step + 1)


@pytest.mark.anyio
async def test_what_a_checker_lacks_is_told_and_raises_nothing() -> None:
    key = SecretKey(hashlib.sha256(b"checker").digest())
    async with MemoryTransport(MemoryNetwork(), key.public) as transport:
        checker = ShareChecker(transport, explain=describe_exception)
        show = act.ShowPart(place_of(4), challenge_of(4), 4, 0, 9)
        result = Result(0, 3, 4, 0, (), bytes(32), 1, bytes(32), bytes(64), bytes(64))
        work = act.Recompute(place_of(4), challenge_of(4), (), 4, result, bytes(32), 9)
        check = act.CheckParts(place_of(4), challenge_of(4, stage=Stage.REVEAL), 4, 1, result, bytes(32), bytes(32))
        assert isinstance(await checker.show(show), ev.PartFailed), "no model yet"
        member = Member()
        checker.use(member, step=0)
        told = await checker.show(show)
        assert isinstance(told, ev.PartFailed)
        assert "an earlier process trained it" in told.reason
        told = await checker.show(replace(show, slot=1, challenge=replace(show.challenge, stage=Stage.TIE_COMMIT)))
        assert isinstance(told, ev.PartFailed)
        assert "no longer has the signs" in told.reason
        failed = await checker.recompute(work, toy_samples(4))
        assert isinstance(failed, ev.RecomputeFailed)
        assert "no longer here" in failed.reason
        assert (await checker.check(check)).word is Word.NOTHING
        assert await checker.roots(4) == b"", "this run checks no shares"


@pytest.mark.anyio
async def test_a_part_longer_than_the_model_allows_is_not_fetched() -> None:
    keys = [SecretKey(hashlib.sha256(name).digest()) for name in (b"one", b"two")]
    network = MemoryNetwork()
    async with MemoryTransport(network, keys[0].public) as one, MemoryTransport(network, keys[1].public) as two:
        for transport, other in ((one, keys[1]), (two, keys[0])):
            await transport.set_peers({other.public: b""})
        checker, member = ShareChecker(one, explain=describe_exception), Member()
        checker.use(member, step=0)
        assert member.replay is not None
        limit = table_of(member.replay).max_bytes
        short, long = await two.publish(b"part", tag=9), await two.publish(bytes(limit + 1), tag=9)
        sources = (keys[1].public,)
        assert isinstance(await checker.fetch(act.FetchPart(short, 4, sources, 9)), ev.PartFetched)
        for claimed in (0, 4, limit + 1):  # whatever its announcement says
            with anyio.fail_after(60):
                assert isinstance(await checker.fetch(act.FetchPart(long, claimed, sources, 9)), ev.PartMissing)


@pytest.mark.anyio
async def test_a_part_is_fetched_as_something_that_only_its_owner_has() -> None:
    """Where not all are connected, its owner is dialled at once then."""
    asked: list[object] = []

    class Watched(MemoryTransport):
        async def fetch(self, blob_hash: bytes, **how: Any) -> bytes:
            asked.append(how.get("wanted_by_all", False))
            return await super().fetch(blob_hash, **how)

    key = SecretKey(hashlib.sha256(b"one").digest())
    async with Watched(MemoryNetwork(), key.public) as transport:
        checker = ShareChecker(transport, explain=describe_exception)
        checker.use(Member(), step=0)
        part = await transport.publish(b"part", tag=9)
        assert isinstance(await checker.fetch(act.FetchPart(part, 4, (), 9)), ev.PartFetched)
    assert asked == [False]


@pytest.mark.parametrize("lookahead", ["delta", "payload"])
@pytest.mark.anyio
async def test_what_does_not_fit_the_root_is_not_recomputed_with(lookahead: Literal["delta", "payload"]) -> None:
    """Signs of another step's delta; or bytes that are no payload, which nobody can have sent."""
    run = played(4, lookahead=lookahead)
    key = SecretKey(hashlib.sha256(b"checker").digest())
    async with MemoryTransport(MemoryNetwork(), key.public) as transport:
        checker = ShareChecker(transport, explain=describe_exception)
        checker.use(run.verifier, step=0)
        for number, step in enumerate(run.applied, start=1):
            hashes = tuple(hashlib.sha256(payload).digest() for payload in step.payloads)
            work = act.Apply(number + 1, number, hashes, False)
            checker._applied.add(work.step, step.payloads, hashes, learning_rate=RATE)
        false = run.deltas.lookahead(2) if lookahead == "delta" else encode_payload(b"no payload")
        for signs, kind in ((run.deltas.lookahead(3), ev.Recomputed), (false, ev.RecomputeFailed)):
            part = await transport.publish(signs, tag=9)
            assert isinstance(await checker.fetch(act.FetchPart(part, len(signs), (), 9)), ev.PartFetched)
            result = Result(0, 2, 3, 0, (), bytes(32), 1, bytes(32), bytes(64), run.roots[3])
            done = await checker.recompute(act.Recompute(place_of(3), challenge_of(3), (), 3, result, part, 9), toy_samples(3))
            assert isinstance(done, kind), done
            assert not isinstance(done, ev.RecomputeFailed) or done.unusable == part
    assert np.isfinite(run.verifier.evaluate(toy_samples(1)))
