"""`psyche server run --with-relay`: one program hosts the run and a relay for its members."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from nacl.signing import SigningKey

from plugins.p2p_quic.tests.relay_parts import Refused, RelayClient
from psyche_backend_tcp.client.connection import TcpBackend
from psyche_core.config.options.loading import load_settings
from psyche_core.config.options.server import ServerSettings
from psyche_core.errors import ConfigError, PluginError
from psyche_core.hookspecs import BackendContext
from psyche_core.plugins import PluginRegistry
from psyche_core.server.serving import serve_run
from psyche_core.telemetry.events import Event, RelayStarted, Started
from psyche_core.telemetry.sinks import EventBus
from psyche_core.ui.event_text import describe
from psyche_core.wire.signing import SecretKey


@pytest.mark.slow
@pytest.mark.quic
@pytest.mark.anyio
async def test_the_server_s_relay_serves_the_run_s_members(local_testnet: Any) -> None:
    folder = local_testnet()
    options = {"state": folder / "state.toml", "data_config": folder / "data.toml", "server_port": 0, "relay_port": 0}
    settings = load_settings(ServerSettings, {**options, "with_relay": True})
    told: list[Event] = []
    started = anyio.Event()

    def hear(event: Event) -> None:
        told.append(event)
        if isinstance(event, RelayStarted):
            started.set()

    key = SecretKey.generate()
    member = SigningKey(key.seed)
    with anyio.fail_after(90):
        async with anyio.create_task_group() as group:
            group.start_soon(serve_run, settings, PluginRegistry.discover(), EventBus(hear))
            await started.wait()
            (server,) = [event for event in told if isinstance(event, Started)]
            (relay,) = [event for event in told if isinstance(event, RelayStarted)]
            assert describe(relay) == f"relay for members of this run: {relay.url}"

            with pytest.raises(Refused, match="members of a run only"):
                async with RelayClient.login(relay.url, key=member):
                    pass
            async with TcpBackend(BackendContext(run_id="local-testnet", address=server.address, key=key)) as backend:
                await backend.join(b"address", timeout=20)
                async with RelayClient.login(relay.url, key=member) as client:
                    group.cancel_scope.cancel()
                    with anyio.CancelScope(shield=True):
                        assert await client.closed() == 1001


@pytest.mark.anyio
async def test_a_server_on_every_interface_must_say_where_its_relay_is(local_testnet: Any) -> None:
    folder = local_testnet()
    options = {"state": folder / "state.toml", "data_config": folder / "data.toml", "host": "::"}
    settings = load_settings(ServerSettings, {**options, "with_relay": True})
    with pytest.raises(ConfigError, match="needs --relay-url"):
        await serve_run(settings, PluginRegistry.discover(), EventBus())


@pytest.mark.anyio
@pytest.mark.parametrize("url", ["http://0.0.0.0:3340", "http://[::]:3340"])
async def test_a_relay_is_not_offered_at_an_address_that_nobody_can_connect_to(local_testnet: Any, url: str) -> None:
    folder = local_testnet()
    options = {"state": folder / "state.toml", "data_config": folder / "data.toml", "server_port": 0, "with_relay": True}
    settings = load_settings(ServerSettings, {**options, "relay_url": url, "relay_port": 0})
    with (
        anyio.fail_after(60),
        pytest.raises(ConfigError, match="means every address of this machine, which nobody can connect to"),
    ):
        await serve_run(settings, PluginRegistry.discover(), EventBus())


@pytest.mark.anyio
async def test_a_relay_that_is_not_installed_is_a_sentence(local_testnet: Any) -> None:
    folder = local_testnet()
    options = {"state": folder / "state.toml", "data_config": folder / "data.toml", "with_relay": True, "relay": "mine"}
    with pytest.raises(PluginError, match="no relay plugin is named mine"):
        await serve_run(load_settings(ServerSettings, options), PluginRegistry.discover(), EventBus())


@pytest.mark.anyio
async def test_a_server_that_cannot_tell_of_its_relay_starts_none(local_testnet: Any) -> None:
    folder = local_testnet()
    options = {"state": folder / "state.toml", "data_config": folder / "data.toml", "backend": "solana", "with_relay": True}
    with pytest.raises(ConfigError, match=r"cannot tell its members of a relay; run one with `psyche relay run`"):
        await serve_run(load_settings(ServerSettings, options), PluginRegistry.discover(), EventBus())


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"relay_url": "http://relay.example.org:3340"}, "--relay-url is for the relay beside the server"),
        ({"relay": "mine"}, "--relay is for the relay beside the server"),
        ({"relay_port": 3341}, "--relay-port is for the relay beside the server"),
        ({"with_relay": True, "relay_port": 20_000, "server_port": 20_000}, "--relay-port and --server-port are both 20000"),
    ],
)
async def test_relay_options_without_a_relay_or_on_the_server_s_port_are_refused(
    local_testnet: Any, given: dict[str, Any], sentence: str
) -> None:
    folder = local_testnet()
    options = {"state": folder / "state.toml", "data_config": folder / "data.toml", **given}
    with pytest.raises(ConfigError, match=sentence):
        await serve_run(load_settings(ServerSettings, options), PluginRegistry.discover(), EventBus())
