"""Scripts: the shape of a run and the faults that hit it, as values that convert to JSON and back.

A script holds everything about shape and faults that would otherwise be drawn from the seed, so a failing run can be written
down, made smaller and played again. Only randomness inside the run comes from the seed: delays, speeds, elections, lies.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from psyche_core.errors import UserError

SERVER = -1
"""Stands for the coordinator's server in `Fault.nodes`."""

Trainer = Literal["hash", "torch"]

NODE_FAULTS = (
    "crash",
    "restart",
    "pause",
    "slow",
    "skew",
    "late",
    "leave",
    "bit-flip",
    "all-die",
    "empty-results",
    "failing-work",
    "slow-downlink",
    "full-disk",
)
NETWORK_FAULTS = ("drop", "duplicate", "reorder", "delay", "partition", "asymmetric")
SERVER_FAULTS = ("server-restart", "owner-pause", "older-state", "slow-rpc", "failing-rpc")
SLOWING_LIES = (
    "silent-witness",
    "never-states",
    "all-ones",
    "empty-statements",
    "never-finished",
    "selective-finished",
    "late-finished",
    "just-in-time",
    "late-statement",
    "lacks-model",
    "unready-every-other",
    "leaves-and-returns",
    "idle-joiners",
)
"""Lies that cost the others time."""

LIES = (
    "wrong-hash",
    "wrong-shape",
    "two-results",
    "three-results",
    "late-second-result",
    "repeated-payload",
    "garbage",
    "withhold",
    "false-statements",
    "false-digests",
    "false-models",
    "flood",
    "model-requests",
    "stolen-key",
    "old-signatures",
    *SLOWING_LIES,
)
CHEATS = (
    "untrained",
    "half-untrained",
    "quarter-untrained",
    "tenth-untrained",
    "collusion",
    "blind-verifier",
    "lying-verifier",
    "lying-tie-breaker",
    "no-reveal",
    "wrong-signs",
    "false-words",
)
"""Lies about the work itself, in runs whose shares are checked (`Shape.verification_percent`); never drawn for other runs."""

ALL_LIES = (*LIES, *CHEATS)
NO_EXCUSE = (*ALL_LIES, "slow-downlink")
"""Faults in which honest members must still lose nothing and make progress: lies of others, and slow home connections."""

KINDS = (*NODE_FAULTS, *NETWORK_FAULTS, *SERVER_FAULTS, *LIES)
"""All kinds of faults, by their name on the command line."""

_KNOWN = (*KINDS, *CHEATS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault. kind: one of KINDS. start, duration: virtual seconds; lies may last forever (duration 0).

    nodes: affected members; for network faults those whose links are affected, none given means all; for a partition or an
    asymmetric cut the members of one side (with SERVER if the server is on that side). amount: strength, by kind: probability
    of loss, duplication, reordering, an empty result or failing work; seconds of delay, or by which a state is older; factor of
    slowness; training times by which payloads come later on a slow downlink; rate of a skewed clock; for cuts, 1 when they are
    between members only and everybody reaches the server. disk: whether a restart keeps the disk. A crash is permanent; a
    restart comes back after `duration`. When all die, `nodes` are those that lose their disks too.
    """

    kind: str
    start: float
    duration: float = 0.0
    nodes: tuple[int, ...] = ()
    amount: float = 0.0
    disk: bool = False

    @property
    def end(self) -> float:
        """When it ends."""
        return self.start + self.duration


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The run's configuration, as in `[config]`, and its members' speed: seconds to train a share, seconds on a link.

    withdraw_after: seconds after which the server withdraws a disconnected member, 0 for never. restart_from_checkpoint: as in
    `[config]`; if it is off, the owner decides that in the end.
    """

    min_clients: int = 2
    init_min_clients: int = 2
    witness_nodes: int = 0
    batch_start: int = 12
    batch_end: int = 12
    batch_warmup_tokens: int = 0
    rounds_per_epoch: int = 5
    epoch_time: int = 600
    warmup_time: int = 15
    max_round_train_time: int = 6
    round_witness_time: int = 2
    cooldown_time: int = 1
    extra_time: int = 1
    withdraw_after: float = 0.0
    restart_from_checkpoint: bool = False
    train_seconds: float = 0.5
    link_seconds: float = 0.03
    verification_percent: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A whole run. rounds: steps to train; sealed: whether messages and states are sent as bytes."""

    seed: int
    clients: int = 8
    rounds: int = 20
    trainer: Trainer = "hash"
    sealed: bool = False
    shape: Shape = field(default_factory=Shape)
    faults: tuple[Fault, ...] = ()

    @property
    def liars(self) -> frozenset[int]:
        """Members that lie at some time; no invariant is required of them."""
        return frozenset(node for fault in self.faults if fault.kind in ALL_LIES for node in fault.nodes)

    @property
    def excused_until(self) -> float:
        """When the last fault ends that excuses a member. A crash ends at once."""
        return max((fault.end for fault in self.faults if fault.kind not in NO_EXCUSE), default=0.0)


def to_plain(script: Script) -> dict[str, Any]:
    """A script as JSON values; faults without fields they do not use."""
    plain = asdict(script)
    defaults = {item.name: item.default for item in fields(Fault)}
    plain["faults"] = [
        {name: value for name, value in fault.items() if name in ("kind", "start") or value != defaults[name]}
        for fault in plain["faults"]
    ]
    return plain


def from_plain(plain: Any) -> Script:
    """The script written by `to_plain`. Raises UserError for anything else."""
    try:
        table = dict(plain)
        shape = Shape(**table.pop("shape", {}))
        faults = tuple(_fault(item) for item in table.pop("faults", ()))
        script = Script(shape=shape, faults=faults, **table)
        _check(script)
    except (TypeError, ValueError, KeyError) as error:
        message = f"this is no fault script: {error}"
        raise UserError(message) from error

    return script


def from_json(text: str) -> Script:
    """A script from a file: the script itself, or a failure of `psyche sim --json` that holds one. Raises UserError."""
    try:
        plain = json.loads(text)
    except ValueError as error:
        message = f"a fault script is a JSON object: {error}"
        raise UserError(message) from error

    if isinstance(plain, dict) and plain.get("failures"):
        plain = plain["failures"][0]
    if isinstance(plain, dict) and "script" in plain:
        plain = plain["script"]
    return from_plain(plain)


def _fault(item: Any) -> Fault:
    table = dict(item)
    return Fault(nodes=tuple(table.pop("nodes", ())), **table)


def _check(script: Script) -> None:
    if not 1 <= script.clients <= 64 or script.rounds < 1:
        message = f"expected 1 to 64 clients and at least one round, got {script.clients} and {script.rounds}"
        raise ValueError(message)
    for fault in script.faults:
        if fault.kind not in _KNOWN:
            message = f"{fault.kind!r} is no kind of fault; there are {', '.join(KINDS)}"
            raise ValueError(message)
        if fault.kind in CHEATS and not script.shape.verification_percent:
            message = f"{fault.kind!r} is a cheat of runs with verification_percent > 0"
            raise ValueError(message)
        if fault.start < 0 or fault.duration < 0 or not all(SERVER <= node < script.clients for node in fault.nodes):
            message = f"times must not be negative and nodes below {script.clients}, got {fault}"
            raise ValueError(message)
