"""Opens model and data: before the client joins the run, and for each Load of the machine. Keeps at most one model in memory."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from time import perf_counter

import anyio

from psyche_core.client.machine.actions import Load
from psyche_core.client.machine.scheduler import starts_from_members
from psyche_core.client.runtime.resources import Resources, ResourcesRequest
from psyche_core.config.run_config import ModelConfig
from psyche_core.coordinator.state import NO_DIGEST, CoordinatorState
from psyche_core.telemetry.events import Event, ModelLoaded, ModelLoading
from psyche_core.training.checkpoints.initial_model import NoModelSource
from psyche_core.training.checkpoints.sources import model_name


class ResourcesOpener:
    """Opens resources, one at a time. build, check: see `worker.Worker`."""

    def __init__(
        self,
        build: Callable[[ResourcesRequest], Awaitable[Resources]],
        *,
        report: Callable[[Event], None],
        check: Callable[[CoordinatorState], Awaitable[None]] | None,
    ) -> None:
        self._build = build
        self._report = report
        self._check = check
        self._prepared: tuple[ModelConfig, Resources] | None = None
        self._opening = anyio.Lock()

    async def prepare(self, state: CoordinatorState, *, is_loaded: Callable[[], bool]) -> None:
        """Open everything before the client joins, so that a client that cannot take part reports why and does not join.

        The first Load uses what was opened. The model stays closed if other members must describe it, or if a run that has begun
        still names a stored model: its next epoch may begin with the members' own model. is_loaded: whether a Load has opened a
        model. Raises ModelError, DataError and ConfigError.
        """
        async with self._opening:
            if is_loaded() or self._fitting(state) is not None:
                return
            if self._check is not None:
                await self._check(state)
            if state.progress.step == 1 or starts_from_members(state):
                with contextlib.suppress(NoModelSource):
                    self._prepared = state.model, await self._open(ResourcesRequest(state))

    async def load(self, work: Load) -> Resources:
        """Return what was opened before joining if it still fits the run; otherwise close it and open the model again.

        Raises NoModelSource, ModelError, DataError and ConfigError.
        """
        async with self._opening:  # a restarted client that is still a member joins and loads at the same time
            prepared = None if work.fresh else self._fitting(work.state)
            self._prepared = None  # never keep a second model in memory
            return prepared or await self._open(ResourcesRequest(work.state, fresh=work.fresh))

    def _fitting(self, state: CoordinatorState) -> Resources | None:
        """Return what was opened if it still fits the run; otherwise close it and return None."""
        if self._prepared is None:
            return None

        model, resources = self._prepared
        if model != state.model or (resources.step is not None and resources.step >= state.progress.step):
            self._prepared = None
            return None

        return resources

    async def _open(self, request: ResourcesRequest) -> Resources:
        started = perf_counter()
        self._report(ModelLoading(model_name(request.state.model.LLM)))
        resources = await self._build(request)
        step = resources.stored_step if resources.step is None else resources.step
        self._report(ModelLoaded(resources.trainer.parameter_count, perf_counter() - started, step))
        return resources


def start_in(state: CoordinatorState, resources: Resources, digest: bytes) -> tuple[int | None, tuple[tuple[int, bytes], ...]]:
    """Return where a client starts: the step of its master weights (None if unknown), and the signed ends that it holds.

    digest: full digest of the master weights, 32 bytes. The step of a stored model is used if the coordinator knows it and the
    signed digest matches.
    """
    stored, held = resources.stored_step, resources.held
    if resources.step is not None:
        if resources.journal is not None:
            held += ((resources.step, digest),)  # our disk still has this model after we have trained further
        return resources.step, held

    known = stored is not None and not state.from_checkpoint and stored == state.stored.step
    if known and state.stored.digest in (NO_DIGEST, digest):
        return stored, held

    # the stored model may be an earlier end
    return None, held + tuple((end.step, digest) for end in state.ends if (end.step, end.digest) == (stored, digest))
