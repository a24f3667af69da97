"""Which bytes of a run's account a change can have touched, and what a copy of the account is with them read anew. Pure.

Decided: a copy is always the account as it was after one instruction, byte for byte, or there is none. Two ways lead from one
copy to a later one. *Additions*: statements of the current round and the warmup's ready slots are only ever added to, one for
each instruction; where as many were added as instructions were counted, nothing else happened, and `apply` is asked whether
it agrees.
*Parts*: all that can change while the phase stays what it is, read between two readings of the head that are alike (see
`following`). Where neither fits, the account is read whole. Every offset is the layout's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from psyche_backend_solana.layouts.coordinator_accounts import ACCOUNT_BYTES, HEADER_BYTES, CoordinatorAccount
from psyche_core.coordinator import apply, image
from psyche_core.coordinator.commands import Command, WarmupWitness, Witness
from psyche_core.coordinator.image_kinds import Part
from psyche_core.coordinator.image_layout import EPOCH, IMAGE, STATEMENT
from psyche_core.coordinator.state import NO_DIGEST, STORED_ROUNDS, CoordinatorState, Epoch
from psyche_core.errors import CoordinatorError, WireError
from psyche_core.types import MAX_WITNESSES, ClientState, RunState

_PLAYING = (RunState.RoundTrain, RunState.RoundWitness)
_SAID = frozenset({"ready", "lacking", "held_step", "ready_since"})
"""What warmup witnesses add to."""
_ANY_DIGEST = b"\1" * 32
"""Of a model that no signed end names."""
_NOT_WHILE_PLAYING = frozenset({"config", "model", "accounts", "stored", "ends", "unready"})
"""What no instruction changes from an epoch's first round to its last: settings, where the model is, balances; but a settlement
makes their list shorter."""
_NOT_WHILE_GATHERING = frozenset({"config", "accounts", "requeue", "unready"})
"""The same while members are waited for, load the model, or sign an epoch's end."""
_GATHERING = (RunState.WaitingForMembers, RunState.Warmup, RunState.Cooldown, RunState.Finished)
_LISTS = ("pending", "requeue")
_SHORTENED = ("accounts",)
_MORE = 64
"""Entries of a list that are read beyond those there were; where more came, the whole is read."""
_INTERVALS = 64
_NEAR = 256
"""Bytes between two slices that are read along rather than asked for apart."""


@dataclass(frozen=True, slots=True, order=True)
class Slice:
    """Bytes of the account: from `start` to `end`."""

    start: int
    end: int

    @property
    def length(self) -> int:
        """How many."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Copy:
    """The account after one instruction. data: all of it. state: None before the run's first configuration."""

    data: bytes
    account: CoordinatorAccount
    state: CoordinatorState | None

    @classmethod
    def of(cls, data: bytes) -> Copy:
        """Read it. Raises WireError."""
        account = CoordinatorAccount.parse(data)
        return cls(data, account, account.state)

    @property
    def nonce(self) -> int:
        """Instructions counted so far."""
        return self.account.nonce


def _at(field: str) -> int:
    return HEADER_BYTES + image.offset(field)


HEAD = Slice(0, _at("config"))
"""The account's header with the nonce, and of the state phase, times and progress."""
WHOLE = Slice(0, ACCOUNT_BYTES)


def additions(state: CoordinatorState, count: int) -> Slice | None:
    """Where at most `count` instructions can have added something in this phase; None where that is nowhere."""
    if state.run_state is RunState.Warmup:
        return Slice(_at("epoch.ready"), _at("epoch.clients"))
    current = state.current_round
    if state.run_state not in _PLAYING or current is None:
        return None

    place, stated = len(state.epoch.rounds) - 1, len(current.statements)
    room = min(count, MAX_WITNESSES - stated)
    if room <= 0:
        return None
    start = _at(f"epoch.rounds[{place}].statements[{stated}]")
    return Slice(start, start + room * STATEMENT.size)


def added(copy: Copy, head: bytes, where: Slice, content: bytes) -> Copy | None:
    """The later copy of which `head` was read after `content`, if nothing but additions was done; None if that is not sure."""
    before, later = copy.state, _head_state(copy, head)
    assert before is not None
    if later is None:
        return None

    try:
        sent = _sent(before, _patched(copy.data, [(where, content)]), later.since)
        if len(sent) != later.nonce - copy.nonce:
            return None
        state = before
        for command, now in sent:
            state, _ = apply(state, command, now, 0)
        if _heights(state) != _heights(before):
            return None  # a round began: its seed is not known
        encoded = image.encode(state)
    except (CoordinatorError, WireError, ValueError):
        return None  # a part of it is of another time
    data = head[:HEADER_BYTES] + encoded + copy.data[HEADER_BYTES + image.SIZE :]
    if data[: HEAD.end] != head or data[where.start : where.end] != content:
        return None
    return Copy(data, CoordinatorAccount.parse(data), state)


