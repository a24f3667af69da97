"""Decides which bytes of a run's account an instruction can have changed, and builds the next copy from them. No I/O.

A copy is the account as it was after one instruction, byte for byte. There are two ways from one copy to a later one.

*Additions*: statements of the current round, ready slots and digests of an epoch's end are added, one per instruction. If the
number of added entries equals the number of instructions, nothing else happened; `apply` confirms it.

*Parts*: everything that can change while the phase stays the same. It is read between two equal readings of the head (see
`account_reader`).

If neither is possible, the whole account is read. All offsets come from the layout.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from psyche_backend_solana.layouts.coordinator_accounts import ACCOUNT_BYTES, HEADER_BYTES, CoordinatorAccount
from psyche_core.coordinator import apply
from psyche_core.coordinator import canonical_image as image
from psyche_core.coordinator.canonical_image.kinds import Part
from psyche_core.coordinator.canonical_image.layout import CLIENT, EPOCH, IMAGE, STATEMENT
from psyche_core.coordinator.canonical_image.records import List
from psyche_core.coordinator.commands import EpochDigest, WarmupWitness, Witness
from psyche_core.coordinator.state import STORED_ROUNDS, CoordinatorState
from psyche_core.errors import CoordinatorError, WireError
from psyche_core.types import MAX_WITNESSES, ClientState, RunState
from psyche_core.verification.drawing import MOST_WATCHED

_PLAYING = (RunState.RoundTrain, RunState.RoundWitness)
_BETWEEN = (RunState.WaitingForMembers, RunState.Warmup, RunState.Cooldown)
_NOT_WHILE_PLAYING = frozenset({"config", "model", "accounts"})
"""Fields that no instruction changes from an epoch's first round to its last: settings, model location, balances.

But see _GONE.
"""
_NOT_BETWEEN = frozenset({"accounts"})
"""The same while the run waits for members, or members load the model or sign an epoch's end; a run may have paused meanwhile."""
_GONE = "accounts"
"""The owner may free a balance at any time, which reduces their number. If their number differs, the whole account is read."""
_MORE = 64
"""Number of entries read beyond a list's known end; if more were added, the whole account is read."""
_ONE_EACH = ("pending", "ends")
"""Lists to which one instruction adds at most one entry."""
_COUNT_BYTES = 4
_SOME_DIGEST = bytes([255]) * 32
"""Placeholder for the unknown digest of a ready slot; no signed epoch end has this value."""
_INTERVALS = 64
_NEAR = 256
"""Slices that are closer than this many bytes are read as one."""


@dataclass(frozen=True, slots=True, order=True)
class Slice:
    """A range of bytes of the account: from `start` to `end`."""

    start: int
    end: int

    @property
    def length(self) -> int:
        """Number of bytes."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Copy:
    """The account after one instruction. data: all of it. state: None before the run's first configuration."""

    data: bytes
    account: CoordinatorAccount
    state: CoordinatorState | None

    @classmethod
    def of(cls, data: bytes, *, earlier: Copy | None = None) -> Copy:
        """Parse the account's data. earlier: another copy, of which what has not changed is taken. Raises WireError."""
        account = CoordinatorAccount.parse(data)
        state = account.state if earlier is None else account.state_after(earlier.account, earlier.state)
        return cls(data, account, state)

    @property
    def nonce(self) -> int:
        """Number of instructions so far."""
        return self.account.nonce


def _at(field: str) -> int:
    return HEADER_BYTES + image.offset(field)


HEAD = Slice(0, _at("config"))
"""The account's header with the nonce, and the state's phase, times and progress."""
WHOLE = Slice(0, ACCOUNT_BYTES)


def additions(state: CoordinatorState, count: int) -> Slice | None:
    """The bytes in which at most `count` instructions can have added entries in this phase; None if there are none."""
    if state.run_state is RunState.Warmup:
        return Slice(_at("epoch"), _at("epoch.clients"))
    if state.run_state in (RunState.Cooldown, RunState.WaitingForMembers):
        used = len(state.epoch.clients)
        return Slice(_at("epoch.clients[0]"), _at("epoch.clients[0]") + used * CLIENT.size) if used else None
    current = state.current_round
    if state.run_state not in _PLAYING or current is None:
        return None

    place, stated = len(state.epoch.rounds) - 1, len(current.statements)
    entries = min(count, MAX_WITNESSES - stated)
    if entries <= 0:
        return None
    start = _at(f"epoch.rounds[{place}].statements[{stated}]")
    return Slice(start, start + entries * STATEMENT.size)


