"""Converts the state to a tree of dicts, lists, strings, bytes and integers that a backend can send, and strictly back.

The tree contains a version, and then the fields by name as declared in `state`. When a tree is read, its types, keys, sizes and
order must be exactly as `apply` would produce them, so that code that uses the state later does not fail. Anything else raises
WireError, and so does a configuration that breaks a rule. The canonical image is another format, see `canonical_image`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from enum import IntEnum
from functools import cache, partial
from itertools import pairwise
from types import NoneType, UnionType
from typing import Any, NoReturn, get_args, get_origin, get_type_hints

from pydantic import BaseModel

from psyche_core.config import run_config
from psyche_core.config.schema import MAX_RUN_ID_BYTES
from psyche_core.coordinator.rewards import signers_without_account
from psyche_core.coordinator.round.bloom_filter import BLOOM_BYTES
from psyche_core.coordinator.round.requeue import MAX_INTERVALS, merged
from psyche_core.coordinator.state import (
    LOST_ROUND_BITS,
    MAX_ACCOUNTS,
    MAX_END_INTERVALS,
    MAX_ENDS,
    MAX_REJOINS,
    MAX_REPEATED_WARMUPS,
    MAX_UNREADY,
    STORED_ROUNDS,
    CoordinatorState,
    Epoch,
    EpochEnd,
    Round,
)
from psyche_core.errors import ConfigError, WireError
from psyche_core.types import MAX_CLIENTS, MAX_SAMPLES, MAX_WITNESSES, BatchId, RunState

VERSION = 7

_LIMIT = 2**32
_MAX_ROUND_SAMPLES = 2**16
_MAX_TIMES = 255
_PLAYING = (RunState.RoundTrain, RunState.RoundWitness)
_Conversion = Callable[[Any], Any]
_STATEMENT_BYTES = {"participants": MAX_CLIENTS // 8, "broadcast_bloom": BLOOM_BYTES, "merkle_root": 32, "model_digest": 32}


def to_plain(state: CoordinatorState) -> dict[str, Any]:
    """Return the state as plain values that `wire.codec.encode` accepts."""
    return {"version": VERSION, "state": _written(state)}


def from_plain(plain: Any) -> CoordinatorState:
    """Read a state written by `to_plain`. Raises only WireError, whatever `plain` is."""
    if not isinstance(plain, dict) or plain.keys() != {"version", "state"}:
        message = "expected a coordinator state with version and state"
        raise WireError(message)
    if plain["version"] != VERSION:
        message = f"expected version {VERSION} of the coordinator state, got {plain['version']!r}; update the older side"
        raise WireError(message)

    state: CoordinatorState = _read(CoordinatorState, plain["state"], at="state")
    _check(state)
    return state


def _written(value: Any) -> Any:
    return _writer(type(value))(value)  # type: ignore[arg-type]  # typeshed does not know that type[Any] is hashable


@cache
def _writer(kind: Any) -> _Conversion:
    """Return the function that converts values of a type to plain ones.

    Cached for each type, because a state with 256 members has thousands of values.
    """
    if issubclass(kind, run_config.CoordinatorConfig | run_config.ModelConfig):
        return run_config.to_plain
    if issubclass(kind, IntEnum):
        return int
    if dataclasses.is_dataclass(kind):
        names = tuple(field.name for field in dataclasses.fields(kind))
        return lambda value: {name: _written(getattr(value, name)) for name in names}
    if issubclass(kind, tuple):
        return lambda value: [_written(item) for item in value]

    return lambda value: value


class _MismatchError(Exception):
    """A value is not as expected. sentence: end of the message. path: steps to the value, the innermost first."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.path: list[str] = []


def _read(hint: Any, value: Any, *, at: str) -> Any:
    """Read `value` as the type `hint`. at: path of the value, for messages. Raises WireError."""
    try:
        return _reader(hint)(value)
    except _MismatchError as error:
        message = f"{at}{''.join(reversed(error.path))}{error.sentence}"
        raise WireError(message) from error