def _heights(state: CoordinatorState) -> list[int]:
    return [] if state.epoch.unplayed else [stored.height for stored in state.epoch.rounds]


def _sent(before: CoordinatorState, data: bytes, since: int) -> list[tuple[Command, int]]:
    """The commands by which there is more in the account's data than in `before`, each with a time at which it may have come."""
    epoch, current = before.epoch, before.current_round
    if before.run_state is RunState.Warmup:
        return _spoken(before, data)
    assert current is not None
    first = _at(f"epoch.rounds[{len(epoch.rounds) - 1}].statements[0]")
    found: list[tuple[Command, int]] = []
    for place in range(len(current.statements), MAX_WITNESSES):
        at = first + place * STATEMENT.size
        if not any(data[at : at + STATEMENT.size]):
            break
        statement = STATEMENT.read(data, at)
        found.append((Witness(epoch.clients[statement.index].id, statement), since))
    return found


def _spoken(before: CoordinatorState, data: bytes) -> list[tuple[Command, int]]:
    """The warmup witnesses of the slots that are ready by now, or lack the model."""
    epoch, start = before.epoch, before.epoch.start_step - 1
    parts = [_moved(part) for part in EPOCH.parts if part.name in _SAID]
    now = {part.name: part.kind.read(data, HEADER_BYTES + part.offset) for part in parts}
    wanted = next((end.digest for end in before.ends if end.step == start), _ANY_DIGEST)
    held = next((end.digest for end in before.ends if end.step == now["held_step"] != epoch.held_step), NO_DIGEST)
    time = before.since if now["ready_since"] is None else now["ready_since"]
    said = [(slot, wanted) for slot in sorted(set(now["ready"]) - set(epoch.ready))]
    said += [(slot, held) for slot in sorted(set(now["lacking"]) - set(epoch.lacking))]
    return [(WarmupWitness(epoch.clients[slot].id, before.progress.epoch, slot, digest), time) for slot, digest in said]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to read to come from one copy to a later one. lists: where their counts are, and the most each may say.

    shifted: a round began where as many as fit were stored, and the others have moved up. places: of the rounds then stored.
    """

    slices: tuple[Slice, ...]
    lists: tuple[tuple[int, int], ...]
    shifted: bool
    places: int


def parts(copy: Copy, head: bytes) -> Plan | None:
    """The parts to read where `head` is the newest; None where the whole must be read."""
    before = copy.state
    later = _head_state(copy, head)
    if before is None or later is None or any(client.state is ClientState.Ejected for client in before.epoch.clients):
        return None  # shares of older rounds are declared void, too, when somebody is ejected

    count = later.nonce - copy.nonce
    if count <= 0:
        return None  # of an endpoint that is behind
    if before.run_state in _PLAYING and later.run_state in _PLAYING:
        return (
            _while_playing(before, count, began=later.step - before.progress.step)
            if later.epoch == before.progress.epoch
            else None
        )
    if before.run_state is later.run_state and before.run_state in _GATHERING:
        wanted = _plain(before, count, without=_NOT_WHILE_GATHERING)
        return Plan(*wanted, shifted=False, places=len(before.epoch.rounds)) if later.epoch == before.progress.epoch else None

    return None


def _while_playing(before: CoordinatorState, count: int, *, began: int) -> Plan | None:
    current = before.current_round
    if began not in (0, 1) or current is None:
        return None

    shifted = bool(began) and len(before.epoch.rounds) == STORED_ROUNDS
    places = min(STORED_ROUNDS, len(before.epoch.rounds) + began)
    slices, lists = _plain(before, count, without=_NOT_WHILE_PLAYING)
    last = f"epoch.rounds[{places - 1}]"
    wanted = [(f"{last}.statements", count if began else len(current.statements) + count, MAX_WITNESSES)]
    if began:
        wanted.append((f"epoch.rounds[{places - 2}].statements", len(current.statements) + count, MAX_WITNESSES))
    more = [Slice(_at(last), _at(f"{last}.batches[{_INTERVALS}]"))]
    most = [(_at(f"{last}.batches"), _INTERVALS)]
    for field, entries, capacity in wanted:
        entries = min(entries, capacity)
        more.append(_listed(field, entries, STATEMENT.size))
        most.append((_at(field), entries))
    return Plan(_merged((*slices, *more)), (*lists, *most), shifted=shifted, places=places)


def _plain(
    before: CoordinatorState, count: int, *, without: frozenset[str]
) -> tuple[tuple[Slice, ...], tuple[tuple[int, int], ...]]:
    """All of the state but rounds and what cannot change, lists as far as they can be in use."""
    slices: list[Slice] = []
    lists: list[tuple[int, int]] = []
    for part in (*IMAGE.parts, *(_moved(part) for part in EPOCH.parts)):
        name = part.name
        if name in without and name in _SHORTENED:
            slices.append(Slice(_at(name), _at(name) + 4))  # a list that became shorter no longer fits what is in it
        if name in ("epoch", "rounds") or name in without or HEADER_BYTES + part.offset < HEAD.end:
            continue
        if name in _LISTS or name == "clients":
            field = "epoch.clients" if name == "clients" else name
            held = (
                len(before.epoch.clients)
                if name == "clients"
                else len(getattr(before, name)) + (min(count, _MORE) if name == "pending" else _MORE)
            )
            entries = min(held, _capacity(part))
            slices.append(_listed(field, entries, _entry_bytes(part)))
            lists.append((_at(field), entries))
        else:
            slices.append(Slice(HEADER_BYTES + part.offset, HEADER_BYTES + part.offset + part.kind.size))
    return _merged(slices), tuple(lists)


def gathered(copy: Copy, plan: Plan, head: bytes, contents: Sequence[bytes]) -> Copy | None:
    """The later copy of a plan's slices; None where they do not fit together."""
    before = copy.state
    assert before is not None
    data = copy.data
    if plan.shifted:
        first, second = (_at(f"epoch.rounds[{place}]") for place in (0, 1))
        end = first + STORED_ROUNDS * (second - first)
        data = data[:first] + data[second:end] + bytes(second - first) + data[end:]
    rounds = _at("epoch.rounds")
    counted = (Slice(rounds, rounds + 4), plan.places.to_bytes(4, "little"))
    data = _patched(data, [*zip(plan.slices, contents, strict=True), counted, (HEAD, head)])
    if any(int.from_bytes(data[at : at + 4], "little") > most for at, most in plan.lists):
        return None
    try:
        after = Copy.of(data)
    except WireError:
        return None
    return after if after.state is not None and _same_epoch(before, after.state) else None


