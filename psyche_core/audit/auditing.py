"""An audit from beginning to end: find, plan, build the model, replay, and write the model that was asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from psyche_core.audit.finding import Found, FoundCheckpoint, checkpoints_in, find
from psyche_core.audit.lines import Histories, KnownModel, Line, line_of
from psyche_core.audit.planning import Anchor, Plan, anchors, disagreements, of_one_run, plan
from psyche_core.audit.replaying import Expectations, Progress, Replay, Replayed
from psyche_core.audit.report import AuditReport, Difference
from psyche_core.audit.rounds import Rates, RoundChecker
from psyche_core.audit.segments import Segment
from psyche_core.audit.start import Start, from_checkpoint, from_run_file
from psyche_core.config.run_config import LLMConfig, RunFile
from psyche_core.coordinator.learning_rate import cold_start_factor, learning_rate
from psyche_core.errors import InputError, ModelError
from psyche_core.hookspecs import ModelRegistration
from psyche_core.storage.model_stores.interface import OpenStore
from psyche_core.storage.object_store import open_bucket
from psyche_core.training.build import Compute, RegistryLoad, build_trainer
from psyche_core.training.checkpoints.checkpoint import save_checkpoint
from psyche_core.training.checkpoints.manifest import CheckpointFacts, decision_in, verify
from psyche_core.training.trainer import APPLY_DELAY, Trainer
from psyche_core.types import Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed:
    """What a coordinator's state says.

    instance: of the run. ends: signed digests, decisions: of the last rounds, histories: of the run's decisions; by step.
    """

    instance: bytes
    ends: Mapping[int, bytes]
    decisions: Mapping[int, Decision]
    source: str
    histories: Histories = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRequest:
    """What to audit.

    sources: files and folders with journals; checkpoints in the folders are compared, too. run: the run file. base: folder that
    its relative paths start from. checkpoint: folder to begin with, None for the first weights. until: last step, None for all.
    out: folder for the model after it. signed: what the coordinator says, if it was asked. compute: device and number format.
    run_file: the run file's place, for messages.
    """

    sources: Sequence[Path]
    run: RunFile
    base: Path
    cache: Path
    checkpoint: Path | None = None
    until: int | None = None
    out: Path | None = None
    signed: Signed | None = None
    compute: Compute = field(default_factory=Compute)
    run_file: Path | None = None


def audit(
    request: AuditRequest,
    registry_load: RegistryLoad,
    *,
    open_store: OpenStore = open_bucket,
    progress: Callable[[Progress], None] = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
) -> AuditReport:
    """Audit a run. Blocks; call it in a worker thread or a program.

    registry_load: see `build_trainer`. open_store: see `sources.find`. say: called with a sentence about a long download. Raises
    UserError for input that cannot be used, ModelError for a model that cannot be built or written; a difference is no error but
    in the report.
    """
    if request.out is not None:
        _expect_free(request.out)
    found = find(request.sources)
    start = _start(request, found.segments, registry_load, open_store, say)
    instance = start.instance
    if request.signed is not None:
        if instance not in (None, request.signed.instance):
            message = f"{start.folder} is a checkpoint of another run than the one that {request.signed.source} knows"
            raise InputError(message)
        instance = request.signed.instance
    of_run = of_one_run(found.segments, instance)
    run_instance = of_run[0].header.instance
    line = _line(request, found, of_run, start=start)
    segments = line.segments
    try:
        planned = plan(segments, start=start.step, until=request.until)
    except InputError as error:
        raise InputError("; ".join((str(error), *line.notes))) from error
    expected, notes, damaged = _expectations(request, found, planned, line, start=start)

    trainer = build_trainer(
        registry_load=registry_load,
        model_config=request.run.model,
        run_id=request.run.run_id,
        source=start.folder,
        compute=request.compute,
    )
    try:
        checker = RoundChecker(run_instance, rates_of(request.run.model.LLM), run_file=request.run_file)
        begins = None
        if start.manifest is not None and start.manifest.digest is not None:
            begins = Anchor(bytes.fromhex(start.manifest.digest), f"the manifest of {start.folder}")
        done = Replay(trainer, planned, checker, expected=expected, start=begins, progress=progress).run()
        if request.out is not None and done.difference is None:
            _write(trainer, request.out, done, planned, start=start, run_id=request.run.run_id, segments=segments)
    finally:
        trainer.close()

    differences = [each for each in (done.difference, *damaged) if each is not None]
    ignored = tuple(f"{each.path} is of another run" for each in found.segments if each not in of_run)
    return AuditReport(
        run_id=request.run.run_id,
        instance=run_instance.hex(),
        start=start.name,
        start_step=start.step,
        last_step=done.last_step,
        digest=done.digest.hex(),
        results=done.results,
        members=len(done.members),
        compared=done.compared,
        payload_bytes=done.payload_bytes,
        file_bytes=sum({stretch.segment.path: stretch.segment.size for stretch in planned.stretches}.values()),
        seconds=done.seconds,
        difference=min(differences, key=lambda each: each.step, default=None),
        notes=(*found.notes, *ignored, *line.notes, *notes),
        out=str(request.out) if request.out is not None and done.difference is None else None,
    )


def rates_of(llm: LLMConfig) -> Rates:
    """Return the learning rates with which a step's results may be applied: the schedule's two steps later (protocol section 3).

    In an epoch that started cold the rate is lower at first. Journals do not say whether an epoch did, so both are right.
    """

    def rates(step: int, epoch_start: int) -> tuple[float, ...]:
        applied = step + APPLY_DELAY
        rate, cold = learning_rate(llm.lr_schedule, applied), llm.cold_start_warmup_steps
        bounds = (epoch_start, epoch_start + cold) if cold else None
        return tuple(dict.fromkeys((rate, rate * cold_start_factor(applied, bounds))))

    return rates


def _start(
    request: AuditRequest,
    segments: Sequence[Segment],
    registry_load: RegistryLoad,
    open_store: OpenStore,
    say: Callable[[str], None],
) -> Start:
    if request.checkpoint is not None:
        return from_checkpoint(request.checkpoint, segments, run_id=request.run.run_id)

    registration = registry_load("model", request.run.model.LLM.architecture)
    own = registration.source if isinstance(registration, ModelRegistration) else None
    return from_run_file(request.run, base=request.base, cache=request.cache, own=own, report=say, open_store=open_store)


def _line(request: AuditRequest, found: Found, segments: Sequence[Segment], *, start: Start) -> Line:
    """The history that the newest rounds continue. Raises InputError, also for a model to begin with of another history."""
    beside = () if start.manifest is None else (FoundCheckpoint(start.folder, start.manifest),)
    models: list[KnownModel] = []
    for each in (*found.checkpoints, *beside):
        manifest, decision = each.manifest, decision_in(each.manifest)
        ours = (manifest.run_id, manifest.instance) == (request.run.run_id, segments[0].header.instance.hex())
        if ours and manifest.digest is not None and decision is not None:
            models.append(KnownModel(manifest.step, bytes.fromhex(manifest.digest), decision.history))
    known = {} if request.signed is None else request.signed.histories
    line = line_of(segments, start=start.step, until=request.until, models=models, known=known)
    decided = None if start.manifest is None else decision_in(start.manifest)
    if decided is not None and line.has_left(decided.step, decided.history):
        message = (
            f"{start.name}, of step {decided.step}, is of another history than the newest rounds: left by a restore of the "
            "coordinator or a return, or another model; give another one with --checkpoint"
        )
        raise InputError("; ".join((message, *line.notes)))
    return line


def _expectations(
    request: AuditRequest, found: Found, planned: Plan, line: Line, *, start: Start
) -> tuple[Expectations, list[str], list[Difference]]:
    """What others say about the steps of a plan, a sentence for each checkpoint that is left out, and those that are damaged."""
    segments = line.segments
    by_step = anchors(planned, segments)
    decisions: dict[int, list[tuple[Decision, str]]] = {}
    notes: list[str] = []
    damaged: list[Difference] = []
    beside = () if request.checkpoint is None else checkpoints_in(request.checkpoint)
    for each in {each.folder.resolve(): each for each in (*found.checkpoints, *beside)}.values():
        if each.folder == start.folder or not _comparable(each, request, planned, segments):
            continue
        try:
            verify(each.folder, each.manifest)
        except ModelError as error:
            damaged.append(Difference(each.manifest.step, f"a checkpoint is damaged: {error}", str(each.folder)))
            continue

        step, source = each.manifest.step, f"the checkpoint {each.folder}"
        decision = decision_in(each.manifest)
        if decision is not None and line.has_left(step, decision.history):
            notes.append(
                f"{source}, of step {step}, is of another history than the newest rounds: left by a restore of the coordinator "
                "or a return, not counted"
            )
            continue
        if each.manifest.digest is not None:
            by_step.setdefault(step, []).append(Anchor(bytes.fromhex(each.manifest.digest), source))
        if decision is not None:
            decisions.setdefault(step, []).append((decision, source))
    if request.signed is not None:
        source = request.signed.source
        for step, digest in request.signed.ends.items():
            by_step.setdefault(step, []).append(Anchor(digest, f"what members signed, by {source}"))
        for step, decision in request.signed.decisions.items():
            decisions.setdefault(step, []).append((decision, source))
    return Expectations(anchors=by_step, decisions=decisions, disagreements=disagreements(planned, segments)), notes, damaged


def _comparable(each: FoundCheckpoint, request: AuditRequest, planned: Plan, segments: Sequence[Segment]) -> bool:
    """Whether a checkpoint is of this run, of a step of the plan, and of the history that is applied there."""
    manifest = each.manifest
    return (
        manifest.run_id == request.run.run_id
        and manifest.instance == segments[0].header.instance.hex()
        and planned.start <= manifest.step <= planned.until
        and manifest.generation == planned.generation_after(manifest.step)
    )


def _expect_free(out: Path) -> None:
    """Raise InputError for a folder that has something in it."""
    try:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            message = f"--out {out} exists and is not an empty folder; give another one, which is made"
            raise InputError(message)
    except OSError as error:
        message = f"--out {out} cannot be used: {error.strerror}; give another folder"
        raise InputError(message) from error


def _write(
    trainer: Trainer, out: Path, done: Replayed, planned: Plan, *, start: Start, run_id: str, segments: Sequence[Segment]
) -> None:
    """Write the masters as a checkpoint. What a journal does not say is left at what is known for certain."""
    step, before = done.last_step, start.manifest
    played = done.last
    epoch = 0 if before is None else before.epoch
    decision = None if before is None else decision_in(before)
    if played is not None:
        decision = Decision(step, played.epoch, played.height, played.statements, played.history)
        epoch = played.epoch
    following = next((each.round_of(step + 1) for each in segments if each.covers(step + 1)), None)
    facts = CheckpointFacts(
        run_id=run_id,
        step=step,
        epoch=epoch,
        data_index=max(done.next_sample, 0 if before is None else before.data_index),
        digest=done.digest,
        generation=planned.generation_after(step) if planned.stretches else segments[0].header.generation,
        mid_epoch=following is None or following.height != 0,
        instance=segments[0].header.instance,
        decision=decision,
    )
    save_checkpoint(out, facts, write=trainer.save)
