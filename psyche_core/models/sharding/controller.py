"""Rank 0's side of a group: starts and invites the other ranks, sends them commands, detects failures, and ends them.

After the first failure, all methods raise RanksLost with the same sentence with which all ranks end. The ranks started here are
then killed; those on other machines end when they read the failure in the store. Nothing is retried: restarting the client
restarts its ranks.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch

from psyche_core.errors import ModelError, RanksLost
from psyche_core.hookspecs import Parallelism, PartContext, ShardingContext
from psyche_core.interfaces.optimizer_parts import OptimizerPart, PartValues
from psyche_core.interfaces.sharding import ShardingEngine
from psyche_core.models.hf.batches import Batch
from psyche_core.models.sharding.commands import Build, Call, Divide, End, Work
from psyche_core.models.sharding.devices import on_device, rank_device
from psyche_core.models.sharding.group.collectives import TorchGroup, is_lost_connection
from psyche_core.models.sharding.group.failure_detector import FailureDetector, report_failure
from psyche_core.models.sharding.group.processes import LocalRanks
from psyche_core.models.sharding.group.rendezvous import invite, reach_store, serve_store
from psyche_core.models.sharding.model_shard import ModelShard
from psyche_core.models.sharding.part_values import put, receive_values, send_values
from psyche_core.models.sharding.worker import describe, part_context

LOCAL_JOIN_SECONDS: Final = 600.0
OTHERS_JOIN_SECONDS: Final = 1800.0
_WAIT_FOR_REASON: Final = 30.0


class RankController:
    """The ranks of a group, see the module. device_name: as given by the user. Raises ModelError if the ranks cannot start."""

    def __init__(self, parallelism: Parallelism, *, device_name: str) -> None:
        self._lost = ""
        self._losing = threading.Lock()
        self._found = threading.Event()
        self._local = LocalRanks()
        self._detector: FailureDetector | None = None
        self._group: TorchGroup | None = None
        self._shard: ModelShard | None = None
        self._part: OptimizerPart | None = None
        self._part_number = 0
        self._calls = threading.RLock()  # masters are read in other threads than those that train
        self._closed = False
        local_ranks = _local_ranks(parallelism)
        device = rank_device(device_name, 0)
        self._store, host, port = serve_store(parallelism.bind)
        try:
            secret = parallelism.secret or secrets.token_bytes(32)
            backend = "nccl" if device.type == "cuda" else "gloo"
            threads = parallelism.torch_threads or (1 if device.type == "cpu" else None)
            if threads is not None:
                torch.set_num_threads(threads)  # otherwise ranks on the same CPU compete for its cores
            for rank in range(1, local_ranks):
                arguments = (
                    *("--main-host", host, "--port", str(port), "--world-size", str(parallelism.ranks)),
                    *("--start-rank", str(rank), "--device", str(rank_device(device_name, rank))),
                )
                self._local.start(rank, arguments, secret=secret, threads=threads)
            self._start(parallelism, local_ranks, device, backend, secret, (host, port))
        except BaseException:
            self._give_up()
            raise

    def build(
        self,
        build: Build,
        *,
        create_engine: Callable[[ShardingContext], ShardingEngine],
        buffers: Mapping[str, torch.Tensor],
    ) -> ModelShard:
        """Build a model's parts on all ranks, replacing earlier ones, and return rank 0's part.

        buffers: of the whole module, by name. Raises RanksLost.
        """
        with self._together():
            assert self._group is not None, "made with the controller"
            if self._shard is not None:
                self._shard.close()
            self._part = None
            self._group.send(build)
            self._group.divide(data=build.data, tensor=build.tensor)
            self._shard = ModelShard(build, self._group, create_engine=create_engine, buffers=buffers)
        return self._shard

    @property
    def processes(self) -> dict[int, int]:
        """Process ids of the ranks that were started here, by rank."""
        return self._local.processes

    def compute(
        self,
        work: Work,
        *,
        batch: Batch,
        weights: Mapping[str, torch.Tensor],
        into: Mapping[str, torch.nn.Parameter] | None = None,
    ) -> float:
        """Do one call on all ranks and return the summed loss in nats.

        batch, weights: complete. into: parameters whose `.grad` is set to the gradients. Raises RanksLost.
        """
        with self._together():
            assert self._group is not None, "made with the controller"
            assert self._shard is not None, "a model is built first"
            self._group.send(work)
            total = self._shard.work(work, batch=batch, weights=weights)
            if work.train:
                self._shard.gradients(into)
                if work.check:
                    self._shard.check()
                self._shard.drop_gradients()
            return total

    def divide_optimizer(self, divide: Divide, *, settings: Any, create_part: Callable[[PartContext], OptimizerPart]) -> int:
        """Make a part of an optimizer on each rank, replacing earlier ones. Returns the number that `call_parts` wants.

        settings, create_part: the validated settings and the factory of what `divide` names. Raises RanksLost.
        """
        with self._together():
            assert self._group is not None, "made with the controller"
            assert self._shard is not None, "a model is built first"
            self._part = None
            self._group.send(divide)
            with on_device(self._group.device):
                self._part = create_part(part_context(self._shard, self._group, settings))
            self._part_number += 1
        return self._part_number

    def call_parts(
        self, number: int, method: str, given: Sequence[PartValues], *, into: Sequence[Mapping[str, torch.Tensor]]
    ) -> list[PartValues]:
        """Call a method of all parts, see `OptimizerParts.call`. number: from `divide_optimizer`.

        Raises RanksLost, and ValueError for parts that were replaced.
        """
        if number != self._part_number:
            message = "these parts of an optimizer were replaced by those of another one"
            raise ValueError(message)

        with self._together():
            group, part = self._group, self._part
            assert group is not None, "made with the controller"
            assert part is not None, "an optimizer is divided first"
            group.send(Call(method=method))
            with on_device(group.device):
                for rank in range(1, group.size):
                    send_values(group, rank, given[rank])
                answers = [put(part.call(method, given[0]), into[0])]
                answers += [receive_values(group, rank, into=into[rank]) for rank in range(1, group.size)]
        return answers

    def close(self) -> dict[int, int]:
        """End all ranks in an orderly way. Returns the exit codes of those started here, by rank. Idempotent."""
        if self._closed or self._lost or self._group is None or self._detector is None:
            self._give_up()
            return {}

        self._detector.stop()  # first, because the end of a rank is no failure from now on
        try:
            self._group.send(End())
            if self._shard is not None:
                self._shard.close()
            self._group.close()
        except Exception:  # a rank has just failed: only the others remain to be ended
            self._give_up()
            return {}

        self._closed = True
        return self._local.wait()

    def _start(
        self, parallelism: Parallelism, local: int, device: torch.device, backend: str, secret: bytes, address: tuple[str, int]
    ) -> None:
        alone = local == parallelism.ranks
        others: dict[int, str] = {}
        settings = invite(
            self._store,
            world_size=parallelism.ranks,
            backend=backend,
            secret=secret,
            seconds=LOCAL_JOIN_SECONDS if alone else OTHERS_JOIN_SECONDS,
            problem=self._local.problem,
            joined=others.__setitem__,
        )
        self._detector = FailureDetector(
            reach_store(*address), rank=0, others=others, lost=self._on_loss, problem=self._local.problem
        )
        self._detector.start()
        self._store.set("local", str(int(alone)))
        with self._together():
            self._group = TorchGroup(
                reach_store(*address),
                settings,
                rank=0,
                device=device,
                local=alone,
            )

    @contextmanager
    def _together(self) -> Iterator[None]:
        """Run a block in which all ranks take part. A failure on any rank ends all ranks, and raises RanksLost here."""
        self._calls.acquire()
        try:
            if (lost := self._lost) or self._closed:
                raise RanksLost(lost or "the model was closed")
            yield
        except RanksLost:
            raise
        except BaseException as error:
            if not self._found.is_set() and is_lost_connection(error):
                self._found.wait(_WAIT_FOR_REASON)
            if not self._lost:
                self._on_loss(str(error) if isinstance(error, ModelError) else f"rank 0: {describe(error)}")
            if not isinstance(error, Exception):
                raise
            raise RanksLost(self._lost) from error
        finally:
            self._calls.release()

    def _on_loss(self, sentence: str) -> None:
        """Record the first failure and end all ranks. Called in the detector's thread or in the caller's."""
        with self._losing:
            if self._lost:
                return
            self._lost = sentence
        report_failure(self._store, sentence)
        self._found.set()
        self._local.kill()
        if self._group is not None:
            self._group.abort()

    def _give_up(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._detector is not None:
            self._detector.stop()
        self._on_loss("the client ended")


def _local_ranks(parallelism: Parallelism) -> int:
    local = parallelism.ranks if parallelism.local_ranks is None else parallelism.local_ranks
    if not 1 <= local <= parallelism.ranks:
        message = f"of {parallelism.ranks} ranks, 1 to {parallelism.ranks} run on this machine, got {local}"
        raise ModelError(message)
    if local < parallelism.ranks and (parallelism.bind is None or parallelism.secret is None):
        message = "ranks on other machines need an address and a secret: --sidecar-bind and --sidecar-secret-file"
        raise ModelError(message)
    return local
