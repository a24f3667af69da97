"""The state over the wire: exact round trip, and one sentence for anything else."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psyche_core.coordinator.plain import from_plain, to_plain
from psyche_core.errors import WireError
from psyche_core.wire import codec


@pytest.fixture(scope="module")
def rich(started: Any) -> Any:
    """A state in which every table has an entry."""
    run = started(4, rounds_per_epoch=3)
    run.join(8)
    run.play_round()
    run.play_round(seen=[0, 1])
    run.withdraw(2)
    run.play_round(seen=[1])
    run.tick(after=31)
    run.do(run.statement(0))
    state = run.state
    assert state.requeue
    assert state.pending
    assert any(stored.statements for stored in state.epoch.rounds)
    return state


def test_round_trip_through_canonical_cbor(rich: Any) -> None:
    data = codec.encode(to_plain(rich))
    assert from_plain(codec.decode(data, max_bytes=1 << 20)) == rich


def test_a_full_state_fits_the_limits_of_the_codec(started: Any) -> None:
    run = started(256, global_batch_size_start=256, global_batch_size_end=256)
    for _ in range(3):
        run.play_round(seen=[])
    data = codec.encode(to_plain(run.state))
    assert from_plain(codec.decode(data, max_bytes=1 << 18)) == run.state


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [at]
    if isinstance(value, dict):
        for key, item in value.items():
            found += paths(item, (*at, key))
    elif isinstance(value, list):
        for place, item in enumerate(value[:3]):
            found += paths(item, (*at, place))
    return found


def changed(plain: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    made = copy.deepcopy(plain)
    inside = made
    for step in path[:-1]:
        inside = inside[step]
    inside[path[-1]] = value
    return made


_junk: st.SearchStrategy[Any] = st.sampled_from(
    [None, -1, 2**64, 1.5, "x", b"", b"x" * 31, [], [[]], {}, {"a": 1}, True, [1], "", 300, 10**30]
)


@settings(deadline=None)
@given(st.data())
def test_a_change_anywhere_is_read_as_written_or_refused(rich: Any, data: Any) -> None:
    plain = to_plain(rich)
    path = data.draw(st.sampled_from(paths(plain)))
    wrong = changed(plain, path, data.draw(_junk))
    try:
        state = from_plain(wrong)
    except WireError:
        return
    assert from_plain(to_plain(state)) == state


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        (("version",), 2, "expected version 1"),
        (("state", "run_state"), 9, "state.run_state: expected a number of RunState, got 9"),
        (("state", "run_state"), True, "state.run_state: expected a number of RunState, got True"),
        (("state", "since"), -5, "state.since: expected a number of 64 bits, got -5"),
        (("state", "since"), 2**64, "state.since: expected a number of 64 bits"),
        (("state", "epoch", "ready"), [99], "state.epoch.ready: expected slots of the epoch"),
        (("state", "epoch", "rounds", 0, "slots"), [0, 9], "round 0: expected ascending slots of the epoch"),
        (("state", "epoch", "rounds", 0, "slots"), [1, 0], "round 0: expected ascending slots of the epoch"),
        (("state", "epoch", "rounds", 0, "height"), 7, "consecutive heights"),
        (("state", "epoch", "rounds", 1, "statements", 0, "participants"), b"", "expected 32 bytes"),
        (("state", "epoch", "rounds", 1, "statements", 0, "index"), 200, "a statement of a slot of the epoch"),
        (("state", "epoch", "clients", 0, "id", "signer"), b"abc", "signer must be 32 bytes"),
        (("state", "requeue"), [{"first": 3, "last": 1}], "a batch is a closed interval"),
        (("state", "requeue"), [{"first": 0, "last": 1}, {"first": 1, "last": 2}], "share samples"),
        (("state", "config", "min_clients"), "1", "state.config is not a valid configuration"),
        (("state", "more"), 1, "state: expected the fields run_id"),
    ],
)
def test_refusals_are_sentences(rich: Any, path: tuple[Any, ...], value: Any, sentence: str) -> None:
    with pytest.raises(WireError) as caught:
        from_plain(changed(to_plain(rich), path, value))
    assert sentence in str(caught.value)


def test_sizes_are_bounded(rich: Any) -> None:
    plain = to_plain(rich)
    clients = plain["state"]["epoch"]["clients"]
    rounds = plain["state"]["epoch"]["rounds"]
    many = [{"first": 2 * place, "last": 2 * place} for place in range(513)]
    for path, value in (
        (("state", "epoch", "clients"), clients * 65),
        (("state", "pending"), [clients[0]["id"]] * 257),
        (("state", "epoch", "rounds"), rounds * 2),
        (("state", "requeue"), many),
        (("state", "run_id"), "x" * 2000),
    ):
        with pytest.raises(WireError, match="expected"):
            from_plain(changed(plain, path, value))
