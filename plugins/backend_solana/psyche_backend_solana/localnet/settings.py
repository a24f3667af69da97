"""Settings of a local chain, and the limits of its clients.

The defaults are those of a real test validator where it has them (ports, 400 ms a slot, 150 slots for a blockhash, 50 KiB a
request), so that an error there is an error here, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from psyche_core.errors import ConfigError

LAMPORTS_PER_SOL = 1_000_000_000
BLOCKHASH_SLOTS = 150
PACKET_BYTES = 1232
U64_MAX = 2**64 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits for requests, connections and answers.

    request_bytes: size of one HTTP body or websocket message. batch: requests in one batch. subscriptions: per connection.
    connections: open at the same time, for HTTP and for websockets each. accounts: addresses in one request. program_accounts,
    answer_bytes: accounts, and bytes of their data, in one answer. unsent: notifications that wait for a slow client; it is
    disconnected if there are more. history: transactions and blocks that are kept. idle_seconds: time until a silent HTTP
    connection is closed. airdrop: lamports per request. state_bytes: size of the file with the saved state.
    """

    request_bytes: int = 50 * 1024
    batch: int = 100
    subscriptions: int = 100
    connections: int = 1000
    accounts: int = 100
    program_accounts: int = 10_000
    answer_bytes: int = 64 * 1024 * 1024
    unsent: int = 10_000
    history: int = 10_000
    idle_seconds: float = 60.0
    airdrop: int = 1_000_000 * LAMPORTS_PER_SOL
    state_bytes: int = 1024 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainSettings:
    """A local chain.

    host: IP to listen on. rpc_port: HTTP; 0 picks a free one. ws_port: websockets; None means rpc_port + 1, where clients expect
    it. slot_ms: length of a slot. manual_clock: slots and time advance only through `LocalChain.advance` and `set_time`.
    start_time: unix seconds at which the clock starts; None means now. state: file to save to and to continue from; None saves
    nothing. reset: start a new chain, whatever the file contains. save_seconds: maximum time until a change is in the file.
    programs: address (base58) to ELF; None deploys those of this package. upgrade_authority: who may upgrade them (base58); None
    makes them immutable. airdrops: address to lamports, given to a new chain. allow_faults: serve `psyche_setFaults` and
    `psyche_saveState`.
    """

    host: str = "127.0.0.1"
    rpc_port: int = 0
    ws_port: int | None = None
    slot_ms: int = 400
    manual_clock: bool = False
    start_time: int | None = None
    state: Path | None = None
    reset: bool = False
    save_seconds: float = 3.0
    programs: Mapping[str, bytes] | None = None
    upgrade_authority: str | None = None
    airdrops: Mapping[str, int] = field(default_factory=dict)
    allow_faults: bool = False
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        """Raises ConfigError for a number out of range."""
        for name, port in (("rpc_port", self.rpc_port), ("ws_port", self.ws_port)):
            if port is not None and not 0 <= port <= 65535:
                message = f"{name} is a port from 0 to 65535, got {port}"
                raise ConfigError(message)

        if not 1 <= self.slot_ms <= 3_600_000:
            message = f"slot_ms is from 1 to 3600000 milliseconds, got {self.slot_ms}"
            raise ConfigError(message)
