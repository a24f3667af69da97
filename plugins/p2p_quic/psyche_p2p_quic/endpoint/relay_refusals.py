"""Finds out why no relay admits an endpoint, if that lasts."""

from __future__ import annotations

from collections.abc import Callable

import anyio

from psyche_core.wire.signing import SecretKey
from psyche_p2p_quic.endpoint.endpoint import Endpoint
from psyche_p2p_quic.relay.login import why_refused

_ONLINE_SECONDS = 2.0


class RelayRefusals:
    """Sentences for people in `problems`, while no relay admits us. seconds: between two checks. token: shown to the relays."""

    def __init__(self, key: SecretKey, *, token: str | None, seconds: float) -> None:
        self.problems: tuple[str, ...] = ()
        self._key = key
        self._token = token
        self._seconds = seconds

    async def watch(self, endpoint: Endpoint, is_member: Callable[[], bool]) -> None:
        """Check again and again. is_member: whether we are a member, as far as we know.

        A run's relay may learn of a new member some seconds late; a member that loads a model before it joins is unknown for
        longer.
        """
        failures = 0
        while True:
            await anyio.sleep(self._seconds)
            relays = endpoint.relays
            if not relays or await endpoint.is_online(seconds=_ONLINE_SECONDS):
                failures, self.problems = 0, ()
                continue

            failures += 1
            if failures >= 2:
                found = [await why_refused(url, self._key, token=self._token, member=is_member()) for url in relays]
                self.problems = tuple(sentence for sentence in found if sentence is not None)
