"""Registers this plugin's parts: the transport `quic`, the relay `iroh`, commands `relay` and `doctor`. Factories import iroh."""

from __future__ import annotations

from typing import TYPE_CHECKING

from psyche_core.hookspecs import (
    CommandRegistration,
    RelayContext,
    RelayRegistration,
    TransportContext,
    TransportRegistration,
    hookimpl,
)
from psyche_core.interfaces.relay import Relay
from psyche_core.interfaces.transport import Transport
from psyche_p2p_quic.options import QuicOptions

if TYPE_CHECKING:
    import click

PSYCHE_PLUGIN_API = "1.0"


def create(context: TransportContext) -> Transport:
    """Return an endpoint of the run, bound when it is entered."""
    from psyche_p2p_quic.transport import QuicTransport

    return QuicTransport.from_context(context)


@hookimpl
def psyche_register_transports() -> list[TransportRegistration]:
    """Return the transport `quic`."""
    return [
        TransportRegistration(
            name="quic",
            summary="QUIC connections between members of the epoch (iroh), all or a few of many; blobs are verified by hash",
            create=create,
            settings=QuicOptions,
        )
    ]


def create_relay(context: RelayContext) -> Relay:
    """Return a relay for a coordinator's process, which listens once it is entered."""
    from psyche_p2p_quic.relay_program.beside_coordinator import IrohRelay

    return IrohRelay(context)


def _relay_command() -> click.Command:
    from psyche_p2p_quic.relay_program.command import relay

    return relay


@hookimpl
def psyche_register_relays() -> list[RelayRegistration]:
    """Return the relay `iroh`."""
    return [RelayRegistration(name="iroh", summary="a relay and an address observer for iroh endpoints", create=create_relay)]


def _doctor_command() -> click.Command:
    from psyche_p2p_quic.doctor.command import doctor

    return doctor


@hookimpl
def psyche_register_commands() -> list[CommandRegistration]:
    """Return the commands `relay` and `doctor`."""
    return [
        CommandRegistration(name="relay", summary="run a relay for members behind routers", load=_relay_command),
        CommandRegistration(name="doctor", summary="find out whether this machine can take part in a run", load=_doctor_command),
    ]
