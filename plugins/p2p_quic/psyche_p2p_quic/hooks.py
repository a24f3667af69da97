"""What this plugin registers: the transport `quic`. iroh is imported by the factory, not here."""

from __future__ import annotations

from psyche_core.hookspecs import TransportContext, TransportRegistration, hookimpl
from psyche_core.interfaces.transport import Transport
from psyche_p2p_quic.options import QuicOptions

PSYCHE_PLUGIN_API = "1.0"


def create(context: TransportContext) -> Transport:
    """An endpoint of the run, bound when it is entered."""
    from psyche_p2p_quic.transport import QuicTransport

    return QuicTransport.from_context(context)


@hookimpl
def psyche_register_transports() -> list[TransportRegistration]:
    """The transport `quic`."""
    return [
        TransportRegistration(
            name="quic",
            summary="QUIC connections between all members of the epoch (iroh); blobs are verified by hash",
            create=create,
            settings=QuicOptions,
        )
    ]