@cache
def _reader(hint: Any) -> _Conversion:
    """Return the function that reads values of a type. Cached for each type. The function raises _MismatchError."""
    if isinstance(hint, UnionType):
        (present,) = (option for option in get_args(hint) if option is not NoneType)
        of_present = _reader(present)
        return lambda value: None if value is None else of_present(value)
    if get_origin(hint) is tuple:
        return _list_reader(_reader(get_args(hint)[0]))
    if issubclass(hint, BaseModel):
        return partial(_read_table, hint)
    if dataclasses.is_dataclass(hint):
        return _fields_reader(hint)
    if issubclass(hint, IntEnum):
        members = {int(member): member for member in hint}
        return lambda value: (
            members[value] if type(value) is int and value in members else _mismatch(f"a number of {hint.__name__}", value)
        )
    if hint is int:
        return _read_int

    return lambda value: value if type(value) is hint else _mismatch(hint.__name__, value)


def _read_int(value: Any) -> Any:
    if type(value) is not int:
        _mismatch("int", value)
    return value if 0 <= value < 2**64 else _mismatch("a number of 64 bits", value)


def _read_table(table: type[BaseModel], value: Any) -> Any:
    try:
        return run_config.from_plain(table, value)
    except ConfigError as error:
        sentence = f" is not a valid configuration: {error}"
        raise _MismatchError(sentence) from error


def _list_reader(item_reader: _Conversion) -> _Conversion:
    def read(value: Any) -> Any:
        if not isinstance(value, list):
            _mismatch("a list", value)
        items: list[Any] = []
        try:
            for item in value:
                items.append(item_reader(item))  # noqa: PERF401 - the error path needs len(items)
        except _MismatchError as error:
            error.path.append(f"[{len(items)}]")
            raise
        return tuple(items)

    return read


def _fields_reader(table: Any) -> _Conversion:
    readers = {name: _reader(hint) for name, hint in get_type_hints(table).items()}
    names = readers.keys()

    def read(value: Any) -> Any:
        if not isinstance(value, dict) or value.keys() != names:
            _mismatch(f"the fields {', '.join(names)}", value)
        fields: dict[str, Any] = {}
        name = ""
        try:
            for name, reader in readers.items():
                fields[name] = reader(value[name])
        except _MismatchError as error:
            error.path.append(f".{name}")
            raise
        try:
            return table(**fields)
        except ValueError as error:
            sentence = f": {error}"
            raise _MismatchError(sentence) from error

    return read


def _mismatch(expected: str, got: Any) -> NoReturn:
    sentence = f": {_expected(expected, got)}"
    raise _MismatchError(sentence)


def _expected(expected: str, got: Any) -> str:
    text = repr(got)
    return f"expected {expected}, got {text if len(text) <= 80 else text[:80] + '…'}"


def _expect(condition: bool, at: str, expected: str, got: Any) -> None:
    if not condition:
        message = f"{at}: {_expected(expected, got)}"
        raise WireError(message)


def _check(state: CoordinatorState) -> None:
    """Check conditions that types cannot express but that functions on a state rely on. Raises WireError."""
    _check_run(state)
    _check_epoch(state.epoch)
    _check_history(state)
    _check_members(state)
    _check_samples(state)


def _check_run(state: CoordinatorState) -> None:
    try:
        size = len(state.run_id.encode())
    except UnicodeEncodeError:
        size = 0
    _expect(1 <= size <= MAX_RUN_ID_BYTES, "state.run_id", f"a name of 1 to {MAX_RUN_ID_BYTES} bytes", state.run_id)
    try:
        run_config.check_config(state.config)
    except ConfigError as error:
        message = f"state.config breaks a rule: {error}"
        raise WireError(message) from error

    _expect(len(state.instance) == 32, "state.instance", "32 bytes", state.instance)
    _expect(len(state.history) == 32, "state.history", "32 bytes", state.history)
    _expect(state.generation < _LIMIT, "state.generation", "a number of 32 bits", state.generation)
    _expect(state.progress.epoch < _LIMIT, "state.progress.epoch", "a number of 32 bits", state.progress.epoch)
    _expect(state.progress.step < _LIMIT, "state.progress.step", "a number of 32 bits", state.progress.step)
    playing = state.run_state in _PLAYING
    _expect(not playing or bool(state.epoch.rounds), "state.epoch.rounds", f"a round in {state.run_state.name}", [])


