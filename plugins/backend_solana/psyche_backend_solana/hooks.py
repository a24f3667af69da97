"""Registers the `solana` backend and the commands. Heavy modules are imported when they are used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from psyche_core.hookspecs import (
    BackendContext,
    BackendRegistration,
    BackendTestnet,
    CommandRegistration,
    MemberContext,
    ServerContext,
    hookimpl,
)

if TYPE_CHECKING:
    import click

    from psyche_backend_solana.settings import SolanaSettings
    from psyche_core.config.run_config import ModelConfig
    from psyche_core.interfaces import Backend, BackendServer
    from psyche_core.wire.signing import SecretKey

PSYCHE_PLUGIN_API = "1.0"


def _create(context: BackendContext) -> Backend:
    from psyche_backend_solana.backend import SolanaBackend

    return SolanaBackend.from_context(context)


def _observe(context: BackendContext) -> Backend:
    from psyche_backend_solana.backend import SolanaBackend

    return SolanaBackend.from_context(context, only_reads=True)


def _create_server(context: ServerContext) -> BackendServer:
    from psyche_backend_solana.hosting.local_run import LocalRun

    return LocalRun(context)


def _member_options(member: MemberContext) -> list[str]:
    from psyche_backend_solana.hosting.testnet_member import member_options

    return member_options(member)


def _lose_route(address: str) -> str:
    from psyche_backend_solana.hosting.testnet_member import lose_route

    return lose_route(address)


def _transport_key(run_id: str, settings: SolanaSettings) -> SecretKey:
    from psyche_backend_solana.lookup.transport_key import transport_key

    return transport_key(run_id, settings)


def _route(settings: SolanaSettings) -> str:
    return settings.endpoints()[0].host_and_port


async def _read_model(run_id: str, settings: SolanaSettings) -> ModelConfig:
    from psyche_backend_solana.lookup.model_config import read_model

    return await read_model(run_id, settings)


def _run_manager() -> click.Command:
    from psyche_backend_solana.commands.run_manager import run_manager

    return run_manager


def _solana() -> click.Command:
    from psyche_backend_solana.commands.solana import solana

    return solana


@hookimpl
def psyche_register_backends() -> list[BackendRegistration]:
    """The `solana` backend."""
    from psyche_backend_solana.settings import SolanaSettings

    return [
        BackendRegistration(
            name="solana",
            summary="a coordinator program on a Solana chain",
            create=_create,
            create_server=_create_server,
            observe=_observe,
            testnet=BackendTestnet(member_options=_member_options, lose_route=_lose_route),
            settings=SolanaSettings,
            needs_address=False,
            transport_key=_transport_key,
            route=_route,
            read_model=_read_model,
        )
    ]


@hookimpl
def psyche_register_commands() -> list[CommandRegistration]:
    """The commands `run-manager` and `solana`."""
    return [
        CommandRegistration(
            name="run-manager",
            summary="create, configure, watch and close runs on Solana, and grant the right to join them",
            load=_run_manager,
        ),
        CommandRegistration(
            name="solana", summary="a local Solana chain, the programs of this release, and wallets", load=_solana
        ),
    ]
