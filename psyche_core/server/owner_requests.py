"""Carries out what the owner of a run asks its running server to do, by signal or key: pause, resume, expel, update."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio.to_thread

from psyche_core.config.run_config import load_run_file
from psyche_core.coordinator.commands import Command, Pause, Resume, UpdateConfig
from psyche_core.errors import CoordinatorError, PsycheError
from psyche_core.interfaces.backend import MemberControl, OwnerControl
from psyche_core.telemetry.events import Mended, Problem
from psyche_core.telemetry.sinks import EventBus
from psyche_core.tui.lines import Request
from psyche_core.types import RunState


async def heed_requests(server: OwnerControl, report: EventBus, requests: AsyncIterator[Request], *, state_file: Path) -> None:
    """Carry out requests until no more can come. A request that is refused or fails is reported, and the others continue.

    state_file: the run file, which an update reads again.
    """
    async for request in requests:
        match request.what:
            case "pause":
                pause_or_resume(server, report)
            case "expel":
                _expel(server, report, request.argument)
            case "update":
                await _update(server, report, state_file)


def pause_or_resume(server: OwnerControl, report: EventBus) -> None:
    """Pause the run, or continue a paused one."""
    _submit(server, report, Resume() if server.state.run_state is RunState.Paused else Pause())


def _submit(server: OwnerControl, report: EventBus, command: Command) -> bool:
    """Submit a command; return whether the coordinator accepted it. A refusal is reported."""
    try:
        server.submit(command)
    except CoordinatorError as error:
        report(Problem("warning", f"the command {type(command).__name__} was rejected: {error.message}"))
        return False

    return True


def _expel(server: OwnerControl, report: EventBus, signer: str) -> None:
    if not isinstance(server, MemberControl):
        report(Problem("warning", "this server cannot expel members"))
        return

    try:
        server.expel(bytes.fromhex(signer))
    except ValueError:
        report(Problem("warning", f"no member has the key {signer}; nobody was expelled"))
        return

    report(Mended(f"{signer[:8]} was expelled by the owner; its key is refused until this server is started again"))


async def _update(server: OwnerControl, report: EventBus, state_file: Path) -> None:
    """Give the run the configuration that its file has now."""
    try:
        run = await anyio.to_thread.run_sync(load_run_file, state_file)
    except PsycheError as error:
        report(Problem("warning", f"the run was not updated: {error}"))
        return

    if run.run_id != server.state.run_id:
        report(Problem("warning", f"the run was not updated: {state_file} is of the run {run.run_id}"))
    elif _submit(server, report, UpdateConfig(config=run.config, model=run.model)):
        report(Mended(f"the run has the configuration of {state_file} now"))
