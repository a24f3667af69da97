"""What `psyche doctor network` finds out about the server of an address, without a login."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from click.testing import CliRunner

from plugins.p2p_quic.tests.relay_parts import certificate_in
from psyche_core.cli import cli
from psyche_core.hookspecs import ServerContext
from psyche_core.testing.backend import small_state
from psyche_core.wire.signing import SecretKey
from psyche_p2p_quic.doctor.server_check import check_server
from psyche_p2p_quic.doctor.verdict import Figures, judge
from psyche_p2p_quic.relay.access import OpenAccess
from psyche_p2p_quic.relay.login import why_unreachable
from psyche_p2p_quic.relay_program.service import RelayService, ServiceOptions


@contextlib.asynccontextmanager
async def coordinator(key: SecretKey, folder: Path) -> AsyncIterator[str]:
    """A server; gives its address, with the key that it proves."""
    tcp = pytest.importorskip("psyche_backend_tcp.server.tcp_server", reason="needs the TCP backend")
    context = ServerContext(state=small_state(), key=key, state_dir=folder, tick_seconds=0.05)
    async with anyio.create_task_group() as group, tcp.TcpServer(context) as server:
        group.start_soon(server.serve)
        yield server.address
        group.cancel_scope.cancel()


@contextlib.asynccontextmanager
async def listening(answer: bytes) -> AsyncIterator[str]:
    """A server that answers the first bytes with these, and ends; gives its address."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(answer)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.anyio
async def test_a_server_is_the_one_that_is_meant_if_it_proves_the_key_of_its_address(tmp_path: Path) -> None:
    async with coordinator(SecretKey.generate(), tmp_path) as address:
        place, _, key = address.partition("#")
        for right in (address, f"{place}#insecure", place, f"{place}#{key.upper()}"):
            found = await check_server(right)
            assert (found.reached, found.problem, found.wrong) == (True, "", "")
        other = SecretKey.generate().public.hex()
        wrong = (await check_server(f"{place}#{other}")).wrong
    assert wrong.startswith(f"it proved the key {key}, and the address names {other}: this is another server")


@pytest.mark.anyio
async def test_what_answers_and_is_no_server_is_told_apart_from_one_that_is_busy(tmp_path: Path) -> None:
    puzzle = pytest.importorskip("psyche_backend_tcp.connections.puzzle", reason="needs the TCP backend")
    cert, key = certificate_in(tmp_path)
    async with RelayService(OpenAccess(), ServiceOptions(port=0, observer=False)) as plain:
        assert (
            "does not speak TLS as a Psyche server does" in (await check_server(f"127.0.0.1:{plain.relay.port}#insecure")).wrong
        )
    async with RelayService(OpenAccess(), ServiceOptions(port=0, observer=False, tls_cert=cert, tls_key=key)) as secure:
        assert "a certificate of another kind" in (await check_server(f"127.0.0.1:{secure.relay.port}#insecure")).wrong
    async with listening(b"") as closing:
        assert "it closed the connection before it proved a key" in (await check_server(closing)).wrong
    async with listening(puzzle.encode_challenge(bytes(puzzle.COOKIE_BYTES))) as busy:
        found = await check_server(busy)
        assert (found.problem, found.wrong) == ("it is busy, so its key was not tested", "")


@pytest.mark.anyio
@pytest.mark.parametrize("host", ["no-such-host.invalid", "a..b"])
async def test_a_name_that_leads_nowhere_is_said_and_no_firewall_is_blamed(host: str) -> None:
    found = await check_server(f"{host}:20000#insecure")
    assert not found.reached
    assert found.unnamed
    assert "name" in found.problem
    measured = Figures(
        "no-such-host.invalid:20000", False, None, found.problem, (("192.168.1.23", 1),), (), server_unnamed=found.unnamed
    )
    (advice,) = judge(measured).advice
    assert advice.startswith("check the host in the server's address")


def test_a_name_that_is_not_known_and_a_name_server_that_is_silent_are_two_things() -> None:
    assert why_unreachable(socket.gaierror(socket.EAI_NONAME, "x")) == "its name is not known"
    assert why_unreachable(socket.gaierror(socket.EAI_AGAIN, "x")).endswith("no name server answers")


@pytest.mark.quic
def test_another_server_than_the_one_that_is_meant_is_exit_code_1(tmp_path: Path) -> None:
    async def run() -> dict[str, Any]:
        async with coordinator(SecretKey.generate(), tmp_path) as address:
            words = [
                "doctor",
                "network",
                "--json",
                "--server-addr",
                f"{address.partition('#')[0]}#{'ab' * 32}",
                "--run-id",
                "first",
            ]
            call = partial(CliRunner().invoke, cli, words, standalone_mode=False)
            done = await anyio.to_thread.run_sync(call)
            assert done.return_value == 1
            told: dict[str, Any] = json.loads(done.output)
            return told

    told = anyio.run(run)
    assert told["verdict"]["kind"] == "impossible"
    assert "this is another server, or it was given a new key" in told["verdict"]["sentence"]
    assert told["server_reachable"]
