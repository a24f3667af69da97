"""Answers without end, or without measure: over real sockets."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
import httpx2
import pytest

from psyche_backend_solana.rpc import answer_limit, methods
from psyche_backend_solana.rpc.answer_limit import MAX_ANSWER_BYTES, limit_answers
from psyche_backend_solana.rpc.client import Rpc
from psyche_backend_solana.rpc.endpoints import Endpoint

pytestmark = pytest.mark.anyio
CHUNK = b"x" * 65536
GOOD = json.dumps({"jsonrpc": "2.0", "id": 0, "result": 7}).encode()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def provider(head: str, body: Callable[[], AsyncIterator[bytes]]) -> AsyncIterator[tuple[str, list[int]]]:
    """A server that answers everything alike. Gives its URL, and how many bytes of body it could send, by request."""
    sent: list[int] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        sent.append(0)
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n{head}\r\n".encode())
        try:
            async for part in body():
                writer.write(part)
                await writer.drain()
                sent[-1] += len(part)
        except (ConnectionError, OSError):
            return
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", sent


async def endless() -> AsyncIterator[bytes]:
    while True:
        yield CHUNK


async def good() -> AsyncIterator[bytes]:
    yield GOOD


async def bomb() -> AsyncIterator[bytes]:
    yield gzip.compress(GOOD + b" " * 2**24)


def endpoint(url: str) -> Endpoint:
    return Endpoint.parse(url)


@pytest.mark.parametrize("head", ["", f"Content-Length: {10**12}\r\n"])
async def test_an_answer_without_end_costs_its_provider_its_place_and_no_memory(head: str) -> None:
    async with provider(head, endless) as (bad, sent), provider("", good) as (other, _):
        async with Rpc([endpoint(bad), endpoint(other)]) as rpc:
            with anyio.fail_after(30):
                assert await methods.slot(rpc, timeout=20) == 7
                assert await methods.slot(rpc, timeout=20) == 7
            assert rpc.current == endpoint(other)
        assert MAX_ANSWER_BYTES <= max(sent) < 2 * MAX_ANSWER_BYTES  # what is in buffers of sockets was sent, too


async def test_a_compressed_answer_is_not_unpacked() -> None:
    async with provider("Content-Encoding: gzip\r\n", bomb) as (bad, _), provider("", good) as (other, _):
        async with Rpc([endpoint(bad), endpoint(other)]) as rpc:
            with anyio.fail_after(30):
                assert await methods.slot(rpc, timeout=20) == 7
                assert await methods.slot(rpc, timeout=20) == 7
            assert rpc.current == endpoint(other)


async def test_the_limit_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b"a" * 1000

    async with provider("", body) as (url, _), httpx2.AsyncClient() as session:
        monkeypatch.setattr(answer_limit, "MAX_ANSWER_BYTES", 1000)
        limit_answers(session)
        assert len((await session.get(url)).content) == 1000

    async with provider("", body) as (url, _), httpx2.AsyncClient() as session:
        monkeypatch.setattr(answer_limit, "MAX_ANSWER_BYTES", 999)
        limit_answers(session)
        with pytest.raises(httpx2.ReadError, match="more than 999 bytes"):
            await session.get(url)


async def test_what_is_read_is_counted() -> None:
    async with provider("", good) as (url, _), Rpc([Endpoint(url, "ws://127.0.0.1:9")]) as rpc:
        assert await methods.slot(rpc, timeout=10) == 7
        assert (rpc.requests, rpc.bytes_read) == (1, len(GOOD))
