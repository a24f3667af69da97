"""Computes structural differences between plain trees, so that only the changes of a state are sent.

A plain tree is what the codec carries: None, bool, int, float, str, bytes, lists and dicts with str or int keys. A patch is
itself a plain tree:

    [SET, value]                          the whole value
    [MAP, {key: patch}, [removed keys]]   entries changed or added, entries gone
    [LIST, [step, ...]]                   the new list, in order, out of
        [COPY, start, count]                  elements of the old list
        [LITERAL, [value, ...]]               new elements
        [CHANGE, index, patch]                an old element with a patch

Old elements are used at most once and in order, so a patched tree is never larger than the old tree and the patch together: a
small patch cannot create a huge tree. A patch contains nothing about equal parts. If the patch of a part would be longer than the
part itself, the part is replaced. Equal parts are recognised first by identity and otherwise by a comparison in C. Python code
visits only what changed: adding a statement to the state of 256 clients takes tens of microseconds if the old and the new tree
share the other parts, as the trees that `patched` returns do. A patch that does not fit the tree raises WireError. The caller
checks that the result is the intended tree, by comparing hashes of encodings.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

import cbor2

from psyche_core.errors import WireError

SET, MAP, LIST = 0, 1, 2
COPY, LITERAL, CHANGE = 0, 1, 2

MAX_MATCHED = 1024
"""Maximum number of changed list elements that are searched for parts to keep; longer sequences are replaced."""


def same(left: Any, right: Any) -> bool:
    """Whether two plain trees encode to the same bytes. Unlike `==`, it distinguishes 1, 1.0 and True."""
    if left is right:
        return True

    if type(left) is not type(right):
        return False

    if left != right:
        return False

    if isinstance(left, dict | list | float):
        # They are equal by ==. Their bytes are compared too, because == ignores types and the sign of zero. The slower canonical
        # encoding is needed only if the order of keys may differ.
        return bool(cbor2.dumps(left) == cbor2.dumps(right)) or _encoded(left) == _encoded(right)

    return True


def _encoded(value: Any) -> bytes:
    """Return canonical bytes, to compare and measure values. They are not checked: senders use `codec.encode` for a patch."""
    return bytes(cbor2.dumps(value, canonical=True))


def diff(old: Any, new: Any) -> list[Any] | None:
    """Return a patch that changes `old` into `new`, or None if they are the same."""
    change = _change(old, new)
    return None if change is None else change.patch


def patched(old: Any, patch: Any) -> Any:
    """Apply `patch` to `old` and return the new tree. It shares unchanged parts with `old`, which is not modified.

    Raises WireError if the patch is malformed or does not fit.
    """
    match patch:
        case [0, value]:
            return value
        case [1, dict() as entries, list() as removed] if isinstance(old, dict):
            return _patched_map(old, entries, removed)
        case [2, list() as steps] if isinstance(old, list):
            return _patched_list(old, steps)
        case _:
            message = f"a patch does not fit a {type(old).__name__}"
            raise WireError(message)


# ---------------------------------------------------------------- making a patch


@dataclass(frozen=True, slots=True)
class _Change:
    """A patch and the length of its encoding in bytes. The length is stored so that no part is encoded again at each level."""

    patch: list[Any]
    size: int


def _change(old: Any, new: Any) -> _Change | None:
    if same(old, new):
        return None

    change = None
    if isinstance(old, dict) and isinstance(new, dict):
        change = _change_map(old, new)
    elif isinstance(old, list) and isinstance(new, list):
        change = _change_list(old, new)
    if change is not None and _left(new, change.size - 2) < 0:
        return change

    return _set(new)


def _set(value: Any) -> _Change:
    return _Change([SET, value], 2 + len(_encoded(value)))


def _change_map(old: dict[Any, Any], new: dict[Any, Any]) -> _Change:
    entries: dict[Any, Any] = {}
    size = 0
    for key, value in new.items():
        change = _change(old[key], value) if key in old else _set(value)
        if change is not None:
            entries[key] = change.patch
            size += len(_encoded(key)) + change.size

    removed = [key for key in old if key not in new]
    return _Change([MAP, entries, removed], 2 + _head(len(entries)) + size + len(_encoded(removed)))


def _change_list(old: list[Any], new: list[Any]) -> _Change:
    start, shorter = 0, min(len(old), len(new))
    while start < shorter and same(old[start], new[start]):
        start += 1

    tail = 0
    while tail < shorter - start and same(old[-1 - tail], new[-1 - tail]):
        tail += 1

    steps = _Steps()
    steps.copy(0, start)
    _match(old, new, start, tail, steps)
    steps.copy(len(old) - tail, tail)
    return steps.change()


def _match(old: list[Any], new: list[Any], start: int, tail: int, steps: _Steps) -> None:
    """Add the steps for the elements between the equal start and the equal end: kept ones are copied, others changed or new.

    start: number of equal elements at the start. tail: number of equal elements at the end.
    """
    old_end, new_end = len(old) - tail, len(new) - tail
    if max(old_end, new_end) - start > MAX_MATCHED:
        steps.literal(new[start:new_end])
        return

    i, j = start, start
    for kept_i, kept_j in [*_kept(old, new, start, old_end, new_end), (old_end, new_end)]:
        while i < kept_i and j < kept_j:
            steps.change_of(i, _change(old[i], new[j]), new[j])
            i, j = i + 1, j + 1
        steps.literal(new[j:kept_j])
        if kept_i < old_end:
            steps.copy(kept_i, 1)
        i, j = kept_i + 1, kept_j + 1


def _kept(old: list[Any], new: list[Any], start: int, old_end: int, new_end: int) -> list[tuple[int, int]]:
    """Return pairs (index in old, index in new) of equal elements, ascending in both: a longest ascending subsequence."""
    places: dict[bytes, list[int]] = {}
    for i in range(old_end - 1, start - 1, -1):
        places.setdefault(_encoded(old[i]), []).append(i)

    pairs: list[tuple[int, int]] = []
    for j in range(start, new_end):
        found = places.get(_encoded(new[j]))
        if found:
            pairs.append((found.pop(), j))

    ends: list[int] = []  # ends[n]: smallest index in old at which an ascending sequence of n + 1 pairs can end
    runs: list[int] = []  # runs[n]: the last pair of that sequence
    before: list[int] = []  # before[pair]: the previous pair in its sequence, -1 for none
    for number, (i, _) in enumerate(pairs):
        length = bisect_left(ends, i)
        before.append(runs[length - 1] if length else -1)
        ends[length : length + 1] = [i]
        runs[length : length + 1] = [number]

    kept: list[tuple[int, int]] = []
    number = runs[-1] if runs else -1
    while number >= 0:
        kept.append(pairs[number])
        number = before[number]
    return kept[::-1]


class _Steps:
    """Collects the steps of a list patch and joins adjacent steps of the same kind."""

    def __init__(self) -> None:
        self._steps: list[list[Any]] = []
        self._changes = 0

    def copy(self, start: int, count: int) -> None:
        if not count:
            return

        last = self._steps[-1] if self._steps else None
        if last is not None and last[0] == COPY and last[1] + last[2] == start:
            last[2] += count
        else:
            self._steps.append([COPY, start, count])

    def literal(self, values: list[Any]) -> None:
        if not values:
            return

        last = self._steps[-1] if self._steps else None
        if last is not None and last[0] == LITERAL:
            last[1] += values
        else:
            self._steps.append([LITERAL, list(values)])

    def change_of(self, index: int, change: _Change | None, value: Any) -> None:
        if change is None:
            self.copy(index, 1)
        elif change.patch[0] == SET:
            self.literal([value])
        else:
            self._steps.append([CHANGE, index, change.patch])

    def change(self) -> _Change:
        patch = [LIST, self._steps]
        return _Change(patch, len(_encoded(patch)))


def _head(count: int) -> int:
    """Return the number of bytes of a CBOR head with this argument."""
    return 1 if count < 24 else 2 if count < 2**8 else 3 if count < 2**16 else 5 if count < 2**32 else 9


def _left(value: Any, budget: int) -> int:
    """Return `budget` minus the encoded length of a value, in bytes; it stops early when the result is negative.

    The result is never too small, because a float is counted with its shortest encoding.
    """
    if isinstance(value, str | bytes):
        return budget - _head(len(value)) - len(value)

    if isinstance(value, bool) or value is None:
        return budget - 1

    if isinstance(value, int):
        return budget - _head(value if value >= 0 else -1 - value)

    if isinstance(value, dict):
        budget -= _head(len(value))
        for key, one in value.items():
            budget = _left(one, _left(key, budget))
            if budget < 0:
                return budget
    elif isinstance(value, list):
        budget -= _head(len(value))
        for one in value:
            budget = _left(one, budget)
            if budget < 0:
                return budget
    else:
        budget -= 3  # length of the shortest float

    return budget


# ---------------------------------------------------------------- applying a patch


def _patched_map(old: dict[Any, Any], entries: dict[Any, Any], removed: list[Any]) -> dict[Any, Any]:
    result = dict(old)
    for key in removed:
        if not isinstance(key, (str, int)) or key not in result:
            message = "a patch removes an entry that is not there"
            raise WireError(message)

        del result[key]

    for key, patch in entries.items():
        result[key] = patched(result.get(key), patch)
    return result


def _patched_list(old: list[Any], steps: list[Any]) -> list[Any]:
    result: list[Any] = []
    used = 0
    for step in steps:
        match step:
            case [0, int() as start, int() as count] if used <= start and 0 < count <= len(old) - start:
                result += old[start : start + count]
                used = start + count
            case [1, list() as values]:
                result += values
            case [2, int() as index, patch] if used <= index < len(old):
                result.append(patched(old[index], patch))
                used = index + 1
            case _:
                message = f"a patch does not fit a list of {len(old)} elements"
                raise WireError(message)

    return result
