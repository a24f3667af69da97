"""Checkpoints of a client, and the journal of the rounds since the last one.

If the process ends at any moment, checkpoint and journal together restore the exact master weights of the last applied round
(protocol F18). The order of writes guarantees it: a result is in the journal before we attest to it, the journal is synced before
a statement is sent, and the journal starts again only when the checkpoint that it continues from is complete. If a journal is
full, has a gap or has no base, a checkpoint is saved early. Disk errors are reported at the end of each epoch, not in each round;
they cost durability but do not stop the client. The formats are in `psyche_core.training.checkpoints.journal`. The machine
decides which results are kept.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from psyche_core.client.machine.actions import Apply, CloseEpoch, FetchModel, KeepResults
from psyche_core.client.runtime.journal_publishing import JournalPublisher
from psyche_core.client.runtime.last_checkpoint import (
    LEAVING_SECONDS,
    Made,
    begin_after,
    facts_of,
    save_last,
    what_is_kept,
    within,
)
from psyche_core.client.runtime.payloads import PayloadStore
from psyche_core.client.runtime.resources import Resources
from psyche_core.errors import ModelError, RanksLost
from psyche_core.storage.checkpoint_names import checkpoint_path
from psyche_core.storage.disk_errors import disk_error_in
from psyche_core.telemetry import events as telemetry
from psyche_core.telemetry.repeated_problem import RepeatedProblem
from psyche_core.training.checkpoints.checkpoint import save_checkpoint, set_aside, set_aside_sentence
from psyche_core.training.checkpoints.journal.journal import Journal
from psyche_core.training.checkpoints.journal.publishing import HeldSegment
from psyche_core.training.checkpoints.journal_records import NO_DIGEST, AppliedRound, StoredResult
from psyche_core.training.checkpoints.manifest import CheckpointManifest
from psyche_core.training.checkpoints.private_state import private_path
from psyche_core.types import Decision

logger: logging.Logger = logging.getLogger("psyche.client")


class Checkpointer:
    """Saves checkpoints and keeps the journal; see the module. explain: returns one sentence about an unexpected exception."""

    def __init__(self, report: Callable[[telemetry.Event], None], *, explain: Callable[[BaseException], str]) -> None:
        self._report = report
        self._explain = explain
        self._resources: Resources | None = None
        self._publisher: JournalPublisher | None = None
        self._published = anyio.Event()  # set once there is a publisher
        self._run_id = ""
        self._instance = b""
        self._lock = anyio.Lock()
        self._journal_problem = RepeatedProblem()
        self._problems: defaultdict[str, RepeatedProblem] = defaultdict(RepeatedProblem)  # by the message that reports its end
        self._newest: Made | None = None  # the work that made the current masters; None: unknown
        self._saved: int | None = None  # step of the last checkpoint that we saved

    def use(self, resources: Resources, *, run_id: str, instance: bytes) -> None:
        """Use these resources from now on. instance: the run's instance (32 bytes)."""
        self._resources, self._run_id, self._instance = resources, run_id, instance
        self._newest = self._saved = None
        if resources.published is not None and self._publisher is None:
            self._publisher = JournalPublisher(
                resources.published, run_id=run_id, instance=instance, report=self._report, explain=self._explain
            )
            self._published.set()

    def saved_of(self, step: int) -> Path | None:
        """Return the folder of the last checkpoint that we saved, if that is the checkpoint of this step; else None."""
        folder = None if self._resources is None else self._resources.checkpoints
        return checkpoint_path(folder, self._run_id, step) if folder is not None and self._saved == step else None

    async def publish_journals(self) -> None:
        """Publish finished journals while other work goes on, until cancelled."""
        await self._published.wait()
        assert self._publisher is not None
        await self._publisher.run(self._journal())

    async def finish_publishing(self, *, present: bool = False) -> None:
        """Publish what is not published yet. present: also the present journal as it is now."""
        if self._publisher is None:
            return

        journal = self._journal()
        if present and journal is not None:
            held = await self._held(journal)
            if held is not None:
                self._publisher.add(held)
        await self._publisher.publish_waiting()

    def masters_change(self) -> None:
        """Note that work on the master weights begins. Their step is unknown until the work succeeds."""
        self._newest = None

    # ------------------------------------------------------------------------------------------------ the journal

    async def keep(self, action: KeepResults, payloads: PayloadStore) -> None:
        """Add verified results to the journal."""
        journal = self._journal()
        if journal is None or journal.header is None or journal.broken:
            return

        def add() -> None:
            for kept in action.results:
                result = kept.result
                if payloads.lacking((result.payload_hash,)):
                    continue

                stored = StoredResult(
                    epoch=result.epoch,
                    height=result.height,
                    step=result.step,
                    seed=kept.seed,
                    slot=kept.slot,
                    share=result.share,
                    commitment=result.commitment,
                    payload_hash=result.payload_hash,
                    signature=result.signature,
                    trainer=kept.trainer,
                    signer=kept.signer,
                    roots=result.roots,
                )
                journal.add_result(stored, payloads.all((result.payload_hash,))[0])

        await self._write(add)

    async def sync(self) -> None:
        """Sync the journal to disk."""
        journal = self._journal()
        if journal is not None and not journal.broken:
            await self._write(journal.sync, to_disk=True)

    async def applied(self, work: Apply, *, learning_rate: float) -> None:
        """Record a round whose results are now in the master weights. Save a checkpoint if the journal cannot continue."""
        self._newest = work  # before the first await: leave() may run meanwhile and needs it
        journal = self._journal()
        if journal is None:
            return

        if journal.header is None or journal.broken or not await self._added(journal, work, learning_rate=learning_rate):
            await self._early(work, "the journal has no beginning to go on from")
        elif journal.full:
            self._report(
                telemetry.Problem(
                    "warning",
                    f"the journal reached its limit before the epoch's end, {journal.size:,} bytes; saving a checkpoint instead, "
                    "which a larger --journal-size makes unnecessary",
                )
            )
            await self._early(work, "the journal is full")

    async def _added(self, journal: Journal, work: Apply, *, learning_rate: float) -> bool:
        decision = work.decision or Decision(work.step, work.epoch, work.height, NO_DIGEST)
        applied = AppliedRound(
            epoch=work.epoch,
            height=work.height,
            step=work.step,
            learning_rate=learning_rate,
            results=tuple(zip(work.commitments, work.payload_hashes, strict=True)),
            statements=decision.statements,
            history=decision.history,
        )
        return await self._write(partial(journal.add_applied, applied))

    async def _early(self, work: Apply, why: str) -> None:
        logger.debug("saving a checkpoint after step %d: %s", work.step, why)
        await self.save(work)

    def _journal(self) -> Journal | None:
        return None if self._resources is None else self._resources.journal

    async def _write(self, action: Callable[[], object], *, to_disk: bool = False) -> bool:
        """Change the journal; return whether that succeeded. to_disk: the change writes to disk, not only to memory."""
        async with self._lock:
            try:
                await anyio.to_thread.run_sync(action)
            except ModelError as error:
                if self._journal_problem.failed():
                    self._report(telemetry.Problem("error", str(error)))
                return False

        if to_disk and self._journal_problem.went_well():
            self._report(telemetry.Mended("the journal is written to the disk again"))
        return True

    # ------------------------------------------------------------------------------------------------ checkpoints

    async def close_epoch(self, work: CloseEpoch, digest: bytes) -> bool:
        """Save the checkpoint at an epoch's end; return whether it is complete. digest: full digest of the master weights."""
        self._newest = work
        return await self.save(work, digest=digest)

    async def fetched(self, work: FetchModel) -> None:
        """Note that the master weights came from other members. The journal continues from a new checkpoint of them."""
        self._newest = work
        if self._journal() is not None and not await self.save(work):
            await self._suspend()

    async def _suspend(self) -> None:
        """Stop the journal: master weights from other members could not be saved, so later rounds would not follow it."""
        journal = self._journal()
        if journal is not None:
            await self._write(journal.suspend)

    async def save(self, work: Made, *, digest: bytes | None = None) -> bool:
        """Save a checkpoint and our optimizer's private state, and restart the journal from it. Raises RanksLost.

        work: the work that made the current master weights.
        """
        resources, step = self._resources, work.step
        if resources is None or resources.checkpoints is None:
            return False

        directory = checkpoint_path(resources.checkpoints, self._run_id, step)
        if digest is None:
            digest = await anyio.to_thread.run_sync(resources.trainer.full_digest)
        facts = facts_of(work, digest, run_id=self._run_id, instance=self._instance)
        renamed: list[Path | None] = []
        if not await self._attempt(
            lambda: renamed.append(save_checkpoint(directory, facts, write=resources.trainer.save)),
            f"the checkpoint of step {step} was not saved",
            again="checkpoints are saved again",
            each_time=isinstance(work, CloseEpoch),
        ):
            return False

        self._saved = step
        self._report_set_aside((path for path in renamed if path is not None), above=step)
        self._report(telemetry.CheckpointSaved(step, str(directory)))
        private = private_path(resources.checkpoints, self._run_id)
        await self._attempt(
            partial(resources.trainer.save_private, private),
            f"the checkpoint of step {step} is saved, but not the optimizer's own state",
            again="the optimizer's own state is saved again",
        )
        if resources.journal is None or await self._begin(resources.journal, work, digest=digest):
            await self._remove_old(resources, step)
        elif isinstance(work, FetchModel):
            await self._suspend()
        return True

    async def _begin(self, journal: Journal, work: Made, *, digest: bytes) -> bool:
        """Start the journal again; return whether that succeeded. The old one is published later if publishing is on."""
        held = await self._held(journal)
        begun = False
        try:
            begun = await self._write(partial(begin_after, journal, work, digest), to_disk=True)
        finally:
            if held is not None and begun and self._publisher is not None:
                self._publisher.add(held)
            elif held is not None:
                held.close()  # the journal continues, and is published later
        return begun

    async def _held(self, journal: Journal) -> HeldSegment | None:
        if self._publisher is None:
            return None

        async with self._lock:
            return await self._publisher.hold(journal)

    async def leave(self, *, seconds: float = LEAVING_SECONDS) -> None:
        """Save what was applied since our last checkpoint, so that the next start has nothing to replay. Report when it is saved.

        The journal stays, with the checkpoint it continues from: it can restore every step in between, which is needed if the
        coordinator is restored from an older state. seconds: time limit; after it the client ends without this checkpoint.
        """
        resources, work = self._resources, self._newest
        if resources is None or resources.checkpoints is None or work is None or work.step == self._saved:
            return

        await self.sync()
        missing = f"no checkpoint of step {work.step} was saved on leaving"
        try:
            directory = await within(seconds, partial(save_last, resources, work, run_id=self._run_id, instance=self._instance))
        except TimeoutError:
            kept = await anyio.to_thread.run_sync(what_is_kept, resources, self._run_id)
            self._report(telemetry.Problem("warning", f"{missing}: it takes longer than {seconds:g} s; {kept}"))
        except Exception as error:
            logger.debug("%s", missing, exc_info=error)
            kept = await anyio.to_thread.run_sync(what_is_kept, resources, self._run_id)
            self._report(telemetry.Problem("error", f"{missing}: {self._explain(error)}; {kept}"))
        else:
            self._saved = work.step
            self._report(telemetry.CheckpointSaved(work.step, str(directory)))

    def _is_ours(self, manifest: CheckpointManifest) -> bool:
        return manifest.instance in (None, self._instance.hex())

    async def _remove_old(self, resources: Resources, step: int) -> None:
        """Delete old checkpoints. Checkpoints of a history that the run has left are set aside (renamed), never deleted."""
        folder = resources.checkpoints
        assert folder is not None
        renamed: list[Path] = []
        await self._attempt(
            lambda: renamed.extend(set_aside(folder, self._run_id, above=step, trusted=self._is_ours)),
            f"the checkpoint of step {step} is saved, but those that the run has left were not set aside",
            again="checkpoints that the run has left are set aside again",
        )
        self._report_set_aside(renamed, above=step)
        if resources.keep_checkpoints is not None:
            directory = checkpoint_path(folder, self._run_id, step)
            await self._attempt(
                partial(resources.keep_checkpoints, directory),
                f"the checkpoint of step {step} is saved, but old ones were not removed",
                again="old checkpoints are removed again",
            )

    def _report_set_aside(self, renamed: Iterable[Path], *, above: int) -> None:
        for path in renamed:
            self._report(telemetry.Problem("warning", set_aside_sentence(path, above=above, instance=self._instance)))

    async def _attempt(self, action: Callable[[], object], problem: str, *, again: str, each_time: bool = False) -> bool:
        """Do something on the disk; return whether it succeeded. problem: reported on failure. again: reported when it works
        again.

        each_time: report a failure even if the last one was reported a short time ago.
        """
        try:
            await anyio.to_thread.run_sync(action)
        except RanksLost:
            raise
        except Exception as error:
            logger.debug("%s", problem, exc_info=error)
            why = (disk_error_in(error) if isinstance(error, OSError) else None) or self._explain(error)
            if self._problems[again].failed() or each_time:
                self._report(telemetry.Problem("error", f"{problem}: {why}"))
            return False
        if self._problems[again].went_well():
            self._report(telemetry.Mended(again))
        return True
