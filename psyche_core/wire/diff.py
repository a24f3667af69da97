"""Structural differences between plain trees, so that a changed state travels as what changed.

A plain tree is what the codec carries: None, bool, int, float, str, bytes, lists and dicts with str or int keys. A patch is
itself a plain tree:

    [SET, value]                          the whole value
    [MAP, {key: patch}, [removed keys]]   entries changed or added, entries gone
    [LIST, [step, ...]]                   the new list, in order, out of
        [COPY, start, count]                  elements of the old list
        [LITERAL, [value, ...]]               new elements
        [CHANGE, index, patch]                an old element with a patch

Old elements are used at most once and in order, so a patched tree is never larger than the old tree and the patch together: a
patch cannot be a bomb. Decided here: nothing is sent about equal parts, and a part whose patch would be longer than the part is
replaced. Refuses to guess: a patch that does not fit the tree raises WireError; that the result is the intended one is proved by
comparing hashes of encodings, which callers do.
"""

from __future__ import annotations

from difflib import SequenceMatcher
from typing import Any

from psyche_core.errors import WireError
from psyche_core.wire.codec import encode

SET, MAP, LIST = 0, 1, 2
COPY, LITERAL, CHANGE = 0, 1, 2

MAX_MATCHED = 1024
"""Longest stretch of list elements that is searched for moved parts (the search is quadratic); longer ones are replaced."""


def same(left: Any, right: Any) -> bool:
    """Whether two plain trees encode to the same bytes; unlike `==` it tells 1, 1.0 and True apart."""
    if left is right:
        return True

    if type(left) is not type(right):
        return False

    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(value, right[key]) for key, value in left.items())

    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))

    if isinstance(left, float):
        return bool(left.hex() == right.hex())

    return bool(left == right)


def diff(old: Any, new: Any) -> list[Any] | None:
    """A patch that turns `old` into `new`; None when they are the same."""
    if same(old, new):
        return None

    return _changed(old, new)


def patched(old: Any, patch: Any) -> Any:
    """The tree that `patch` makes of `old`; shares unchanged parts with `old`, which is not modified.

    Raises WireError when the patch is malformed or does not fit.
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


def _changed(old: Any, new: Any) -> list[Any]:
    whole = [SET, new]
    if isinstance(old, dict) and isinstance(new, dict):
        patch = _diff_map(old, new)
    elif isinstance(old, list) and isinstance(new, list):
        patch = [LIST, _diff_list(old, new)]
    else:
        return whole

    return patch if len(encode(patch)) < len(encode(whole)) else whole


def _diff_map(old: dict[Any, Any], new: dict[Any, Any]) -> list[Any]:
    entries = {}
    for key, value in new.items():
        if key not in old:
            entries[key] = [SET, value]
        elif not same(old[key], value):
            entries[key] = _changed(old[key], value)

    return [MAP, entries, [key for key in old if key not in new]]


def _diff_list(old: list[Any], new: list[Any]) -> list[Any]:
    start = 0
    while start < min(len(old), len(new)) and same(old[start], new[start]):
        start += 1

    tail = 0
    while tail < min(len(old), len(new)) - start and same(old[len(old) - 1 - tail], new[len(new) - 1 - tail]):
        tail += 1

    steps: list[Any] = [[COPY, 0, start]] if start else []
    old_end, new_end = len(old) - tail, len(new) - tail
    if max(old_end, new_end) - start > MAX_MATCHED:
        steps.append([LITERAL, new[start:new_end]])
    else:
        keys = SequenceMatcher(
            None, [encode(v) for v in old[start:old_end]], [encode(v) for v in new[start:new_end]], autojunk=False
        )
        for tag, i, i_end, j, j_end in keys.get_opcodes():
            if tag == "equal":
                steps.append([COPY, start + i, i_end - i])
                continue

            pairs = min(i_end - i, j_end - j)
            steps += [[CHANGE, start + i + k, _changed(old[start + i + k], new[start + j + k])] for k in range(pairs)]
            if j + pairs < j_end:
                steps.append([LITERAL, new[start + j + pairs : start + j_end]])

    if tail:
        steps.append([COPY, old_end, tail])
    return steps


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
