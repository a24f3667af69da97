"""Reads the messages of other members from the transport, opens them and queues them for the machine.

What a message means is decided in `client/machine/peer_messages.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from psyche_core.client.machine.epoch import possible_tags
from psyche_core.client.machine.events import MessageSeen
from psyche_core.client.runtime.event_queue import EventQueue
from psyche_core.client.runtime.reports.network_reporter import NetworkReporter
from psyche_core.errors import WireError
from psyche_core.interfaces import Opened, Transport
from psyche_core.telemetry.repeated_problem import RepeatedProblem
from psyche_core.wire.messages import unseal

logger: logging.Logger = logging.getLogger("psyche.client")


class MessageReader:
    """Reads messages of one run. instance: returns the run's instance, 32 bytes. Before it is known there are no peers."""

    def __init__(
        self, transport: Transport, instance: Callable[[], bytes], *, queue: EventQueue, network: NetworkReporter
    ) -> None:
        self._transport = transport
        self._instance = instance
        self._queue = queue
        self._network = network
        self._refused = RepeatedProblem()
        transport.check_messages(self._open)

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            incoming = await self._transport.receive()
            try:
                opened = incoming.opened or self._open(incoming.message)
            except WireError as error:  # from a transport that does not check messages itself
                self._network.count(messages_refused=1)
                if self._refused.failed():
                    via, count = incoming.via[:4].hex(), self._refused.times
                    logger.warning("a message handed over by %s was refused (%d since the last such line): %s", via, count, error)
                continue

            self._network.count(messages_received=1)
            await self._queue.put(MessageSeen(opened.origin, opened.content))

    def _open(self, message: bytes) -> Opened:
        """Open a message of this run; raises WireError."""
        origin, content = unseal(message, run=self._instance())
        return Opened(origin, content, possible_tags(content))
