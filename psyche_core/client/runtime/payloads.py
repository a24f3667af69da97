"""Keeps payload bytes while they may still be applied, and checks our own payload before it is sent.

Several results, of different rounds or slots, may have the same bytes. These are kept until the newest of their tags expires.
"""

from __future__ import annotations

from collections.abc import Sequence

import anyio.to_thread

from psyche_core.client.runtime.resources import Resources
from psyche_core.errors import PayloadRejected, PluginFailed, RanksLost
from psyche_core.plugin_errors import summary_of


class PayloadStore:
    """Payloads by the SHA-256 of their bytes, each with its tag."""

    def __init__(self) -> None:
        self._kept: dict[bytes, tuple[int, bytes]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, payload_hash: bytes, payload: bytes, *, tag: int) -> None:
        """Keep a payload until `tag` expires, or longer if it already has a newer tag."""
        known, _ = self._kept.get(payload_hash, (tag, payload))
        self._kept[payload_hash] = (max(known, tag), payload)

    def lacking(self, payload_hashes: Sequence[bytes]) -> tuple[bytes, ...]:
        """Return the hashes whose payloads are missing."""
        return tuple(payload_hash for payload_hash in payload_hashes if payload_hash not in self._kept)

    def all(self, payload_hashes: Sequence[bytes]) -> list[bytes]:
        """Return the payloads of these hashes; a repeated hash gives a repeated payload. Raises KeyError for a missing one."""
        return [self._kept[payload_hash][1] for payload_hash in payload_hashes]

    def expire(self, before: int) -> None:
        """Drop payloads with older tags."""
        self._kept = {payload_hash: kept for payload_hash, kept in self._kept.items() if kept[0] >= before}


async def check_own(resources: Resources, step: int, payload: object) -> None:
    """Check that others can use our result of a step. An unusable result would be trained again and again.

    Raises PluginFailed, which ends the client because the optimizer would make the same error again; and RanksLost.
    """
    limit = resources.trainer.max_payload_bytes
    cause: Exception | None = None
    if not isinstance(payload, bytes):
        why = f"gave a {type(payload).__name__} as the result of step {step}, expected bytes"
    elif len(payload) > limit:
        why = f"made a result of {len(payload)} bytes for step {step}, its own limit is {limit}"
    else:
        try:
            await anyio.to_thread.run_sync(resources.trainer.check, payload)
        except RanksLost:
            raise
        except PayloadRejected as error:
            why, cause = f"made a result for step {step} that its own check refuses ({error})", error
        except Exception as error:
            why, cause = f"made a result for step {step} on which its own check fails with {summary_of(error)}", error
        else:
            return

    message = f"{resources.optimizer_name} {why}; no other member could use it, so this client stops"
    raise PluginFailed(message) from cause
