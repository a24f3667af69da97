"""Registers the transport `redis`."""

from __future__ import annotations

from psyche_core.hookspecs import TransportContext, TransportRegistration, hookimpl
from psyche_core.interfaces import Transport
from psyche_p2p_redis.settings import RedisSettings

PSYCHE_PLUGIN_API = "1.0"


@hookimpl
def psyche_register_transports() -> list[TransportRegistration]:
    """One transport."""
    summary = "messages and payloads through one Redis server that all members trust; signed, not encrypted"
    return [TransportRegistration(name="redis", summary=summary, create=create, settings=RedisSettings)]


def create(context: TransportContext) -> Transport:
    """An endpoint; context.settings is a validated RedisSettings, or None for the defaults."""
    from psyche_p2p_redis.transport import RedisTransport

    return RedisTransport(context)
