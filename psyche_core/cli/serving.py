"""The server program: prepare the data, host the coordinator, tell what happens.

Decided: token files are made at first use, before the server listens, so that a client never finds data half written; the
program ends when the run is finished and everybody was told. Imports no torch.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

import anyio
import anyio.to_thread

from psyche_core.builtin.local_data import LocalData
from psyche_core.builtin.text_corpus import TextProgress, prepare_text
from psyche_core.cli.run_files import load_run
from psyche_core.client.report import Ended, PhaseChanged, Problem, Report, Started
from psyche_core.coordinator import new_state
from psyche_core.coordinator.commands import ClientsExited, Event
from psyche_core.coordinator.state import CoordinatorState, Progress
from psyche_core.errors import BackendError, UserError
from psyche_core.hookspecs import ServerContext
from psyche_core.plugins import PluginRegistry
from psyche_core.run_config import DataFile
from psyche_core.settings import ServerSettings
from psyche_core.types import RunState


async def serve_run(settings: ServerSettings, registry: PluginRegistry, report: Report) -> Ended:
    """Host a run until it is finished. Raises UserError for what the user can mend, BackendError otherwise."""
    files = load_run(settings.state, settings.data_config, registry)
    create_server = registry.load("backend", settings.backend).create_server
    if create_server is None:
        message = f"the backend {settings.backend} is not one that somebody hosts; it needs no server"
        raise UserError(message)

    data = await _open_data(files.data) if files.data is not None else None
    progress = files.run.progress
    state = new_state(
        files.run.run_id,
        files.run.config,
        files.run.model,
        progress=Progress(progress.epoch, progress.step, progress.epoch_start_data_index),
        now=int(time.time()),
    )
    context = ServerContext(
        state=state,
        host=settings.host,
        port=settings.server_port,
        data=data,
        data_port=files.data_port,
        withdraw_on_disconnect=settings.withdraw_on_disconnect,
        on_event=phase_reporter(report),
    )
    async with contextlib.AsyncExitStack() as stack:
        if data is not None:
            await stack.enter_async_context(data)
        try:
            server = await stack.enter_async_context(create_server(context))
        except OSError as error:
            message = f"cannot listen on {settings.host}:{settings.server_port}: {error.strerror}; choose another --server-port"
            raise UserError(message) from error

        report(Started("server", "", files.run.run_id, server.address))
        await server.serve()
        if server.state.run_state is not RunState.Finished:
            message = f"the server stopped in {server.state.run_state.name}, before the run was finished"
            raise BackendError(message)

        ended = Ended(f"the run finished after {server.state.progress.step - 1} steps", success=True)
        report(ended)
        return ended


def phase_reporter(report: Report) -> Callable[[CoordinatorState, tuple[Event, ...]], None]:
    """An `on_event` that tells phase changes, and clients lost, as they happen."""
    seen: list[tuple[object, ...]] = []

    def tell(state: CoordinatorState, events: tuple[Event, ...]) -> None:
        height = state.current_round.height if state.current_round is not None else None
        phase = (state.run_state, state.progress.epoch, height)
        if seen != [phase]:
            seen[:] = [phase]
            clients = len(state.healthy_slots)
            report(PhaseChanged(state.run_state.name, state.progress.epoch, state.progress.step, clients, height))
        for event in events:
            if isinstance(event, ClientsExited):
                names = ", ".join(state.epoch.clients[slot].id.short for slot in event.slots if slot < len(state.epoch.clients))
                report(Problem("warning", f"epoch {event.epoch}: lost {names or len(event.slots)}"))

    return tell


async def _open_data(data_file: DataFile) -> LocalData:
    """The provider a data file describes, its token files made first if they have to be. Entered by the caller."""
    with _progress_bar(f"preparing {data_file.dir}") as progress:
        try:
            await anyio.to_thread.run_sync(lambda: prepare_text(data_file, progress=progress))
        except TimeoutError as error:
            raise UserError(str(error)) from error

    return LocalData.from_data_file(data_file)


@contextlib.contextmanager
def _progress_bar(title: str) -> Iterator[Callable[[TextProgress], None]]:
    """A progress bar on stderr while text is tokenised; shows nothing where nothing has to be made."""
    from rich.console import Console
    from rich.progress import Progress as Bar

    bar = Bar(console=Console(file=sys.stderr), transient=True)
    task = bar.add_task(title, total=None)

    def advance(done: TextProgress) -> None:
        bar.start()
        bar.update(task, total=done.total, completed=done.documents)

    try:
        yield advance
    finally:
        if bar.live.is_started:
            bar.stop()
