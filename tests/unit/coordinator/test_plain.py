"""The state over the wire: exact round trip, and one sentence for anything else."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psyche_core.coordinator import apply
from psyche_core.coordinator.commands import Join, SetFutureEpochRates, Tick, WarmupWitness, Withdraw
from psyche_core.coordinator.lifecycle.challenges import challenge_of
from psyche_core.coordinator.serialization import from_plain, to_plain
from psyche_core.coordinator.state import MAX_ACCOUNTS, CoordinatorState, EpochRates
from psyche_core.errors import CoordinatorError, WireError
from psyche_core.types import NodeIdentity
from psyche_core.verification.challenge import Stage
from psyche_core.verification.words import Word
from psyche_core.wire import codec


@pytest.fixture(scope="module")
def rich(unstarted: Any) -> Any:
    """A state in which every table has an entry."""
    run = unstarted(rounds_per_epoch=3, checkpointers=["ab" * 32])
    run.do(SetFutureEpochRates(earning_total_shared=1000, slashing_per_client=10))
    run.start(4)
    run.play_round()
    run.do(run.evidence(3, 0, by=0))
    run.play_epoch()
    run.cool_down()
    run.join(3)
    run.warm_up()
    run.join(8)
    run.play_round()
    run.play_round(seen=[0, 1])
    run.withdraw(2)
    run.come_back(2)
    run.do(run.evidence(1, 0, by=0))
    run.play_round(seen=[0])
    run.tick(after=31)
    if not run.round.statements:
        run.do(run.statement(0))
    state = run.state
    assert state.accounts
    assert any(account.slashed for account in state.accounts)
    assert any(client.rejoins for client in state.epoch.clients)
    assert state.epoch.rates != EpochRates()
    assert state.requeue
    assert state.pending
    assert any(stored.statements for stored in state.epoch.rounds)
    return state


@pytest.fixture(scope="module")
def challenged(unstarted: Any) -> Any:
    """A state with challenges in several stages, strikes and words."""
    size = {"global_batch_size_start": 16, "global_batch_size_end": 16}
    run = unstarted(rounds_per_epoch=40, verification_percent=40, **size).start(8)
    run.say = lambda witness, challenge, judge: Word.FAILED if challenge.drawn.trainer == 3 else Word.PASSED
    for _ in range(30):
        for one in run.state.epoch.challenges:
            for slot in challenge_of(run.state, one).expected:
                if one.stage in (Stage.COMMIT, Stage.TIE_COMMIT) and all(root.slot != slot for root in one.roots):
                    run.do(run.commit(slot, one.height, one.trainer))
        run.do(run.statement(0))
        stages = {one.stage for one in run.state.epoch.challenges}
        if run.state.epoch.clients[3].standing.strikes and len(stages) >= 3 and run.round.statements[0].words:
            break
        run.play_round()
    assert run.state.epoch.challenges
    assert any(one.roots for one in run.state.epoch.challenges)
    return run.state


def test_round_trip_through_canonical_cbor(rich: Any, challenged: Any) -> None:
    for state in (rich, challenged):
        data = codec.encode(to_plain(state))
        assert from_plain(codec.decode(data, max_bytes=1 << 20)) == state


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
def test_a_change_anywhere_is_read_as_written_or_refused(rich: Any, challenged: Any, data: Any) -> None:
    plain = to_plain(data.draw(st.sampled_from([rich, challenged])))
    path = data.draw(st.sampled_from(paths(plain)))
    wrong = changed(plain, path, data.draw(_junk))
    try:
        state = from_plain(wrong)
    except WireError:
        return
    assert from_plain(to_plain(state)) == state
    use(state, data.draw(st.integers(0, 10**6)))


def use(state: CoordinatorState, later: int) -> None:
    """Whatever is read can be computed with: commands are applied or refused by name, for a while."""
    for seed in range(6):
        sender = state.epoch.clients[0].id if state.epoch.clients else NodeIdentity(bytes(32), bytes(32))
        for command in (
            Tick(),
            Join(sender, bytes(64)),
            WarmupWitness(sender, state.progress.epoch, 0, b"\1" * 32),
            Tick(),
            Withdraw(sender),
        ):
            try:
                state, _ = apply(state, command, state.since + later, seed)
            except CoordinatorError:
                continue
            to_plain(state)


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        (("version",), 1, "expected version 7"),
        (("state", "run_state"), 9, "state.run_state: expected a number of RunState, got 9"),
        (("state", "run_state"), True, "state.run_state: expected a number of RunState, got True"),
        (("state", "since"), -5, "state.since: expected a number of 64 bits, got -5"),
        (("state", "since"), 2**64, "state.since: expected a number of 64 bits"),
        (("state", "epoch", "ready"), [99], "state.epoch.ready: expected ascending slots of the epoch"),
        (("state", "epoch", "ready"), [1, 0], "state.epoch.ready: expected ascending slots of the epoch"),
        (("state", "epoch", "rounds", 0, "slots"), [0, 9], "round 0: expected ascending slots of the epoch"),
        (("state", "epoch", "rounds", 0, "slots"), [1, 0], "round 0: expected ascending slots of the epoch"),
        (("state", "epoch", "rounds", 0, "height"), 7, "consecutive heights"),
        (("state", "epoch", "rounds", 1, "statements", 0, "participants"), b"", "expected 32 bytes"),
        (("state", "epoch", "rounds", 0, "drain"), True, "no drain round but the last"),
        (("state", "epoch", "rounds"), [], "state.epoch.rounds: expected a round in Round"),
        (("state", "epoch", "clients", 0, "rejoins"), 4, "state.epoch.clients[0].rejoins: expected at most 3"),
        (("state", "epoch", "clients", 0, "accepted_rounds"), 2**32, "accepted_rounds: expected a number of 32 bits"),
        (("state", "epoch", "rates", "earning_total_shared"), 2**64, "earning_total_shared: expected a number of 64 bits"),
        (("state", "accounts", 0, "signer"), b"abc", "state.accounts: expected signers of 32 bytes"),
        (("state", "accounts", 0, "signer"), b"\xff" * 32, "state.accounts: expected signers in ascending order"),
        (("state", "progress", "data_index"), 2**63 - 2**16, "data_index: expected a smaller number"),
        (("state", "progress", "data_index"), 0, "expected samples below progress.data_index"),
        (("state", "progress", "step"), 2**32, "state.progress.step: expected a number of 32 bits"),
        (("state", "run_id"), "", "state.run_id: expected a name of 1 to 32 bytes"),
        (("state", "run_id"), "\ud800", "state.run_id: expected a name of 1 to 32 bytes"),
        (("state", "config", "min_clients"), 0, "state.config breaks a rule: config.min_clients = 0: must be at least 1"),
        (("state", "requeue"), [{"first": 0, "last": 1}, {"first": 2, "last": 3}], "ascending intervals with neighbours joined"),
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


def test_nobody_is_there_twice(rich: Any) -> None:
    plain = to_plain(rich)
    clients, pending = plain["state"]["epoch"]["clients"], plain["state"]["pending"]
    for path, value in (
        (("state", "epoch", "clients", 1, "id"), clients[0]["id"]),
        (("state", "pending"), [pending[0], pending[0]]),
        (("state", "accounts"), [plain["state"]["accounts"][0]] * 2),
        (("state", "epoch", "rounds", -1, "statements"), plain["state"]["epoch"]["rounds"][-1]["statements"] * 2),
    ):
        with pytest.raises(WireError, match=r"each|one statement"):
            from_plain(changed(plain, path, value))


def test_samples_that_may_come_back_are_held_once(rich: Any) -> None:
    """Else settling a round would put them in the queue twice."""
    plain = to_plain(rich)
    held = plain["state"]["epoch"]["rounds"][-2]["batches"]
    with pytest.raises(WireError, match=r"undecided rounds: .* share samples"):
        from_plain(changed(plain, ("state", "requeue"), held))


def test_more_accounts_than_a_run_can_open_are_refused(rich: Any) -> None:
    plain = to_plain(rich)
    needed = len(rich.epoch.clients) + 1  # and member 8, who is pending
    for count, fits in ((MAX_ACCOUNTS - needed, True), (MAX_ACCOUNTS - needed + 1, False), (MAX_ACCOUNTS + 1, False)):
        accounts = [{"signer": number.to_bytes(32, "big"), "earned": 1, "slashed": 0} for number in range(count)]
        wrong = changed(plain, ("state", "accounts"), accounts)
        if fits:
            assert len(from_plain(wrong).accounts) == count
        else:
            with pytest.raises(WireError, match="at most 512"):
                from_plain(wrong)


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
