"""What a program that hosts a run is told of a member that leaves, and of one whose connection ends."""

from __future__ import annotations

from dataclasses import replace

import anyio
import pytest

import psyche_core as psyche
from plugins.backend_tcp.tests.connection_parts import TIMEOUT
from psyche_core import run_events
from psyche_core.coordinator.commands import Withdraw
from psyche_core.hookspecs import BackendContext, ServerContext
from psyche_core.interfaces import BackendServer
from psyche_core.plugin_objects import ObjectPlugin, RegistryWithObjects
from psyche_core.wire.signing import SecretKey


@pytest.mark.parametrize(("withdraws", "why"), [(True, ""), (False, "lost")])
async def test_a_member_whose_connection_ends_without_a_word_was_lost(withdraws: bool, why: str) -> None:
    """A client killed with `kill -9` was told exactly as one that had stopped."""
    found = psyche.PluginRegistry.discover()
    tcp = found.load("backend", "tcp")
    create_server = tcp.create_server
    assert create_server is not None

    def server(context: ServerContext) -> BackendServer:
        made: BackendServer = create_server(replace(context, reconnect_seconds=0.0))
        return made

    impatient = ObjectPlugin(replace(tcp, create_server=server), "psyche_backend_tcp")
    plugins = RegistryWithObjects(found, objects={"backend": impatient})
    run = psyche.RunConfig("tiny", total_steps=8, sequence_length=8, batch_size=8, learning_rate=1e-2, clients=1)
    key = SecretKey.generate()
    with anyio.fail_after(TIMEOUT):
        async with psyche.Coordinator(run, backend="tcp", plugins=plugins) as coordinator:
            location = str(coordinator.address)
            async with tcp.create(BackendContext(run_id="tiny", address=location, key=key)) as member:
                await member.join(b"here", timeout=TIMEOUT)
                async for event in coordinator.events():
                    if isinstance(event, run_events.EpochStarted):
                        break
                if withdraws:
                    await member.send(Withdraw(member.identity), timeout=TIMEOUT)
            async for event in coordinator.events():
                if isinstance(event, run_events.MemberLeft):
                    break
    assert event == run_events.MemberLeft(key.public.hex(), "Withdrawn", why)
