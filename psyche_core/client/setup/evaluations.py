"""Evaluations and prompts of a client while it trains, made from its settings: see `psyche_core.evaluation.in_run`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import anyio.to_thread
from anyio.from_thread import BlockingPortal

from psyche_core.client.runtime.resources import Resources
from psyche_core.config.options.client import ClientSettings
from psyche_core.evaluation.in_run import InRunEvaluator, Plan
from psyche_core.evaluation.spare_time import SpareTime
from psyche_core.telemetry import events as telemetry
from psyche_core.telemetry.sinks import EventBus

LAST_PROMPTS_SECONDS = 30.0
"""Longest wait at a run's end for the last model's answers to the prompts."""


class Evaluations:
    """A client's evaluations. resources: returns the open resources, None before there are any."""

    def __init__(self, settings: ClientSettings, resources: Callable[[], Resources | None], report: EventBus) -> None:
        self._resources = resources
        self._report = report
        self._portal: BlockingPortal | None = None
        self._reported_missing = False
        self.spare: SpareTime = SpareTime(self._module, self._prepare)
        self._evaluator = InRunEvaluator(plan_of(settings), self.spare, self._files, self._report_from_thread)

    async def at_end(self) -> None:
        """Let the run's last model answer the prompts."""
        await anyio.to_thread.run_sync(self._evaluator.answer_last, LAST_PROMPTS_SECONDS)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Evaluate inside the block."""
        async with BlockingPortal() as self._portal:
            self._evaluator.start()
            try:
                yield
            finally:
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(self._evaluator.stop)
                self._portal = None

    def _module(self) -> Any:
        resources = self._resources()
        if resources is None:
            return None
        module = getattr(resources.trainer, "inference_module", None)
        if module is None:
            self.spare.note_first_seen()
        if module is None and not self._reported_missing:
            self._reported_missing = True
            what = "evaluations need a transformers model in one process, which this one is not; training goes on without them"
            self._report_from_thread(telemetry.Problem("warning", what))
        return module

    def _prepare(self) -> None:
        resources = self._resources()
        assert resources is not None, "the module was there"
        trainer: Any = resources.trainer
        trainer.load_masters()

    def _files(self) -> Mapping[str, bytes]:
        resources = self._resources()
        return {} if resources is None else resources.trainer.description

    def _report_from_thread(self, event: telemetry.Event) -> None:
        portal = self._portal
        if portal is not None:
            with suppress(RuntimeError):  # the client has ended meanwhile
                portal.start_task_soon(self._report, event)


def wanted(settings: ClientSettings) -> bool:
    """Return whether the settings ask for any evaluation."""
    return bool(settings.eval_tasks) or settings.prompt_task


def plan_of(settings: ClientSettings) -> Plan:
    """Return the evaluation plan of a client's settings."""
    names = tuple(name.strip() for name in (settings.eval_tasks or "").split(",") if name.strip())
    return Plan(
        tasks=names,
        include=() if settings.eval_include_path is None else (settings.eval_include_path,),
        shots=settings.eval_fewshot,
        seed=settings.eval_seed,
        documents=settings.eval_task_max_docs,
        prompts=settings.prompt_task,
    )
