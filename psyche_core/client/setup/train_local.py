"""Training in one process on this machine's data: the run file's model, optimizer and rates, without coordinator and network.

Batch sizes and the order of samples are those of a coordinator. Several members take turns, each with its own optimizer, to show
on one machine how the number of members changes the loss. Data that only a run's server can give is refused.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import anyio
import anyio.from_thread
import anyio.to_thread

from psyche_core.client.runtime.reports.step_figures import TrainedStep, described, figures_of
from psyche_core.client.runtime.sample_checks import read_samples
from psyche_core.client.setup.data_source import data_source, first_samples, held_out_place
from psyche_core.client.setup.local_run_file import local_run_file
from psyche_core.client.setup.parallelism import parallelism_of
from psyche_core.client.setup.preflight import expect_checkpoint_dir, expect_device, expect_held_out, expect_tokens
from psyche_core.config.options.train_local import TrainLocalSettings
from psyche_core.config.run_config import Choice, RunFile
from psyche_core.coordinator.round.batch_size import batch_size
from psyche_core.errors import ConfigError, UserError
from psyche_core.hookspecs import Parallelism
from psyche_core.plugins import PluginRegistry
from psyche_core.plugins.model_stores import StoreOpener
from psyche_core.storage.checkpoint_names import checkpoint_path
from psyche_core.storage.scratch import default_folder
from psyche_core.telemetry import events as telemetry
from psyche_core.telemetry.sinks import EventBus
from psyche_core.training.checkpoints.checkpoint import save_checkpoint
from psyche_core.training.checkpoints.manifest import CheckpointFacts
from psyche_core.types import BatchId
from psyche_core.wire.signing import SecretKey

if TYPE_CHECKING:
    from psyche_core.interfaces.data import Samples
    from psyche_core.training.trainer import Trainer


async def train_local(settings: TrainLocalSettings, registry: PluginRegistry, report: EventBus) -> telemetry.Ended:
    """Train to the last step. Raises UserError for what the user can fix, DataError, ModelError and NonFiniteError."""
    run = await anyio.to_thread.run_sync(local_run_file, settings)
    location = _data_location(settings, run)
    expect_held_out(settings)
    await anyio.to_thread.run_sync(expect_checkpoint_dir, settings)
    await anyio.to_thread.run_sync(expect_device, settings)
    from psyche_core.training.local_run import LocalRun

    parallelism = parallelism_of(settings)
    if parallelism is not None and settings.members > 1:
        message = "--members and --data-parallelism or --tensor-parallelism: this process can be part of one divided model only"
        raise UserError(message)

    cache = settings.cache_dir or default_folder()
    trainers = await anyio.to_thread.run_sync(_trainers, settings, registry, run, cache, parallelism, report)
    first, every = trainers[0], settings.optim_stats_steps
    statistics = None if every is None else first.update_statistics(every=every)
    local = LocalRun(trainers, statistics=statistics)

    def report_applied() -> None:
        for done in local.take_applies():
            report(telemetry.StepApplied(0, done.step, done.results, done.results, done.seconds))

    def report_statistics() -> None:
        for event in () if statistics is None else statistics.take():
            report(event)

    steps = settings.steps or run.config.total_steps
    report(replace(described(run.run_id, run.config, run.model), total_steps=steps))
    async with AsyncExitStack() as stack:
        stack.push_async_callback(_close, first)
        length = run.model.LLM.max_seq_len
        open_data = functools.partial(
            data_source, registry, sequence_length=length, key=SecretKey.generate(), base=settings.run_base, cache=cache / "data"
        )
        data = await stack.enter_async_context(await open_data(location))
        held_out = None
        if settings.validation_data is not None:
            place = held_out_place(settings.validation_data, settings.validation_token_size)
            provider = await stack.enter_async_context(await open_data(place))
            held_out = await first_samples(
                provider,
                settings.validation_sequences,
                sequence_length=length,
                vocab_size=first.vocab_size,
                name=registry.label("data", place.name),
            )

        async def validate() -> None:
            if held_out is not None:
                report(telemetry.Validated(local.applied, await anyio.to_thread.run_sync(first.evaluate, held_out)))

        await validate()
        data_name = registry.label("data", location.name)
        next_sample = 0
        for step, batches in rounds(run, steps, settings.members):
            shares: list[Samples] = [
                await read_samples(data, [batch], sequence_length=length, vocab_size=first.vocab_size, name=data_name)
                for batch in batches
            ]
            next_sample = batches[-1].last + 1
            done = await anyio.to_thread.run_sync(local.train, step, shares)
            report_applied()
            facts = TrainedStep(
                step,
                step - 1,
                done.loss,
                done.seconds,
                done.learning_rate,
                done.gradient_norm,
                first.vocab_size,
                done.compress_seconds,
            )
            report(figures_of(facts, batch_tokens=done.tokens, total_tokens=next_sample * length))
            report_statistics()
            report(telemetry.StepTrained(0, step, done.loss, done.tokens, done.seconds, done.payload_bytes))
            if step % settings.validation_every == 0 and step < steps:
                await validate()
        await anyio.to_thread.run_sync(local.finish)
        report_applied()
        report_statistics()
        await validate()

        digest = await anyio.to_thread.run_sync(first.full_digest)
        report(telemetry.EpochDigest(0, steps, digest.hex()))
        if settings.checkpoint_dir is not None:
            saved = CheckpointFacts(run_id=run.run_id, step=steps, epoch=0, data_index=next_sample)
            path = await anyio.to_thread.run_sync(_save, first, settings.checkpoint_dir, saved)
            report(telemetry.CheckpointSaved(steps, str(path)))

    ended = telemetry.Ended(f"trained {steps} steps", success=True)
    report(ended)
    return ended


def _data_location(settings: TrainLocalSettings, run: RunFile) -> Choice:
    if settings.data is not None:
        expect_tokens(settings.data, option="--data")
        return held_out_place(settings.data, settings.token_size)

    location = run.model.LLM.data_location
    if location.name == "Server":
        message = (
            f"{settings.state} has its data from the run's server, which is not there; name token files of this machine with "
            "--data (`psyche data tokenize` makes some)"
        )
        raise UserError(message)
    return location


def _trainers(
    settings: TrainLocalSettings,
    registry: PluginRegistry,
    run: RunFile,
    cache: Path,
    parallelism: Parallelism | None,
    report: Callable[[telemetry.Event], None],
) -> list[Trainer]:
    from psyche_core.training.checkpoints import sources

    started = perf_counter()
    anyio.from_thread.run_sync(report, telemetry.ModelLoading(sources.model_name(run.model.LLM)))
    import torch  # slow import: in the worker thread, not at program start

    from psyche_core.training.build import Compute, build_trainer

    def warn(sentence: str) -> None:
        anyio.from_thread.run_sync(report, telemetry.Problem("warning", sentence))

    if settings.torch_threads is not None:
        torch.set_num_threads(settings.torch_threads)
    stores = StoreOpener(registry)
    folder = sources.find(run.model.LLM.checkpoint, base=settings.run_base, cache=cache, report=warn, open_store=stores)
    trainers = [
        build_trainer(
            registry_load=registry.load,
            model_config=run.model,
            run_id=run.run_id,
            source=folder,
            compute=Compute(
                device=settings.device,
                dtype=settings.compute_dtype,
                attention=settings.attention,
                gradient_checkpointing=settings.gradient_checkpointing,
                micro_batch_size=settings.micro_batch_size,
                parallelism=parallelism,
                notice=warn,
            ),
        )
        for _ in range(settings.members)
    ]
    loaded = telemetry.ModelLoaded(trainers[0].parameter_count, perf_counter() - started)
    anyio.from_thread.run_sync(report, loaded)
    return trainers


def rounds(run: RunFile, steps: int, members: int) -> Iterator[tuple[int, list[BatchId]]]:
    """Yield each step's number and the members' samples. Raises ConfigError if a round has fewer samples than members."""
    config, index = run.config, 0
    for step in range(1, steps + 1):
        count = batch_size(
            index * run.model.LLM.max_seq_len,
            start=config.global_batch_size_start,
            end=config.global_batch_size_end,
            warmup_tokens=config.global_batch_size_warmup_tokens,
        )
        if count < members:
            message = f"a round of {count} samples is not enough for {members} members; use fewer --members"
            raise ConfigError(message)

        ends = [index + count * member // members for member in range(members + 1)]
        yield step, [BatchId(ends[member], ends[member + 1] - 1) for member in range(members)]
        index += count


async def _close(trainer: Trainer) -> None:
    with anyio.CancelScope(shield=True):
        await anyio.to_thread.run_sync(trainer.close)


def _save(trainer: Trainer, folder: Path, facts: CheckpointFacts) -> Path:
    directory = checkpoint_path(folder, facts.run_id, facts.step)
    save_checkpoint(directory, facts, write=trainer.save)
    return directory
