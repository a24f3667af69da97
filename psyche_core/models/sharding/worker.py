"""The program of a rank other than 0: join the group, build its part, and execute rank 0's commands until the last one.

On any error a rank ends its process with one sentence on stderr. It reports its own errors to the other ranks at once. If a
collective fails, it first waits for the detector to report, because the detector may know which rank caused the failure.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import torch

from psyche_core.errors import ModelError, PsycheError
from psyche_core.hookspecs import OptimizerRegistration, PartContext, ShardingContext
from psyche_core.interfaces.optimizer_parts import OptimizerPart
from psyche_core.interfaces.sharding import ShardingEngine
from psyche_core.models.hf.quiet import first_line
from psyche_core.models.memory import is_out_of_memory
from psyche_core.models.sharding.commands import Build, Call, Command, Divide, End, Work
from psyche_core.models.sharding.devices import on_device
from psyche_core.models.sharding.group.collectives import TorchGroup, is_lost_connection
from psyche_core.models.sharding.group.failure_detector import FailureDetector, report_failure
from psyche_core.models.sharding.group.rendezvous import join, reach_store
from psyche_core.models.sharding.model_shard import ModelShard
from psyche_core.models.sharding.part_values import receive_values, send_values
from psyche_core.text_safety import printable_lines

FAILED: Final = 1
WAIT_FOR_REASON: Final = 30.0
JOIN_SECONDS: Final = 600.0

EngineByName = Callable[[str], Callable[[ShardingContext], ShardingEngine]]
OptimizerByName = Callable[[str], OptimizerRegistration]


def serve(
    host: str,
    port: int,
    *,
    rank: int,
    world_size: int,
    device: torch.device,
    secret: bytes,
    engines: EngineByName,
    optimizers: OptimizerByName,
) -> None:
    """Work as a rank until rank 0 ends the group.

    host, port: of rank 0's store. secret: of the group. engines: returns an engine's factory by plugin name. optimizers:
    returns an optimizer's registration by plugin name. Raises ModelError if
    the rank cannot join. After that, every error ends the process with a sentence on stderr.
    """
    store = reach_store(host, port)
    settings = join(store, rank=rank, world_size=world_size, secret=secret, seconds=JOIN_SECONDS)
    detector = FailureDetector(store, rank=rank, others={0: "the client"}, lost=_end)
    detector.start()
    work_store = reach_store(host, port)
    try:
        work_store.wait(["local"], timedelta(seconds=JOIN_SECONDS))
        local = work_store.get("local") == b"1"
        group = TorchGroup(work_store, settings, rank=rank, device=device, local=local)
        _work(group, engines, optimizers, ended=detector.stop)
    except Exception as error:  # every error must be reported, so that no other rank waits for ever
        if is_lost_connection(error):
            time.sleep(WAIT_FOR_REASON)  # the detector ends this process meanwhile if another rank reports the cause
        sentence = f"rank {rank}: {describe(error)}"
        report_failure(store, sentence)
        _end(sentence)


def describe(error: BaseException) -> str:
    """Return a text that says what went wrong in a rank and, if possible, what to do."""
    if is_out_of_memory(error):
        return "out of memory; try a smaller --micro-batch-size, --gradient-checkpointing or more --tensor-parallelism"
    text = first_line(error) if isinstance(error, Exception) else type(error).__name__
    return text if isinstance(error, PsycheError) else f"{type(error).__name__}: {text}"


def part_context(shard: ModelShard, group: TorchGroup, settings: Any) -> PartContext:
    """Return what a rank's part of an optimizer is made from."""
    shapes = {name: placement.shape for name, placement in sorted(shard.engine.placements.items())}
    return PartContext(settings=settings, shapes=shapes, number=group.rank, parts=group.size, device=group.device)


def _part(divide: Divide, shard: ModelShard, group: TorchGroup, optimizers: OptimizerByName) -> OptimizerPart:
    """Make this rank's part. Raises ModelError."""
    registration = optimizers(divide.optimizer)
    if registration.create_part is None:
        message = f"the optimizer {divide.optimizer} of this machine cannot be divided; install the same plugins on all machines"
        raise ModelError(message)
    try:
        settings = registration.settings.model_validate_json(divide.settings)
    except ValueError as error:
        message = f"the optimizer {divide.optimizer} of this machine refuses the run's settings ({first_line(error)}); "
        raise ModelError(message + "install the same plugins on all machines") from error
    with on_device(group.device):
        return registration.create_part(part_context(shard, group, settings))


def _work(group: TorchGroup, engines: EngineByName, optimizers: OptimizerByName, *, ended: Callable[[], None]) -> None:
    shard: ModelShard | None = None
    part: OptimizerPart | None = None
    while True:
        command: Command = group.receive()
        match command:
            case Build():
                if shard is not None:
                    shard.close()
                part = None
                group.divide(data=command.data, tensor=command.tensor)
                shard = ModelShard(command, group, create_engine=engines(command.sharding))
            case Work():
                assert shard is not None, "rank 0 says how the model is built first"
                shard.work(command)
                if command.train:
                    shard.gradients()
                    if command.check:
                        shard.check()
                    shard.drop_gradients()
            case Divide():
                assert shard is not None, "rank 0 says how the model is built first"
                part = None  # its memory is free before the next one's is taken
                part = _part(command, shard, group, optimizers)
            case Call():
                assert part is not None, "rank 0 says which optimizer is divided first"
                with on_device(group.device):
                    send_values(group, 0, part.call(command.method, receive_values(group, 0)))
            case End():
                ended()  # from now on rank 0 may end first, which is no failure
                if shard is not None:
                    shard.close()
                group.close()
                return


def _end(sentence: str) -> None:
    """End the process at once. A normal exit could block, because threads of torch may wait for ranks that have ended."""
    try:
        sys.stderr.write(f"Error: {printable_lines(sentence)}\n")
        sys.stderr.flush()
    finally:
        os._exit(FAILED)
