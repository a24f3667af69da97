"""Faults of an RPC provider, for tests of clients against bad providers.

`Faults` is a value. `FaultSwitch` holds the faults in force. They can be changed while clients are connected: in process or,
with `--allow-faults`, by the JSON-RPC method `psyche_setFaults`. Shares are drawn from a seeded generator, so a failed test
fails again. Faults never change what is on the chain.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from psyche_backend_solana.localnet.settings import BLOCKHASH_SLOTS
from psyche_core.errors import ConfigError

_WEBSOCKETS = ("normal", "silent", "refuse")


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """The faults of one RPC provider; by default there are none.

    latency_ms: delay before every answer and notification. drop_share: share of HTTP requests whose connection is closed before
    they are read. lose_answer_share: share of HTTP requests that are executed, but not answered. http_status: status that
    answers every HTTP request, such as 429 or 503. swallow_share: share of transactions that are answered with their signature,
    but never processed. expire_blockhashes_after: number of slots for which a blockhash is valid, at most the chain's own 150.
    websocket: "silent" connections stay open but receive and send nothing, not even pongs, and their messages are lost; "refuse"
    answers new ones with 503.
    """

    latency_ms: int = 0
    drop_share: float = 0.0
    lose_answer_share: float = 0.0
    http_status: int | None = None
    swallow_share: float = 0.0
    expire_blockhashes_after: int = BLOCKHASH_SLOTS
    websocket: str = "normal"

    def __post_init__(self) -> None:
        """Check the values. Raises ConfigError, with a sentence that names the fault."""
        for name in ("drop_share", "lose_answer_share", "swallow_share"):
            share = getattr(self, name)
            if not _is_number(share) or not 0 <= share <= 1:
                message = f"{name} is a share from 0 to 1, got {share!r}"
                raise ConfigError(message)

        self._check_integer("latency_ms", 0, 600_000)
        self._check_integer("expire_blockhashes_after", 0, BLOCKHASH_SLOTS)
        if self.http_status is not None:
            self._check_integer("http_status", 400, 599)
        if self.websocket not in _WEBSOCKETS:
            message = f"websocket is one of {', '.join(_WEBSOCKETS)}, got {self.websocket!r}"
            raise ConfigError(message)

    def _check_integer(self, name: str, low: int, high: int) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            message = f"{name} is a whole number from {low} to {high}, got {value!r}"
            raise ConfigError(message)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


FAULT_NAMES = frozenset(field.name for field in fields(Faults))


class FaultSwitch:
    """The faults in force at one RPC provider.

    Safe to read from any thread: the value is replaced as a whole. Watchers are called in the thread that changes the faults.
    """

    def __init__(self) -> None:
        self._now = Faults()
        self._random = random.Random(0)
        self._watchers: list[Callable[[Faults], None]] = []

    @property
    def now(self) -> Faults:
        """The faults in force."""
        return self._now

    def set(self, **changes: Any) -> Faults:
        """Change some faults and keep the others.

        Raises ConfigError for an unknown name or a bad value, and then changes nothing.
        """
        unknown = sorted(set(changes) - FAULT_NAMES)
        if unknown:
            message = f"unknown fault {unknown[0]!r}; there are {', '.join(sorted(FAULT_NAMES))}"
            raise ConfigError(message)

        self._now = replace(self._now, **changes)
        for watcher in self._watchers:
            watcher(self._now)
        return self._now

    def clear(self) -> None:
        """Remove all faults."""
        self.set(**asdict(Faults()))

    def watch(self, watcher: Callable[[Faults], None]) -> None:
        """Call `watcher` with every new value."""
        self._watchers.append(watcher)

    def draw(self, share: float) -> bool:
        """Whether a fault with this share happens now."""
        return share > 0 and (share >= 1 or self._random.random() < share)


def faults_from_json(plain: object) -> Mapping[str, Any]:
    """The changes in the object of `psyche_setFaults`, with names as in `Faults`. Raises ConfigError if it is not an object."""
    if not isinstance(plain, dict):
        message = f"psyche_setFaults takes one object of faults, got {type(plain).__name__}"
        raise ConfigError(message)

    return plain
