"""A coordinator inside a web application: it starts and ends with the application and serves its state and events over HTTP.

This is an ASGI application that can be mounted in a Starlette or FastAPI application, or served alone. It only reports. The
outer application decides who may read, and adds its own routes for commands such as pause. Members connect to the coordinator's
own address, not through the web server. Starlette is imported when an application is made (extra `asgi`).
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Unpack

from psyche_core.errors import UserError
from psyche_core.sdk.coordinator import Coordinator
from psyche_core.sdk.run_config import RunConfig
from psyche_core.sdk.run_events import RunEvent, phase_of
from psyche_core.types import RunState

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from psyche_core.sdk.argument_types import CoordinatorArguments

HEARTBEAT_SECONDS = 15.0
"""After this many seconds without an event a comment is sent, so that proxies and the server notice a lost connection."""

_MOST_DIGITS = 18
"""Maximum number of digits of an event's number. Real ones are shorter, and Python cannot convert very long ones."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class CoordinatorApp:
    """Hosts a run's coordinator during the lifespan of an ASGI application, and reports its state and events.

    Example:
        host = psyche.CoordinatorApp(run, backend="tcp", host="0.0.0.0", port=20000, state_dir="saved")
        app = FastAPI(lifespan=host.lifespan)  # or Starlette(…); mounted applications have no lifespan of their own
        app.mount("/run", host)

    run and the other arguments: as `Coordinator` takes them. Routes, relative to where it is mounted:
    `GET /` returns the current state as one JSON object: run_id, backend, address (for clients that join), phase, epoch, step
    (next to train), total_steps, height (of the round; null before the first), needed (number of members the run waits for, else
    null), members (each with `member`, 64 hex digits, and `state`: Waiting, or the name of its ClientState), problem (the error
    that stopped the server, else null). `GET /events` returns `Coordinator.events` as server-sent events, from the start. An
    event's name is its class in snake case (`round_settled`), and its data is one JSON object with bytes in hex; the last event
    is `closed`. A browser that reconnects continues after the last event it received. Both routes answer 503 while no lifespan
    runs.

    Raises UserError if Starlette is not installed. Guaranteed: every start of the application makes a new Coordinator, and an
    exception of it stops the start. Not guaranteed: that the run outlives the application; give a `state_dir` for that. An open
    `/events` connection may delay the stop of a web server: set a time limit (uvicorn: `--timeout-graceful-shutdown`).
    """

    def __init__(self, run: RunConfig, **hosting: Unpack[CoordinatorArguments]) -> None:
        try:
            from starlette.applications import Starlette
            from starlette.routing import Route
        except ImportError as error:
            message = "a coordinator in a web application needs Starlette: pip install 'psyche-core[asgi]'"
            raise UserError(message) from error

        self._run, self._hosting = run, hosting
        self._make()  # to report wrong arguments now
        self._coordinator: Coordinator | None = None
        self._start = ""
        routes = [Route("/", self._state), Route("/events", self._events)]
        self._app = Starlette(routes=routes, lifespan=self.lifespan)

    @property
    def coordinator(self) -> Coordinator:
        """The running coordinator, for the application's own routes. Raises RuntimeError while no lifespan runs."""
        if self._coordinator is None:
            message = "the coordinator has not started; give the outer application lifespan=host.lifespan"
            raise RuntimeError(message)
        return self._coordinator

    @asynccontextmanager
    async def lifespan(self, app: object) -> AsyncIterator[None]:  # noqa: ARG002 # the signature that ASGI applications require
        """Start the coordinator, and stop it at the end of the block. app: the outer application; not used.

        Raises like `Coordinator`.
        """
        async with self._make() as coordinator:
            self._coordinator, self._start = coordinator, secrets.token_hex(4)
            try:
                yield
            finally:
                self._coordinator = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, as ASGI demands."""
        await self._app(scope, receive, send)

    def _make(self) -> Coordinator:
        return Coordinator(self._run, **self._hosting)

    async def _state(self, request: Request) -> Response:  # noqa: ARG002  # Starlette's signature
        from starlette.responses import JSONResponse

        return self._not_here() or JSONResponse(run_summary(self.coordinator))

    async def _events(self, request: Request) -> Response:
        from starlette.responses import StreamingResponse

        seen, _, number = request.headers.get("last-event-id", "").partition("-")
        ours = seen == self._start and number.isdecimal() and len(number) <= _MOST_DIGITS
        after = int(number) if ours else 0
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # the second: nginx must not buffer events
        refused = self._not_here()
        if refused is not None:
            return refused
        stream = _stream(self.coordinator, start=self._start, after=after)
        return StreamingResponse(stream, media_type="text/event-stream", headers=headers)

    def _not_here(self) -> Response | None:
        from starlette.responses import JSONResponse

        if self._coordinator is not None:
            return None
        message = "the coordinator has not started; the outer application needs lifespan=host.lifespan"
        return JSONResponse({"problem": message}, status_code=503)


def run_summary(coordinator: Coordinator) -> dict[str, Any]:
    """Return the answer to `GET /`; see `CoordinatorApp`. JSON types only."""
    state, place = coordinator.state, coordinator.address
    phase = phase_of(state)
    members = []
    if state.run_state is not RunState.WaitingForMembers:
        members = [{"member": client.id.signer.hex(), "state": client.state.name} for client in state.epoch.clients]
    known = {each["member"] for each in members}
    waiting = [each.signer.hex() for each in state.pending]
    members += [{"member": member, "state": "Waiting"} for member in waiting if member not in known]
    return {
        "run_id": state.run_id,
        "backend": place.backend,
        "address": str(place),
        "phase": phase.phase,
        "epoch": phase.epoch,
        "step": phase.step,
        "total_steps": state.config.total_steps,
        "height": phase.height,
        "needed": phase.needed,
        "members": members,
        "problem": _problem(coordinator),
    }


def event_message(event: RunEvent) -> tuple[str, dict[str, Any]]:
    """Return the name and the fields of a coordinator's event. The fields have JSON types; bytes become hex."""
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(event).__name__).lower()
    return name, {key: value.hex() if isinstance(value, bytes) else value for key, value in asdict(event).items()}


async def _stream(coordinator: Coordinator, *, start: str, after: int) -> AsyncIterator[str]:
    async for number, event in coordinator.log.numbered(after=after, beat=HEARTBEAT_SECONDS):
        if event is None:
            yield ": waiting\n\n"
        else:
            yield _message(*event_message(event), identity=f"{start}-{number}")
    yield _message("closed", {"phase": coordinator.state.run_state.name, "problem": _problem(coordinator)})


def _message(name: str, fields: dict[str, Any], *, identity: str | None = None) -> str:
    first = "" if identity is None else f"id: {identity}\n"
    return f"{first}event: {name}\ndata: {json.dumps(fields)}\n\n"


def _problem(coordinator: Coordinator) -> str | None:
    failure = coordinator.failure
    return None if failure is None else f"{failure}" or type(failure).__name__
