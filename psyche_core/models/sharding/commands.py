"""The commands that rank 0 sends to the other ranks: canonical CBOR, a list that begins with version and kind.

    [1, "build", settings]     once per model: how the model is built and divided
    [1, "work", settings]      one call of `gradients` or `loss`
    [1, "divide", settings]    once per optimizer: which one has a part on every rank
    [1, "call", settings]      one call of all parts of the optimizer; what each is given follows, see `part_values`
    [1, "end", {}]             no more commands

Sizes are checked before anything is decoded, and every field is checked, so that a rank with another version reports this and
does not guess. Tensors are not sent in commands: weights, samples and gradients are sent by collectives after the command.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from psyche_core.errors import WireError
from psyche_core.models.hf.configuration import MAX_CONFIG_BYTES
from psyche_core.wire.codec import decode as decode_cbor
from psyche_core.wire.codec import encode as encode_cbor

VERSION: Final = 1
MAX_COMMAND_BYTES: Final = MAX_CONFIG_BYTES + 2**16
MAX_SIZE: Final = 2**40
"""Upper bound (exclusive) of all numbers in a command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """How the model is built and divided.

    config: content of its config.json. sharding: plugin name of the engine. data, tensor: sizes of the data and tensor groups.
    dtype, attention, gradient_checkpointing: as in ModelContext.
    """

    config: bytes
    sharding: str
    data: int
    tensor: int
    dtype: str
    attention: str
    gradient_checkpointing: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One call.

    train: whether gradients are computed, or only the loss. check: whether digests of gradients that must be equal on several
    ranks are compared. rows, length: shape of the batch (sequences, tokens). positions: whether the batch has positions. packed:
    whether rows contain several texts. micro_batch_size: sequences of one pass on one rank. predictions: number of predicted
    tokens in the whole batch.
    """

    train: bool
    check: bool
    rows: int
    length: int
    positions: bool
    packed: bool
    micro_batch_size: int
    predictions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Divide:
    """An optimizer's parts are made. optimizer: its plugin name. settings: JSON of those that its model class validates."""

    optimizer: str
    settings: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of every part. method: its name."""

    method: str


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The last command: the rank ends."""


Command = Build | Work | Divide | Call | End

_KINDS: Final[Mapping[str, type[Command]]] = {"build": Build, "work": Work, "divide": Divide, "call": Call, "end": End}
_NAMES: Final = {kind: name for name, kind in _KINDS.items()}
_TYPES: Final = {"bytes": bytes, "str": str, "int": int, "bool": bool}


def encode(command: Command) -> bytes:
    """Return the bytes of a command. Raises ValueError for a command that is too long."""
    encoded = encode_cbor([VERSION, _NAMES[type(command)], asdict(command)])
    if len(encoded) > MAX_COMMAND_BYTES:
        message = f"a command has at most {MAX_COMMAND_BYTES} bytes, got {len(encoded)}"
        raise ValueError(message)

    return encoded


def decode(data: bytes) -> Command:
    """Read a command. Raises only WireError."""
    match decode_cbor(data, max_bytes=MAX_COMMAND_BYTES, max_depth=3, max_items=64):
        case [int(version), str(name), dict(given)] if type(version) is int:
            pass
        case _:
            message = "a command is a list of version, kind and settings"
            raise WireError(message)

    if version != VERSION:
        message = f"version {version} of a command is not {VERSION}; install the same psyche-core on all machines"
        raise WireError(message)
    if name not in _KINDS:
        message = f"{name!r:.40} is not a kind of command"
        raise WireError(message)

    return _KINDS[name](**_checked(_KINDS[name], given))


def _checked(kind: type[Command], given: dict[Any, Any]) -> dict[str, Any]:
    expected = {field.name: _TYPES[str(field.type)] for field in fields(kind)}
    if set(given) != set(expected):
        message = f"a command of kind {_NAMES[kind]} has other settings than {', '.join(expected)}"
        raise WireError(message)

    for name, value in given.items():
        if type(value) is not expected[name] or (type(value) is int and not 0 < value < MAX_SIZE):
            message = f"{name} of a command must be {expected[name].__name__}, numbers from 1 below {MAX_SIZE}, got {value!r:.40}"
            raise WireError(message)
    return given
