from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psyche_core.errors import WireError
from psyche_core.wire.codec import decode, encode
from psyche_core.wire.diff import diff, patched, same

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.sampled_from([0, 1, True, False, 0.0, -0.0, 1.0])
    | st.text(max_size=5)
    | st.binary(max_size=5)
)
KEYS = st.text(max_size=2) | st.integers(0, 5)
TREES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=6) | st.dictionaries(KEYS, inner, max_size=5), max_leaves=25)


def apply_encoded(old: Any, patch: Any) -> Any:
    """Apply what a peer would decode."""
    return patched(old, decode(encode(patch), max_bytes=10**6, max_depth=80))


@settings(deadline=None)
@given(st.lists(TREES, min_size=2, max_size=6))
def test_a_chain_of_patches_reproduces_every_tree(trees: list[Any]) -> None:
    mirror = copy.deepcopy(trees[0])
    for old, new in pairwise(trees):
        patch = diff(old, new)
        if patch is None:
            assert encode(old) == encode(new)
            continue
        before = encode(mirror)
        after = apply_encoded(mirror, patch)
        assert encode(mirror) == before
        mirror = after
        assert encode(mirror) == encode(new)


@settings(deadline=None)
@given(st.lists(st.integers(0, 6), max_size=12), st.lists(st.integers(0, 6), max_size=12))
def test_lists_with_repeats_are_rebuilt(old: list[int], new: list[int]) -> None:
    patch = diff(old, new)
    assert (new if patch is None else apply_encoded(old, patch)) == new


@settings(deadline=None)
@given(TREES, TREES)
def test_patch_is_never_longer_than_replacing(old: Any, new: Any) -> None:
    patch = diff(old, new)
    assert patch is None or len(encode(patch)) <= len(encode([0, new]))


@settings(deadline=None)
@given(TREES, TREES)
def test_same_means_same_encoding(left: Any, right: Any) -> None:
    assert same(left, right) == (encode(left) == encode(right))
    assert same(left, copy.deepcopy(left))


def test_equal_trees_have_no_patch() -> None:
    assert diff({"a": [1, {"b": b"x"}]}, {"a": [1, {"b": b"x"}]}) is None


def test_shifted_window_with_a_changed_element_is_small() -> None:
    rounds = [{"height": h, "blob": bytes([h]) * 500, "seen": []} for h in range(5)]
    old = rounds[:4]
    new = [*rounds[1:3], {**rounds[3], "seen": [b"witness"]}, {"height": 4}]
    patch = diff(old, new)
    assert patch is not None
    assert len(encode(patch)) < 60
    assert apply_encoded(old, patch) == new


def test_long_changed_stretch_is_replaced_not_searched() -> None:
    old, new = list(range(5000)), list(range(5000, 0, -1))
    patch = diff([*old, "end"], [*new, "end"])
    assert apply_encoded([*old, "end"], patch) == [*new, "end"]


@pytest.mark.parametrize(
    "patch",
    [
        None,
        7,
        [],
        [0],
        [3, 1],
        [1, {}, []],
        [2, [[0, 0, 4]]],
        [2, [[0, 0, 0]]],
        [2, [[0, -1, 1]]],
        [2, [[0, 0, 2], [0, 1, 1]]],
        [2, [[0, 0, 2], [2, 1, [0, 5]]]],
        [2, [[2, 3, [0, 5]]]],
        [2, [[2, 0, [2, []]]]],
        [2, [[1, 5]]],
        [2, [5]],
        [2, {}],
    ],
)
def test_patch_that_does_not_fit_a_list_is_refused(patch: Any) -> None:
    with pytest.raises(WireError):
        patched([1, 2, 3], patch)


@pytest.mark.parametrize(
    "patch", [[1, {}, ["gone"]], [1, {}, [b"a"]], [1, {"b": [2, []]}, []], [1, [], []], [2, []], [1, {}, [[]]]]
)
def test_patch_that_does_not_fit_a_dict_is_refused(patch: Any) -> None:
    with pytest.raises(WireError):
        patched({"a": 1}, patch)


@settings(deadline=None)
@given(TREES, TREES)
def test_any_tree_as_a_patch_is_applied_or_refused(old: Any, patch: Any) -> None:
    try:
        patched(old, patch)
    except WireError:
        return


def test_patch_cannot_multiply_the_old_tree() -> None:
    with pytest.raises(WireError):
        patched(["big" * 1000], [2, [[0, 0, 1], [0, 0, 1]]])


class Untouchable:
    """Neither compared nor encoded, or the test fails."""

    __hash__ = None  # type: ignore[assignment]  # of no use either

    def __eq__(self, other: object) -> bool:
        pytest.fail("a part that old and new share was looked at")


def test_what_old_and_new_share_is_never_looked_at() -> None:
    shared = {"deep": [Untouchable()]}
    old = {"clients": [shared] * 3, "round": {"statements": [shared, shared], "height": 4}, "model": shared}
    new = {**old, "round": {"statements": [shared, shared, b"statement"], "height": 4}}
    assert diff(old, new) == [1, {"round": [1, {"statements": [2, [[0, 0, 2], [1, [b"statement"]]]]}, []]}, []]


def test_a_patched_tree_shares_what_did_not_change() -> None:
    long = b"x" * 50
    old: dict[str, Any] = {"a": {"b": [1, 2]}, "c": [{"d": long}, {"e": 2}]}
    patch = diff(old, {"a": {"b": [1, 2]}, "c": [{"d": long}, {"e": 3}]})
    new = patched(old, patch)
    assert new["a"] is old["a"]
    assert new["c"][0] is old["c"][0]


def test_scattered_changes_travel_as_changes() -> None:
    old = [{"id": bytes([n]) * 32, "accepted": 0, "state": 0} for n in range(100)]
    new = [{**client, "accepted": 1} if n % 10 == 3 else client for n, client in enumerate(old)]
    patch = diff(old, new)
    assert patch is not None
    assert len(encode(patch)) < 10 * 30
    assert apply_encoded(old, patch) == new


@pytest.mark.parametrize("new", [[9, 0, 1, 2, 3, 4], [1, 2, 3, 4, 0], [4, 0, 1, 2, 3], [0, 2, 4], [0, 1, 9, 9, 3, 4]])
def test_moved_elements_are_found_as_far_as_order_allows(new: list[int]) -> None:
    def blob(number: int) -> dict[str, bytes]:
        return {"blob": bytes([number]) * 200}

    old_blobs, new_blobs = [blob(n) for n in range(5)], [blob(n) for n in new]
    patch = diff(old_blobs, new_blobs)
    literal = sum(n == 9 for n in new) + (new in ([1, 2, 3, 4, 0], [4, 0, 1, 2, 3]))
    assert len(encode(patch)) < 215 * literal + 40
    assert apply_encoded(old_blobs, patch) == new_blobs
