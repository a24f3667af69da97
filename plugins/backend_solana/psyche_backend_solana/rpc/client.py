"""JSON-RPC calls over several endpoints, each with retries, failover and a deadline.

Calls go through solana-py's client, with its own retries off, because a retry may have to go to another endpoint. `choice` and
`failures` decide what to do after a failure. A call returns the answer's `result` as JSON. Endpoints that failed are probed with
`getSlot` beside the ordinary calls. After its deadline a call raises RpcUnavailable with the last failure.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Sequence
from typing import Any

import anyio
import anyio.to_thread
import httpx2
from anyio.abc import AsyncResource
from pydantic import ValidationError
from solana.exceptions import SolanaRpcException
from solana.rpc.async_api import AsyncClient
from solana.rpc.jsonrpc import JsonRpcRequest, SolanaJsonRpcError

from psyche_backend_solana.rpc import choice
from psyche_backend_solana.rpc.answer_limit import UNCOMPRESSED, limit_answers
from psyche_backend_solana.rpc.endpoints import Endpoint
from psyche_backend_solana.rpc.failures import Failure, RpcError, Verdict, of_answer, of_connection, of_status
from psyche_core.errors import BackendError

logger: logging.Logger = logging.getLogger("psyche.backend.solana")

CALL_SECONDS = 10.0
"""Maximum seconds to wait for one endpoint's answer."""


class RpcUnavailable(BackendError):
    """No endpoint answered before the deadline."""


class Rpc(AsyncResource):
    """The RPC endpoints. An async context manager; create it inside the event loop that uses it.

    bytes_read, requests: bytes of the bodies of all answers so far, and calls made, retries included.
    """

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self.endpoints: tuple[Endpoint, ...] = tuple(endpoints)
        self._clients: dict[int, AsyncClient] = {}
        self._choice = choice.EndpointChoice(len(self.endpoints))
        self._random = random.SystemRandom()
        self._probes: set[asyncio.Task[None]] = set()
        self.bytes_read: int = 0
        self.requests: int = 0

    @property
    def current(self) -> Endpoint:
        """The endpoint that is asked first."""
        return self.endpoints[self._choice.current]

    async def call(self, method: str, *parameters: Any, timeout: float) -> Any:
        """The result of a call.

        Raises RpcError for an error that every endpoint would return (its verdict is neither AGAIN nor ELSEWHERE),
        RpcUnavailable after `timeout` seconds without an answer.
        """
        deadline = anyio.current_time() + timeout
        last: Failure | None = None
        for attempt in range(1_000_000):
            unable = 0
            for number in self._choice.order():
                left = deadline - anyio.current_time()
                if left <= 0:
                    raise _unavailable(method, timeout, last)
                try:
                    result = await self._ask(number, method, parameters, min(left, CALL_SECONDS))
                except RpcError as error:
                    if error.failure.verdict not in (Verdict.AGAIN, Verdict.ELSEWHERE):
                        self._choice.succeeded(number)
                        raise
                    last = error.failure
                    unable += last.verdict is Verdict.ELSEWHERE
                    self._note_failure(number, last)
                else:
                    self._choice.succeeded(number)
                    self._start_probe()
                    return result

            if unable == len(self.endpoints):
                assert last is not None
                raise RpcError(Failure(Verdict.FATAL, last.sentence))
            left = deadline - anyio.current_time()
            await anyio.sleep(min(choice.pause(attempt, self._random.random()), max(0.0, left)))

        raise _unavailable(method, timeout, last)

    async def ask_each(self, method: str, *parameters: Any, timeout: float) -> int:
        """Send a call to all endpoints at the same time, for resending transactions. Returns how many accepted it."""
        accepted = 0

        async def ask(number: int) -> None:
            nonlocal accepted
            with contextlib.suppress(RpcError):
                await self._ask(number, method, parameters, timeout)
                accepted += 1

        async with anyio.create_task_group() as group:
            for number in range(len(self.endpoints)):
                group.start_soon(ask, number)
        return accepted

    async def aclose(self) -> None:
        """Close; idempotent."""
        for probe in tuple(self._probes):
            probe.cancel()
        with anyio.CancelScope(shield=True):
            if self._probes:
                await asyncio.wait(self._probes)
            while self._clients:
                await self._clients.popitem()[1].close()

    async def _ask(self, number: int, method: str, parameters: Sequence[Any], timeout: float) -> Any:
        name = self.endpoints[number].name
        self.requests += 1
        request = JsonRpcRequest(method=method, params=list(parameters) or None)
        try:
            with anyio.fail_after(timeout):
                client = await self._client(number)
                return await client.send_rpc_request(request, Any)
        except SolanaJsonRpcError as error:
            raise RpcError(of_answer(error.code, error.message, error.data, endpoint=name)) from error
        except SolanaRpcException as error:
            raise RpcError(_of_http(error.__cause__, name)) from error
        except TimeoutError as error:
            raise RpcError(of_connection(f"no answer within {timeout:g} s", endpoint=name)) from error
        except (ValidationError, UnicodeDecodeError) as error:  # an answer that is not JSON-RPC: a proxy's page, half a body
            raise RpcError(Failure(Verdict.ELSEWHERE, f"{name} answered with something that is not JSON-RPC")) from error

    def _count(self, count: int) -> None:
        self.bytes_read += count

    async def _client(self, number: int) -> AsyncClient:
        """An endpoint's client.

        It is created on first use, in a thread, because reading the system's certificates takes a tenth of a second.
        """
        known = self._clients.get(number)
        if known is None:
            url = self.endpoints[number].http
            made = await anyio.to_thread.run_sync(lambda: _client_of(url, timeout=CALL_SECONDS, on_bytes=self._count))
            known = self._clients.setdefault(number, made)
            if known is not made:
                await made.close()
        return known

    def _note_failure(self, number: int, failure: Failure) -> None:
        before = self.current.name
        if self._choice.failed(number, for_good=failure.verdict is Verdict.ELSEWHERE):
            logger.warning("%s; leaving the RPC endpoint %s for %s", failure.sentence, before, self.current.name)

    def _start_probe(self) -> None:
        number = self._choice.to_probe(anyio.current_time())
        if number is not None:
            probe = asyncio.create_task(self._probe(number))
            self._probes.add(probe)
            probe.add_done_callback(self._probes.discard)

    async def _probe(self, number: int) -> None:
        try:
            await self._ask(number, "getSlot", (), CALL_SECONDS)
        except RpcError:
            self._choice.probed(number, anyio.current_time(), well=False)
        else:
            if self._choice.probed(number, anyio.current_time(), well=True):
                logger.warning("the RPC endpoint %s works again and is in use", self.endpoints[number].name)


def _client_of(url: str, *, timeout: float, on_bytes: Callable[[int], None]) -> AsyncClient:
    client = AsyncClient(url, timeout=timeout, max_transport_retries=0, http2=False, extra_headers=UNCOMPRESSED)
    limit_answers(client._provider.session, on_bytes=on_bytes)  # the pinned release offers no other access
    return client


def _of_http(error: BaseException | None, name: str) -> Failure:
    if isinstance(error, httpx2.HTTPStatusError):
        return of_status(error.response.status_code, endpoint=name)

    return of_connection(str(error) or type(error).__name__, endpoint=name)


def _unavailable(method: str, timeout: float, last: Failure | None) -> RpcUnavailable:
    return RpcUnavailable(f"no RPC endpoint answered {method} within {timeout:g} s: {last.sentence if last else 'no time left'}")