def added(copy: Copy, head: bytes, where: Slice, content: bytes, *, now: int) -> Copy | None:
    """Return the later copy, if instructions only added entries; None if that is not certain.

    `head` was read after `content`. now: chain time (unix seconds) of the head. A late statement also changes its witness's
    score of missed duties, but the account does not show when a statement arrived. So if it may have been late, the result is
    not certain.
    """
    before = copy.state
    assert before is not None
    data = _patched(copy.data, [(where, content), (HEAD, head)])
    if before.run_state in _PLAYING:
        new = next((number for number, part in enumerate(_cut(content, STATEMENT.size)) if not any(part)), None)
        count = len(content) // STATEMENT.size if new is None else new
        place = len(before.epoch.rounds) - 1
        stated = len(before.epoch.rounds[place].statements) + count
        listed = _at(f"epoch.rounds[{place}].statements")
        data = _patched(data, [(Slice(listed, listed + _COUNT_BYTES), stated.to_bytes(_COUNT_BYTES, "little"))])
    try:
        after = Copy.of(data, earlier=copy)
    except WireError:
        return None  # a part of it is from another time
    if after.state is None:
        return None

    expected = (after.state, after.nonce - copy.nonce)
    times = {after.state.since, now} if before.run_state is RunState.RoundWitness else {after.state.since}
    return after if all(_replayed(before, after.state, at=time) == expected for time in times) else None


def _replayed(before: CoordinatorState, after: CoordinatorState, *, at: int) -> tuple[CoordinatorState, int] | None:
    """The state after `apply` of the entries that are new in `after` at this time, and the number of these instructions."""
    epoch, current, later = before.epoch, before.current_round, after.current_round
    sent: list[Witness | WarmupWitness | EpochDigest] = []
    now = at
    if before.run_state is RunState.Warmup:
        digest = next((end.digest for end in before.ends if end.step == epoch.start_step - 1), _SOME_DIGEST)
        new = sorted(set(after.epoch.ready) - set(epoch.ready))
        sent += [WarmupWitness(epoch.clients[slot].id, before.progress.epoch, slot, digest) for slot in new]
        now = after.since if after.epoch.ready_since in (None, epoch.ready_since) else after.epoch.ready_since
    elif before.run_state in _BETWEEN:
        ended = before.progress.epoch - (before.run_state is not RunState.Cooldown)
        changed = [slot for slot, client in enumerate(epoch.clients) if client.end_digest != after.epoch.clients[slot].end_digest]
        sent += [EpochDigest(epoch.clients[slot].id, ended, slot, after.epoch.clients[slot].end_digest) for slot in changed]
    elif current is not None and later is not None:
        stated = later.statements[len(current.statements) :]
        sent += [Witness(epoch.clients[statement.index].id, statement) for statement in stated]
    state = before
    try:
        for command in sent:
            state, _ = apply(state, command, now, 0)
    except CoordinatorError:
        return None
    return state, len(sent)


@dataclass(frozen=True, slots=True)
class Plan:
    """The slices needed to build a later copy. lists: position of each list's count, and its maximum number of entries.

    counts: numbers of entries that must be unchanged. shifted: a round began while the list of rounds was full, so that the
    other rounds moved up. places: positions of the rounds then stored.
    """

    slices: tuple[Slice, ...]
    lists: tuple[tuple[int, int], ...]
    counts: tuple[Slice, ...]
    shifted: bool
    places: int


def parts(copy: Copy, head: bytes) -> Plan | None:
    """The parts to read if `head` is the newest; None if the whole account must be read."""
    before = copy.state
    later = _head_state(copy, head)
    if before is None or later is None or any(client.state is ClientState.Ejected for client in before.epoch.clients):
        return None  # an ejection also voids shares of older rounds

    count = later.nonce - copy.nonce
    if later.epoch != before.progress.epoch:
        return None
    if before.run_state in _PLAYING and later.run_state in _PLAYING:
        return _while_playing(before, count, began=later.step - before.progress.step)
    if before.run_state is later.run_state and before.run_state in _BETWEEN:
        return Plan(*_plain(before, count, without=_NOT_BETWEEN), shifted=False, places=len(before.epoch.rounds))

    return None


def _while_playing(before: CoordinatorState, count: int, *, began: int) -> Plan | None:
    current = before.current_round
    if began not in (0, 1) or current is None:
        return None

    shifted = bool(began) and len(before.epoch.rounds) == STORED_ROUNDS
    places = min(STORED_ROUNDS, len(before.epoch.rounds) + began)
    slices, lists, counts = _plain(before, count, without=_NOT_WHILE_PLAYING)
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
    return Plan(_merged((*slices, *more)), (*lists, *most), counts, shifted=shifted, places=places)