def _check_epoch(epoch: Epoch) -> None:
    clients = len(epoch.clients)
    _expect(clients <= MAX_CLIENTS, "state.epoch.clients", f"at most {MAX_CLIENTS}", clients)
    for slot, client in enumerate(epoch.clients):
        at = f"state.epoch.clients[{slot}]"
        _expect(client.exited_height < _LIMIT, f"{at}.exited_height", "a number of 32 bits", client.exited_height)
        _expect(client.accepted_rounds < _LIMIT, f"{at}.accepted_rounds", "a number of 32 bits", client.accepted_rounds)
        _expect(client.rejoins <= MAX_REJOINS, f"{at}.rejoins", f"at most {MAX_REJOINS}", client.rejoins)
        _expect(client.missed <= _MAX_TIMES, f"{at}.missed", f"at most {_MAX_TIMES}", client.missed)
        _expect(client.lost_rounds < 1 << LOST_ROUND_BITS, f"{at}.lost_rounds", f"{LOST_ROUND_BITS} bits", client.lost_rounds)
        _expect(len(client.end_digest) == 32, f"{at}.end_digest", "32 bytes", client.end_digest)
    _expect(0 <= epoch.repeats <= MAX_REPEATED_WARMUPS, "state.epoch.repeats", f"at most {MAX_REPEATED_WARMUPS}", epoch.repeats)
    _check_slots(epoch.ready, clients, at="state.epoch.ready")
    _check_slots(epoch.ceded, clients, at="state.epoch.ceded")
    _check_slots(epoch.lacking, clients, at="state.epoch.lacking")
    _expect(epoch.held_step < _LIMIT, "state.epoch.held_step", "a number of 32 bits", epoch.held_step)
    _expect(len(epoch.rounds) <= STORED_ROUNDS, "state.epoch.rounds", f"at most {STORED_ROUNDS}", len(epoch.rounds))
    heights = [stored.height for stored in epoch.rounds]
    consecutive = all(later == earlier + 1 for earlier, later in pairwise(heights))
    _expect(consecutive and all(height < _LIMIT for height in heights), "state.epoch.rounds", "consecutive heights", heights)
    trained = all(not stored.drain for stored in epoch.rounds[:-1])
    _expect(trained, "state.epoch.rounds", "no drain round but the last", heights)
    for stored in epoch.rounds:
        _check_round(stored, MAX_CLIENTS if epoch.unplayed else clients)  # unplayed: rounds of another epoch, with other clients


def _check_history(state: CoordinatorState) -> None:
    _check_end(state.stored, at="state.stored")
    _expect(len(state.ends) <= MAX_ENDS, "state.ends", f"at most {MAX_ENDS}", len(state.ends))
    for place, end in enumerate(state.ends):
        _check_end(end, at=f"state.ends[{place}]")
    steps = [end.step for end in state.ends]
    _expect(all(earlier < later for earlier, later in pairwise(steps)), "state.ends", "ascending steps", steps)
    _expect(len(state.unready) <= MAX_UNREADY, "state.unready", f"at most {MAX_UNREADY}", len(state.unready))
    signers = [entry.signer for entry in state.unready]
    once = len(signers) == len(set(signers)) and all(len(signer) == 32 for signer in signers)
    _expect(once, "state.unready", "signers of 32 bytes, each once", len(signers))
    counted = all(1 <= entry.times <= _MAX_TIMES for entry in state.unready)
    _expect(counted, "state.unready", f"1 to {_MAX_TIMES} times", signers)


