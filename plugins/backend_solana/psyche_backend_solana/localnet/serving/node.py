"""The node behind all RPC providers: takes requests, returns answers and notifications. No sockets, no clock, one thread.

JSON is parsed and written here, so that the event loop's thread does neither. A bad request has no effect except an error
object: an unexpected exception of a method is logged and answered with -32603, and the next request is handled as usual.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

from psyche_backend_solana.localnet.ledger.clock import Instant
from psyche_backend_solana.localnet.ledger.ledger import Ledger
from psyche_backend_solana.localnet.methods import ADMIN_METHODS, METHODS, Call
from psyche_backend_solana.localnet.rpc.faults import FaultSwitch
from psyche_backend_solana.localnet.rpc.parameters import shown
from psyche_backend_solana.localnet.rpc_error import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    RpcError,
)
from psyche_backend_solana.localnet.serving.subscriptions import Notification, Subscriptions
from psyche_backend_solana.localnet.settings import Limits

logger: logging.Logger = logging.getLogger("psyche.backend.solana.localnet")

T = TypeVar("T")
_NO_ANSWER = object()
Dispatch = Callable[[str, list[Any]], Any]


class Node:
    """Answers requests about one ledger.

    ledger: the chain. limits: bounds on requests. admin: whether to serve the methods in `admin`. save: writes the state, for
    these methods. providers: `host:port` of RPC and of websockets, for all RPC providers.
    """

    def __init__(
        self,
        ledger: Ledger,
        limits: Limits,
        *,
        admin: bool = False,
        save: Callable[[], None] | None = None,
        providers: Callable[[], Sequence[tuple[str, str]]] = tuple,
    ) -> None:
        self.ledger = ledger
        self._limits = limits
        self._methods = {**METHODS, **ADMIN_METHODS} if admin else METHODS
        self._save = save
        self._providers = providers
        self._subscriptions = Subscriptions(ledger)
        self._outgoing: list[tuple[int, str]] = []

    def answer(self, body: bytes, faults: FaultSwitch) -> bytes:
        """The answer to an HTTP request, single or batch; empty if there are only notifications."""

        def dispatch(method: str, params: list[Any]) -> Any:
            handler = self._methods.get(method)
            if handler is None:
                raise RpcError(METHOD_NOT_FOUND, "Method not found")

            return handler(self._call(params, faults))

        reply = self._reply(body, dispatch)
        self._fan_out()
        return b"" if reply is _NO_ANSWER else _dump(reply).encode()

    def receive(self, connection: int, text: str | bytes, faults: FaultSwitch) -> None:
        """Handle a websocket message; `take_outgoing` returns its answers and notifications."""
        first: list[Notification] = []

        def dispatch(method: str, params: list[Any]) -> Any:
            if not self._subscriptions.knows(method):
                raise RpcError(METHOD_NOT_FOUND, "Method not found")

            call = self._call(params, faults)
            result = self._subscriptions.answer(connection, method, call)
            if result is not True:
                first.extend(self._subscriptions.first_words(result, call))
            return result

        reply = self._reply(text, dispatch)
        if reply is not _NO_ANSWER:
            self._outgoing.append((connection, _dump(reply)))
        self._queue(first)

    def leave(self, connection: int) -> None:
        """Remove a websocket connection that has ended."""
        self._subscriptions.leave(connection)

    def begin_slot(self, instant: Instant) -> None:
        """Start a later slot."""
        self.ledger.begin_slot(instant)
        self._fan_out()

    @property
    def subscriptions(self) -> int:
        """Number of subscriptions of all connections."""
        return len(self._subscriptions)

    def act(self, action: Callable[[Ledger], T]) -> T:
        """Change the ledger without a transaction, and notify subscribers."""
        try:
            return action(self.ledger)
        finally:
            self._fan_out()

    def take_outgoing(self) -> list[tuple[int, str]]:
        """The waiting messages for websocket connections, in order."""
        outgoing, self._outgoing = self._outgoing, []
        return outgoing

    def _fan_out(self) -> None:
        self._queue(self._subscriptions.notifications_of(self.ledger.take_events()))

    def _queue(self, notifications: list[Notification]) -> None:
        self._outgoing.extend((one.connection, _dump(one.message)) for one in notifications)

    def _call(self, params: list[Any], faults: FaultSwitch) -> Call:
        return Call(
            ledger=self.ledger, values=params, limits=self._limits, faults=faults, save=self._save, providers=self._providers()
        )

    # ------------------------------------------------------------ JSON-RPC

    def _reply(self, body: str | bytes, dispatch: Dispatch) -> Any:
        try:
            request = json.loads(body, parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            return _failure(None, RpcError(PARSE_ERROR, "Parse error"))

        if not isinstance(request, list):
            return self._single(request, dispatch)

        if not request or len(request) > self._limits.batch:
            message = f"a batch has 1 to {self._limits.batch} requests, got {len(request)}"
            return _failure(None, RpcError(INVALID_REQUEST, message))

        replies = [reply for one in request if (reply := self._single(one, dispatch)) is not _NO_ANSWER]
        return replies or _NO_ANSWER

    def _single(self, request: Any, dispatch: Dispatch) -> Any:
        identifier = request.get("id") if isinstance(request, dict) else None
        if isinstance(identifier, bool) or not isinstance(identifier, str | int):
            identifier = None
        try:
            result = dispatch(*_read_request(request))
        except RpcError as error:
            reply = _failure(identifier, error)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # solders panics with a BaseException
            logger.exception("a request could not be answered: %s", shown(request))
            reply = _failure(identifier, RpcError(INTERNAL_ERROR, "Internal error"))
        else:
            reply = {"jsonrpc": "2.0", "result": result, "id": identifier}
        waits = "id" in request if isinstance(request, dict) else True
        unreadable = "error" in reply and reply["error"]["code"] == INVALID_REQUEST
        return reply if waits or unreadable else _NO_ANSWER


def _read_request(request: Any) -> tuple[str, list[Any]]:
    if not isinstance(request, dict):
        raise RpcError(INVALID_REQUEST, "Invalid request: a request is an object")

    if request.get("jsonrpc") != "2.0" or not isinstance(request.get("method"), str):
        raise RpcError(INVALID_REQUEST, 'Invalid request: expected "jsonrpc": "2.0" and a method')

    params = request.get("params")
    if params is None:
        return request["method"], []

    if not isinstance(params, list):
        raise RpcError(INVALID_PARAMS, f"Invalid params: params is a list, got {shown(params)}")

    return request["method"], params


def _failure(identifier: Any, error: RpcError) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "error": error.as_json(), "id": identifier}


def _dump(message: Any) -> str:
    return json.dumps(message, separators=(",", ":"))


def _refuse_constant(name: str) -> NoReturn:
    message = f"{name} is not JSON"
    raise ValueError(message)
