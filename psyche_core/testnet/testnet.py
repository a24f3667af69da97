"""A whole run on this machine: a server and N clients, each a process of its own, watched until the end.

The members run exactly what a user would run, and are observed only through the events they print. The first broken
guarantee (replicas that differ, accepted work lost, a member that dies) ends everything at once with a failure. The report is
always written, also when a signal ends the run, so that a failed run can be examined. With `kills`, clients are killed at random
and started again with the identity they had. If a client is killed so late that the run ends before its restart, no guarantee is
broken.
"""

from __future__ import annotations

import contextlib
import json
import random
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path

import anyio
import anyio.to_thread
from rich.console import Console
from rich.text import Text

from psyche_core.config.options.testnet import TestnetSettings
from psyche_core.config.run_config import RunFile
from psyche_core.coordinator.round import witness
from psyche_core.errors import BackendError, UserError
from psyche_core.hookspecs import MemberContext
from psyche_core.server.run_files import RunFiles
from psyche_core.server.token_preparation import prepare_tokens
from psyche_core.telemetry.events import Event, Problem, Started
from psyche_core.telemetry.sinks import to_json
from psyche_core.testnet.arguments import HOST, client_arguments, client_modules, server_arguments
from psyche_core.testnet.forking import ForkServer
from psyche_core.testnet.metrics_ports import metrics_ports, metrics_sentence
from psyche_core.testnet.processes import Child, Children, child_environment
from psyche_core.testnet.random_kills import RandomKills
from psyche_core.testnet.results_folder import prepare_folder, reserved_folder, result_files, state_file, stopped_sentence
from psyche_core.text_safety import printable_lines
from psyche_core.ui.event_text import describe
from psyche_core.ui.live import Display, LineDisplay, LiveDisplay, SilentDisplay
from psyche_core.ui.plot import plot_losses
from psyche_core.ui.run_metrics import RunMetrics
from psyche_core.ui.run_report import make_report, unmet, write_report
from psyche_core.ui.summary import summary
from psyche_core.wire.signing import SecretKey

START_SECONDS = 900.0
"""Longest wait for the server to listen, in seconds; tokenising a large text at first use takes long."""

ENDING_SECONDS = 120.0
"""Longest wait for the others after one member has ended, in seconds; they write their last checkpoints then."""

RESTART_SECONDS = 1.0
"""Seconds between a kill and the next process of the same client."""

LAST_KILL_SECONDS = 15.0
"""No client is killed if the run is expected to end within this many seconds, the time that a restarted client needs."""

TICK_SECONDS = 0.25
SHOWN_LOG_LINES = 15
MemberOptions = Callable[[MemberContext], list[str]]
LoseRoute = Callable[[str], str]
MakeDisplay = Callable[[RunMetrics, Console], Display]
Beside = Callable[[Path], AbstractAsyncContextManager[None]]


async def run_testnet(
    settings: TestnetSettings,
    files: RunFiles,
    member_options: MemberOptions | None = None,
    *,
    lose_route: LoseRoute | None = None,
    beside: Beside | None = None,
    screen: MakeDisplay | None = None,
    further_options: Sequence[str] = (),
) -> int:
    """Run the testnet. Returns the exit code: 0, or 1 if a member failed, a guarantee was broken or a figure was not reached.

    member_options, lose_route: of the backend's registration. beside: gets the folder of the results and is entered for as long
    as members run. screen: makes the display for `--logs tui`. further_options: of every client. Raises UserError for problems
    that the user can correct.
    """
    run, data = files.run, files.data
    check_port(settings.server_port)
    if settings.with_relay:
        check_port(settings.relay_port, option="--relay-port")
    ports = metrics_ports(settings.metrics_local_port, ["server", *client_names(settings)])
    if ports:
        print(metrics_sentence(ports), file=sys.stderr)
    kills = plan_kills(settings, run)
    out = settings.out if settings.out is not None else Path("runs") / run.run_id
    with reserved_folder(out):
        prepare_folder(out, settings, run)
        metrics = RunMetrics(run_id=run.run_id, total_steps=run.config.total_steps, allow_lost_shares=settings.allow_lost_shares)
        console = Console()
        if data is not None and files.data_port is None:

            def report_event(event: Event) -> None:
                if settings.logs == "json":
                    print(_json_line("testnet", event), flush=True)
                elif settings.logs != "none":
                    console.print(Text(describe(event)), soft_wrap=True)

            await prepare_tokens(data, report_event)
        started = time.monotonic()
        try:
            with _display(settings.logs, metrics, console, screen=screen) as display:
                testnet = _Testnet(
                    settings,
                    files,
                    member_options or _server_address,
                    lose_route=lose_route,
                    kills=kills,
                    out=out,
                    display=display,
                    ports=ports,
                    further_options=further_options,
                )
                async with contextlib.nullcontext() if beside is None else beside(out):
                    failures = await testnet.play()
        except anyio.get_cancelled_exc_class():
            write_report(out / "report.json", make_report(metrics, wall_seconds=time.monotonic() - started))
            print(printable_lines(stopped_sentence(out, settings, run)), file=sys.stderr)
            raise

        if not failures:
            failures += metrics.unfinished()
        report = make_report(metrics, wall_seconds=time.monotonic() - started)
        write_report(out / "report.json", report)
        if not failures:
            required = unmet(
                report, steps=settings.require_steps, epochs=settings.require_epochs, loss_drop=settings.require_loss_drop
            )
            failures += required
        try:
            await anyio.to_thread.run_sync(lambda: plot_losses(out / "loss.png", report, epoch_ends=metrics.epoch_ends))
        except ModuleNotFoundError as error:
            print(f"no loss.png: {error}; pip install 'psyche-core[plot]'", file=sys.stderr)

        if settings.logs not in ("json", "none"):
            console.print(summary(metrics, report, files=list(result_files(out, metrics))))
        for failure in dict.fromkeys(failures):
            print(f"Error: {printable_lines(failure)}", file=sys.stderr)
        return 1 if failures else 0