def _check_end(end: EpochEnd, *, at: str) -> None:
    _expect(end.step < _LIMIT, f"{at}.step", "a number of 32 bits", end.step)
    _expect(len(end.digest) == 32, f"{at}.digest", "32 bytes", end.digest)
    _expect(len(end.history) == 32, f"{at}.history", "32 bytes", end.history)
    _expect(end.data_index <= MAX_SAMPLES - _MAX_ROUND_SAMPLES, f"{at}.data_index", "a smaller number", end.data_index)
    _check_intervals(end.queue, at=f"{at}.queue", at_most=MAX_END_INTERVALS)
    _expect(all(batch.last < end.data_index for batch in end.queue), f"{at}.queue", "samples below its data_index", end.queue)


def _check_round(stored: Round, clients: int) -> None:
    at = f"round {stored.height}"
    _check_slots(stored.slots, clients, at=at)
    _check_slots(stored.voided, clients, at=f"{at}.voided")
    _check_intervals(stored.batches, at=at, at_most=MAX_INTERVALS + 1)
    _expect(not (stored.drain and stored.batches), at, "no samples in a drain round", stored.batches)
    _expect(len(stored.statements) <= MAX_WITNESSES, at, f"at most {MAX_WITNESSES} statements", len(stored.statements))
    _expect(len(stored.history) == 32, f"{at}.history", "32 bytes", stored.history)
    indices = [statement.index for statement in stored.statements]
    _expect(len(indices) == len(set(indices)), at, "one statement of a slot", indices)
    for statement in stored.statements:
        _expect(statement.index < clients, at, "a statement of a slot of the epoch", statement.index)
        for name, size in _STATEMENT_BYTES.items():
            _expect(len(getattr(statement, name)) == size, f"{at}.{name}", f"{size} bytes", getattr(statement, name))


def _check_slots(slots: tuple[int, ...], clients: int, *, at: str) -> None:
    ascending = all(earlier < later for earlier, later in pairwise(slots))
    _expect(ascending and all(slot < clients for slot in slots), at, "ascending slots of the epoch", slots)


def _check_members(state: CoordinatorState) -> None:
    """Check that no signer occurs twice and that there is room for every account that may still be needed."""
    _expect(len(state.pending) <= MAX_CLIENTS, "state.pending", f"at most {MAX_CLIENTS}", len(state.pending))
    for at, identities in (("pending", state.pending), ("epoch.clients", [client.id for client in state.epoch.clients])):
        signers = [identity.signer for identity in identities]
        _expect(len(signers) == len(set(signers)), f"state.{at}", "each signer once", len(signers))
    holders = [account.signer for account in state.accounts]
    _expect(all(len(signer) == 32 for signer in holders), "state.accounts", "signers of 32 bytes", holders)
    ascending = all(earlier < later for earlier, later in pairwise(holders))
    _expect(ascending, "state.accounts", "signers in ascending order, each once", holders)
    needed = len(holders) + len(signers_without_account(state))
    _expect(needed <= MAX_ACCOUNTS, "state.accounts", f"at most {MAX_ACCOUNTS} with those still to be opened", needed)


def _check_samples(state: CoordinatorState) -> None:
    """Check that no sample that may return to the queue occurs twice, and that sample numbers remain for the next round."""
    first_fresh = state.progress.data_index
    _expect(first_fresh <= MAX_SAMPLES - _MAX_ROUND_SAMPLES, "state.progress.data_index", "a smaller number", first_fresh)
    _check_intervals(state.requeue, at="state.requeue", at_most=MAX_INTERVALS)
    undecided = state.epoch.rounds[-2:] if state.run_state in _PLAYING else ()
    held = (*state.requeue, *(batch for stored in undecided for batch in stored.batches))
    _expect(all(batch.last < first_fresh for batch in held), "state.requeue", "samples below progress.data_index", held)
    try:
        merged(held)
    except ValueError as error:
        message = f"state.requeue and the undecided rounds: {error}"
        raise WireError(message) from error


def _check_intervals(batches: tuple[BatchId, ...], *, at: str, at_most: int) -> None:
    _expect(len(batches) <= at_most, at, f"at most {at_most} intervals", len(batches))
    try:
        canonical = merged(batches)
    except ValueError as error:
        message = f"{at}: {error}"
        raise WireError(message) from error

    _expect(batches == canonical, at, "ascending intervals with neighbours joined", batches)