def _plain(
    before: CoordinatorState, count: int, *, without: frozenset[str]
) -> tuple[tuple[Slice, ...], tuple[tuple[int, int], ...], tuple[Slice, ...]]:
    """The state without rounds and unchangeable fields, with lists up to their possible length; a Plan's first fields."""
    slices: list[Slice] = []
    lists: list[tuple[int, int]] = []
    for part in (*IMAGE.parts, *(_moved(part) for part in EPOCH.parts)):
        name = part.name
        if name in ("epoch", "rounds") or name in without or HEADER_BYTES + part.offset < HEAD.end:
            continue
        if isinstance(part.kind, List):
            of_epoch = name in ("clients", "challenges")
            field = f"epoch.{name}" if of_epoch else name
            more = min(count, _MORE) if name in _ONE_EACH else _more_of_epoch(before, name) if of_epoch else _MORE
            held = getattr(before.epoch if of_epoch else before, name)
            entries = min(len(held) + more, part.kind.capacity)
            slices.append(_listed(field, entries, part.kind.item.size))
            lists.append((_at(field), entries))
        else:
            slices.append(Slice(HEADER_BYTES + part.offset, HEADER_BYTES + part.offset + part.kind.size))
    counted = Slice(_at(_GONE), _at(_GONE) + _COUNT_BYTES)
    return _merged((*slices, counted)), tuple(lists), (counted,)


def _more_of_epoch(before: CoordinatorState, name: str) -> int:
    """Return how many clients or open challenges one more round can add: the drawn shares, rounded up, and the watched ones."""
    percent = before.config.verification_percent
    if name == "clients" or percent == 0:
        return 0

    return len(before.epoch.clients) * percent // 100 + 1 + MOST_WATCHED


def gathered(copy: Copy, plan: Plan, head: bytes, contents: Sequence[bytes]) -> Copy | None:
    """The later copy from a plan's slices; None if they do not fit together."""
    before = copy.state
    assert before is not None
    data = copy.data
    if plan.shifted:
        first, second = (_at(f"epoch.rounds[{place}]") for place in (0, 1))
        end = first + STORED_ROUNDS * (second - first)
        data = data[:first] + data[second:end] + bytes(second - first) + data[end:]
    rounds = _at("epoch.rounds")
    counted = (Slice(rounds, rounds + _COUNT_BYTES), plan.places.to_bytes(_COUNT_BYTES, "little"))
    data = _patched(data, [*zip(plan.slices, contents, strict=True), counted, (HEAD, head)])
    if any(int.from_bytes(data[at : at + _COUNT_BYTES], "little") > most for at, most in plan.lists):
        return None
    if any(data[one.start : one.end] != copy.data[one.start : one.end] for one in plan.counts):
        return None
    try:
        after = Copy.of(data, earlier=copy)
    except WireError:
        return None
    return after if after.state is not None and _same_epoch(before, after.state) else None


def _same_epoch(before: CoordinatorState, after: CoordinatorState) -> bool:
    """Whether the read bytes show no sign of a change in bytes that were not read."""
    if any(client.state is ClientState.Ejected for client in after.epoch.clients):
        return False
    fixed = [(epoch.seed, epoch.start_time, epoch.start_step, len(epoch.clients)) for epoch in (before.epoch, after.epoch)]
    heights = [stored.height for stored in after.epoch.rounds]
    return fixed[0] == fixed[1] and (not heights or heights == list(range(heights[0], heights[0] + len(heights))))


@dataclass(frozen=True, slots=True)
class HeadState:
    """The values of the head. epoch, step: from the progress."""

    nonce: int
    run_state: RunState
    epoch: int
    step: int


def _head_state(copy: Copy, head: bytes) -> HeadState | None:
    """The head's values; None if it is not a head or the account now has another version."""
    try:
        data = _patched(copy.data, [(HEAD, head)])
        account = CoordinatorAccount.parse(data)
        values = {name: _part(name).kind.read(data, HEADER_BYTES + _part(name).offset) for name in ("run_state", "progress")}
    except (WireError, ValueError):
        return None
    progress = values["progress"]
    return HeadState(account.nonce, values["run_state"], progress.epoch, progress.step)


def _part(name: str) -> Part:
    return next(part for part in IMAGE.parts if part.name == name)


def _moved(part: Part) -> Part:
    return replace(part, offset=image.offset("epoch") + part.offset)


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


def _cut(content: bytes, size: int) -> list[bytes]:
    return [content[start : start + size] for start in range(0, len(content), size)]


def _patched(data: bytes, pieces: Iterable[tuple[Slice, bytes]]) -> bytes:
    """Bytes with some of them replaced. Raises ValueError for a piece of another length."""
    changed = bytearray(data)
    for where, content in pieces:
        if len(content) != where.length:
            message = f"expected {where.length} bytes from {where.start} on, got {len(content)}"
            raise ValueError(message)
        changed[where.start : where.end] = content
    return bytes(changed)