def client_names(settings: TestnetSettings) -> list[str]:
    """Names of the client processes, in the order of their numbers."""
    return [f"client-{number}" for number in range(1, settings.num_clients + 1)]


def plan_kills(settings: TestnetSettings, run: RunFile) -> RandomKills | None:
    """The plan for --random-kill-num and the related options; None if no client is killed. Raises UserError."""
    if settings.random_kill_num == 0:
        return None

    seed = settings.random_kill_seed
    if seed is None:
        seed = random.SystemRandom().randrange(1 << 32)
        print(f"killing clients at random; to kill the same ones again: --random-kill-seed {seed}", file=sys.stderr)
    return RandomKills(
        client_names(settings),
        number=settings.random_kill_num,
        interval=settings.random_kill_interval,
        seconds=settings.random_kill_seconds,
        seed=seed,
        keep=run.config.min_clients,
        quorum=witness.quorum(settings.num_clients),
        allowed=settings.mortal,
    )


def check_port(port: int, *, option: str = "--server-port") -> None:
    """Check, before anything is started, that no process listens on a TCP port, which `option` gave. Raises UserError."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            message = f"cannot use port {port} on {HOST}: {error.strerror}; choose another with {option}, or 0 for any free one"
            raise UserError(message) from error


class _Testnet:
    """One run of the processes. failures: reasons why it was ended early, if any."""

    def __init__(
        self,
        settings: TestnetSettings,
        files: RunFiles,
        member_options: MemberOptions,
        *,
        lose_route: LoseRoute | None,
        kills: RandomKills | None,
        out: Path,
        display: Display,
        ports: Mapping[str, int],
        further_options: Sequence[str] = (),
    ) -> None:
        self._settings = settings
        self._further_options = further_options
        self._ports = ports
        self._kills = kills
        self._run = files.run
        self._data = files.data
        self._serves_data = files.data_port is not None
        self._member_options = member_options
        self._lose_route = lose_route if settings.lose_route_after is not None else None
        self._out = out.absolute()
        self._display = display
        self._metrics = display.metrics
        self._environment = child_environment(threads=settings.torch_threads)
        if settings.hf_token is not None:
            self._environment["HF_TOKEN"] = settings.hf_token
        forks = ForkServer(client_modules(settings, files.run), environment=self._environment, log=self._out / "logs")
        self._children = Children(self._out / "logs", forks)
        self._clients: dict[str, Child] = {}
        self._address = ""
        self._listening = anyio.Event()
        self._over = anyio.Event()
        self._running = 0
        self._first_end: float | None = None
        self._failures: list[str] = []

    async def play(self) -> list[str]:
        """Start all processes, watch until all have ended or one has failed, stop them all. Returns the failures."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._children)
            async with anyio.create_task_group() as tasks:
                state = state_file(self._settings, self._run, out=self._out)
                arguments = server_arguments(
                    self._settings,
                    state=state,
                    out=self._out,
                    serves_data=self._serves_data,
                    metrics_port=self._ports.get("server"),
                )
                server = await self._children.start("server", arguments, environment=self._environment)
                self._running = 1 + self._settings.num_clients
                tasks.start_soon(self._follow, server)
                with anyio.move_on_after(START_SECONDS):
                    await self._listening.wait()
                if not self._address:
                    message = f"the server could not start: {self._cause(server)}"
                    raise UserError(message)

                names = client_names(self._settings)
                for name in names:
                    self._metrics.expect(name)
                for name in names:
                    await anyio.to_thread.run_sync(SecretKey.generate().save, self._key(name))
                    member = MemberContext(run_id=self._run.run_id, address=self._address, key_path=self._key(name))
                    options = await anyio.to_thread.run_sync(self._member_options, member)
                    arguments = client_arguments(
                        self._settings,
                        name,
                        run_id=self._run.run_id,
                        key=self._key(name),
                        data=self._data,
                        out=self._out,
                        measures=name == names[0],
                        metrics_port=self._ports.get(name),
                    )
                    arguments += [*options, *self._further_options]
                    tasks.start_soon(self._keep_running, name, arguments)
                tasks.start_soon(self._watch_clock)
                await self._over.wait()
                tasks.cancel_scope.cancel()

        return self._failures

    async def _keep_running(self, name: str, arguments: list[str]) -> None:
        """Start a client, and start it again each time we have killed it."""
        while True:
            client = self._clients[name] = await self._children.start(name, arguments, environment=self._environment, forked=True)
            killed = await self._follow(client)
            if not killed:
                return

            await anyio.sleep(RESTART_SECONDS)
            self._print(f"starting {name} again")

    async def _follow(self, child: Child) -> bool:
        """Enter a child's events until it ends, and check how it ended. Returns whether to start it again."""
        async for moment, event in child.events():
            self._metrics.handle(child.name, moment, event)
            self._display.show(child.name, event)
            if isinstance(event, Started) and event.role == "server":
                self._address = event.address
                self._listening.set()
            if self._metrics.violations:
                self._fail(*self._metrics.violations)

        code = await child.process.wait()
        self._listening.set()
        over = self._metrics.server_ended is not None
        if child.killed and not over:
            return True

        self._running -= 1
        self._first_end = self._first_end or time.monotonic()
        client = self._metrics.clients.get(child.name)
        too_late = over and client is not None and not client.whole
        if code != 0 and not too_late:
            self._fail(f"{child.name} ended with exit code {code}: {self._cause(child)}")
        elif self._running == 0:
            self._over.set()
        return False

    async def _watch_clock(self) -> None:
        """Update the display and enforce the time limits."""
        began = time.monotonic()
        limit = self._settings.time_limit
        while True:
            await anyio.sleep(TICK_SECONDS)
            self._display.show("testnet")
            now = time.monotonic()
            self._kill_some(now)
            await self._lose_a_route()
            if limit is not None and now - began > limit:
                self._fail(f"the run took longer than {limit:g} s")
            if self._first_end is not None and now - self._first_end > ENDING_SECONDS:
                self._fail(f"{self._running} processes were still running {ENDING_SECONDS:g} s after the first had ended")

    def _kill_some(self, now: float) -> None:
        """Kill the clients that the plan names now, if any."""
        remaining = self._metrics.remaining_seconds(time.time())
        if self._kills is None or remaining is None or remaining < LAST_KILL_SECONDS or self._first_end is not None:
            return

        whole = [client.name for client in self._metrics.clients.values() if client.whole and client.losses]
        for name in self._kills.victims(now, whole=whole):
            self._metrics.killed(name)
            self._clients[name].kill()
            self._print(f"killed {name}, kill {self._metrics.kills} of this run")

    async def _lose_a_route(self) -> None:
        """Break one of the routes to the coordinator, once, at the configured time."""
        lose, after = self._lose_route, self._settings.lose_route_after
        if lose is None or after is None or self._metrics.last_step < after:
            return

        self._lose_route = None
        try:
            self._print(await anyio.to_thread.run_sync(lose, self._address))
        except BackendError as error:
            self._fail(str(error))

    def _print(self, sentence: str) -> None:
        self._display.show("testnet", Problem("warning", sentence))

    def _fail(self, *sentences: str) -> None:
        if not self._over.is_set():
            self._failures += sentences
            self._over.set()

    def _cause(self, child: Child) -> str:
        """A child's error sentence, or the end of its log."""
        if child.sentence is not None:
            return child.sentence

        lines = child.last_lines(SHOWN_LOG_LINES)
        return "\n  ".join(["the end of its log:", *lines, f"(all of it: {child.log})"]) if lines else "its log is empty"

    def _key(self, name: str) -> Path:
        return self._out / "keys" / f"{name}.key"


def _server_address(member: MemberContext) -> list[str]:
    return ["--server-addr", member.address]


class _JsonDisplay(Display):
    """Writes each event as one JSON line, with the program that it comes from."""

    def show(self, source: str, event: Event | None = None) -> None:
        """Write the event."""
        if event is not None:
            print(_json_line(source, event), flush=True)


def _json_line(source: str, event: Event) -> str:
    return json.dumps({"program": source, **json.loads(to_json(event))})


def _display(logs: str, metrics: RunMetrics, console: Console, *, screen: MakeDisplay | None) -> Display:
    if logs == "tui" and screen is not None:
        return screen(metrics, console)
    if logs == "none":
        return SilentDisplay(metrics, console)
    if logs == "json":
        return _JsonDisplay(metrics, console)

    live = logs == "auto" and console.is_terminal
    return LiveDisplay(metrics, console) if live else LineDisplay(metrics, console)