def _same_epoch(before: CoordinatorState, after: CoordinatorState) -> bool:
    """Whether nothing says that what was not read has changed."""
    if any(client.state is ClientState.Ejected for client in after.epoch.clients):
        return False
    if before.run_state not in _PLAYING:
        return _without_said(before.epoch) == _without_said(after.epoch)
    fixed = [(epoch.seed, epoch.start_time, epoch.start_step, len(epoch.clients)) for epoch in (before.epoch, after.epoch)]
    heights = [stored.height for stored in after.epoch.rounds]
    return fixed[0] == fixed[1] and heights == list(range(heights[0], heights[0] + len(heights)))


def _without_said(epoch: Epoch) -> Epoch:
    return replace(epoch, clients=(), ready=(), ceded=(), lacking=(), held_step=0, ready_since=None)


@dataclass(frozen=True, slots=True)
class HeadState:
    """What the head says. since: when the phase was entered. epoch, step: of the progress."""

    nonce: int
    run_state: RunState
    since: int
    epoch: int
    step: int


def _head_state(copy: Copy, head: bytes) -> HeadState | None:
    """The head's values, None where it is none or the account's version is another one now."""
    try:
        data = _patched(copy.data, [(HEAD, head)])
        account = CoordinatorAccount.parse(data)
        values = {
            name: _part(name).kind.read(data, HEADER_BYTES + _part(name).offset) for name in ("run_state", "since", "progress")
        }
    except (WireError, ValueError):
        return None
    progress = values["progress"]
    return HeadState(account.nonce, values["run_state"], values["since"], progress.epoch, progress.step)


def _part(name: str) -> Part:
    return next(part for part in IMAGE.parts if part.name == name)


def _moved(part: Part) -> Part:
    return replace(part, offset=image.offset("epoch") + part.offset)


def _capacity(part: Part) -> int:
    capacity: int = part.kind.capacity  # type: ignore[attr-defined]  # a list
    return capacity


def _entry_bytes(part: Part) -> int:
    size: int = part.kind.item.size  # type: ignore[attr-defined]  # a list
    return size


def _listed(field: str, entries: int, size: int) -> Slice:
    """A list's count and its first entries."""
    return Slice(_at(field), _at(f"{field}[0]") + entries * size)


def _merged(slices: Iterable[Slice]) -> tuple[Slice, ...]:
    """The same bytes in fewer slices, in order."""
    found: list[Slice] = []
    for one in sorted(slices):
        if found and one.start - found[-1].end <= _NEAR:
            found[-1] = Slice(found[-1].start, max(found[-1].end, one.end))
        else:
            found.append(one)
    return tuple(found)


def _patched(data: bytes, pieces: Iterable[tuple[Slice, bytes]]) -> bytes:
    """Bytes with some of them replaced. Raises ValueError for a piece of another length."""
    changed = bytearray(data)
    for where, content in pieces:
        if len(content) != where.length:
            message = f"expected {where.length} bytes from {where.start} on, got {len(content)}"
            raise ValueError(message)
        changed[where.start : where.end] = content
    return bytes(changed)
