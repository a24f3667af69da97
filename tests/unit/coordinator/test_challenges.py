"""Challenges of shares in the coordinator: drawn and advanced with rounds; what verdicts change, and what liars are told."""

from __future__ import annotations

import hashlib
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psyche_core.coordinator import apply
from psyche_core.coordinator.commands import (
    ChallengeClosed,
    ChallengesDrawn,
    ClientsExited,
    RewardsShared,
    RoundSettled,
    SetFutureEpochRates,
    ShareVoided,
)
from psyche_core.coordinator.history import history_with_statement
from psyche_core.coordinator.lifecycle.challenges import challenge_of, drawing_seed, verification_of, words_due
from psyche_core.coordinator.membership.missed_duties import WAITED_MISSES
from psyche_core.coordinator.round.witness import statements_digest
from psyche_core.coordinator.serialization import from_plain, to_plain
from psyche_core.coordinator.state import MAX_CHALLENGED_INTERVALS, CoordinatorState, OpenChallenge
from psyche_core.errors import CoordinatorError, WireError
from psyche_core.types import BatchId, ClientState
from psyche_core.verification.challenge import Challenge, Stage
from psyche_core.verification.standing import Standing
from psyche_core.verification.words import Word
from psyche_core.wire.codec import encode
from tests.unit.coordinator.challenged_rounds import LONG, RECOMPUTE, accuses, commit_all, play_rounds


def outcomes(run: Any) -> set[str]:
    return {event.outcome for event in run.seen_events(ChallengeClosed)}


# ---------------------------------------------------------------- honest runs
def test_honest_members_pass_are_paid_for_verifying_and_who_recomputes_gets_no_samples(play: Any) -> None:
    run = play_rounds(play(8, verification_percent=25, **LONG), 30)
    closed = run.seen_events(ChallengeClosed)
    assert outcomes(run) == {"PASSED"}
    assert len(closed) > 30
    assert all(event.paid == (event.verifier,) and event.strikes == () and not event.requeued for event in closed)
    assert all(client.standing.strikes == 0 for client in run.state.epoch.clients)
    settled = run.seen_events(RoundSettled)
    assert not any(event.refused for event in settled)
    counted = sum(client.accepted_rounds for client in run.state.epoch.clients)
    assert counted == sum(len(event.accepted) for event in settled) + len(closed)
    assert {len(event.accepted) for event in settled} <= {4, 5, 6, 7, 8}
    assert any(len(event.accepted) == 6 for event in settled), "two recompute in most rounds"


def test_challenges_are_drawn_from_the_seed_of_the_round_that_begins_about_the_shares_of_three_before(play: Any) -> None:
    """The results of round 0 are decided when round 2 begins, whose seed may be known before: that of round 3 draws."""
    run = play(6, verification_percent=50, **LONG)
    run.play_round()
    run.play_round()
    assert run.state.epoch.challenges == ()
    shares = run.shares(0)
    events = run.play_round()
    (drawn,) = [event for event in events if isinstance(event, ChallengesDrawn)]
    assert drawn.height == 0
    assert [(one.trainer, one.verifier) for one in run.state.epoch.challenges] == list(drawn.drawn)
    assert [one.share for one in run.state.epoch.challenges] == [shares[trainer] for trainer, _ in drawn.drawn]
    assert run.round.recomputing == tuple(sorted(verifier for _, verifier in drawn.drawn))
    assert len(drawn.drawn) == 3
    assert drawing_seed(run.round.seed) == hashlib.sha256(
        b"psyche/verification-seed/1" + run.round.seed.to_bytes(8, "little")
    ).digest()  # fmt: skip


def test_a_refused_result_and_a_share_of_many_intervals_are_not_challenged(play: Any) -> None:
    run = play(4, verification_percent=100, **LONG)
    run.play_round()
    run.play_round(seen=[0, 1, 2])  # the share of slot 3 in round 0 is refused
    run.play_round()
    assert {one.trainer for one in run.state.epoch.challenges} == {0, 1, 2}
    commit_all(run)
    run.play_round()
    commit_all(run)
    run.play_round()
    assert (1, 3) in {(one.height, one.trainer) for one in run.state.epoch.challenges}, "its next one is, or it would escape so"

    pieces = tuple(BatchId(2 * place, 2 * place) for place in range(4 * (MAX_CHALLENGED_INTERVALS + 1)))
    run = play(4, verification_percent=100, global_batch_size_start=len(pieces), global_batch_size_end=len(pieces))
    fragmented = replace(run.round, batches=pieces)
    run.state = replace(
        run.state,
        epoch=replace(run.state.epoch, rounds=(fragmented,)),
        progress=replace(run.state.progress, data_index=2 * len(pieces)),
    )
    seed, state = 5, run.state
    for slot in (0, 1, 2, 3):
        state, _ = apply(state, replace(run.statement(slot)), run.now + 1, seed)
    for height in (1, 2):
        for slot in (0, 1, 2, 3):
            sent = replace(run.statement(slot).statement, height=height, participants=b"\x0f" + bytes(31))
            state, _ = apply(state, replace(run.statement(slot), statement=sent), run.now + 2, seed)
    assert state.current_round.height == 3
    assert state.epoch.challenges == ()


# ---------------------------------------------------------------- verdicts
def test_a_cheat_gets_a_strike_its_samples_are_trained_again_and_the_second_ejects_it(play: Any) -> None:
    run = play(8, verification_percent=20, **LONG)
    run.do(SetFutureEpochRates(earning_total_shared=1000, slashing_per_client=7))
    run.say = accuses(3)
    for _ in range(40):
        play_rounds(run, 1)
        if run.state.epoch.clients[3].state is ClientState.Ejected:
            break
    client = run.state.epoch.clients[3]
    assert (client.state, client.standing.strikes) == (ClientState.Ejected, 2)
    assert [event.slots for event in run.seen_events(ClientsExited)] == [(3,)]
    guilty = [event for event in run.seen_events(ChallengeClosed) if event.outcome == "GUILTY"]
    assert [(event.trainer, event.strikes, event.requeued) for event in guilty] == [(3, (3,), True)] * 2
    assert all(len(event.paid) == 4 for event in guilty), "the verifier and three tie-breakers"
    accepted = sum(3 in event.accepted for event in run.seen_events(RoundSettled))
    verified = sum(3 in event.paid for event in run.seen_events(ChallengeClosed))
    assert client.accepted_rounds == accepted + verified - 2, "the two do not count"
    assert all(other.standing.strikes == 0 for slot, other in enumerate(run.state.epoch.clients) if slot != 3)
    ended = run.state.epoch.rounds[-2]
    assert ended.voided == ((3,) if 3 in run.shares(ended.height) else ())
    assert all(one.trainer != 3 for one in run.state.epoch.challenges)
    play_rounds(run, 3)  # `run_checks` sees to it that every sample is trained


def test_who_accuses_falsely_gets_the_strike(play: Any) -> None:
    run = play(8, verification_percent=20, **LONG)

    def words(_witness: int, challenge: Challenge, judge: int) -> Word:
        return Word.FAILED if judge == 2 and judge == challenge.drawn.verifier else Word.PASSED

    run.say = words
    for _ in range(100):
        play_rounds(run, 1)
        if run.state.epoch.clients[2].state is ClientState.Ejected or run.phase == "Cooldown":
            break
    assert "FALSE_ACCUSATION" in outcomes(run)
    assert [slot for slot, client in enumerate(run.state.epoch.clients) if client.standing.strikes] == [2]
    assert not any(event.requeued for event in run.seen_events(ChallengeClosed))


@pytest.mark.parametrize("complain", [False, True])
def test_who_gives_nothing_is_ejected(play: Any, complain: bool) -> None:
    """A trainer that keeps its signs or its chunks to itself."""
    run = play(8, verification_percent=50, **LONG)
    run.say = lambda _witness, challenge, _judge: Word.TRAINER_MISSING if challenge.drawn.trainer == 1 else Word.PASSED
    for _ in range(40):
        for one in run.state.epoch.challenges:
            if one.stage in RECOMPUTE:
                for slot in challenge_of(run.state, one).expected:
                    if all(root.slot != slot for root in one.roots) and not one.complained:
                        sign = None if complain and one.trainer == 1 and one.stage is Stage.COMMIT else bytes(32)
                        run.do(run.commit(slot, one.height, one.trainer, sign))
        run.play_round()
        if run.state.epoch.clients[1].state is ClientState.Ejected:
            break
    assert run.state.epoch.clients[1].state is ClientState.Ejected
    silence = [event for event in run.seen_events(ChallengeClosed) if event.outcome == "SILENCE"]
    assert {(event.trainer, event.strikes, event.requeued) for event in silence} == {(1, (1,), True)}
    assert all(client.standing.strikes == 0 for slot, client in enumerate(run.state.epoch.clients) if slot != 1)


def test_a_verifier_that_commits_to_nothing_misses_duties_until_nobody_waits_for_it(play: Any) -> None:
    """It is not ejected: a slow member would be, too. It gains nothing: it had no samples, and is not paid."""
    run = play_rounds(play(8, verification_percent=50, **LONG), 50, silent=frozenset({6}))
    silence = [event for event in run.seen_events(ChallengeClosed) if event.outcome == "SILENCE"]
    assert {(event.verifier, event.strikes, event.missed, event.paid) for event in silence} == {(6, (), (6,), ())}
    assert run.state.epoch.clients[6].missed >= WAITED_MISSES
    assert all(client.standing.strikes == 0 for client in run.state.epoch.clients)


def test_an_epoch_ends_without_challenges_and_the_next_begins_without_strikes(play: Any) -> None:
    run = play(6, verification_percent=50, rounds_per_epoch=12)
    run.say = accuses(0)
    play_rounds(run, 30)
    assert run.phase == "Cooldown"
    assert run.state.epoch.challenges == ()
    assert any(client.standing != Standing() for client in run.state.epoch.clients)
    run.cool_down()
    run.join(0)
    run.warm_up()
    assert [client.standing for client in run.state.epoch.clients] == [Standing()] * 6


def test_ejected_for_strikes_earns_nothing_and_is_not_slashed(play: Any) -> None:
    """How strict checks are, and on which data, is the owner's choice: it would take back what it owes for earlier epochs."""
    run = play(0, verification_percent=50, rounds_per_epoch=16)
    run.do(SetFutureEpochRates(earning_total_shared=1000, slashing_per_client=7))
    run.start(6)
    run.say = accuses(0)
    play_rounds(run, 40)
    run.cool_down()
    (paid,) = run.seen_events(RewardsShared)
    assert run.state.epoch.clients[0].state is ClientState.Ejected
    assert paid.slashed == ()
    assert 0 not in dict(paid.earned)
    assert sum(dict(paid.earned).values()) > 990


@pytest.mark.parametrize("lost", [False, True])
def test_who_has_left_with_a_strike_earns_nothing(play: Any, lost: bool) -> None:
    """Else a cheat would leave when it is first checked, and be paid for all that it has not trained."""
    run = play(0, verification_percent=50, rounds_per_epoch=16)
    run.do(SetFutureEpochRates(earning_total_shared=1000))
    run.start(6)
    run.say = accuses(0)
    for _ in range(40):
        if run.phase != "RoundTrain" or run.state.epoch.clients[0].standing.strikes:
            break
        play_rounds(run, 1)
    assert (run.phase, run.state.epoch.clients[0].standing.strikes) == ("RoundTrain", 1)
    before = run.state.epoch.clients[0].accepted_rounds
    assert before > 0
    run.withdraw(0)
    if lost:
        clients = list(run.state.epoch.clients)
        clients[0] = replace(clients[0], state=ClientState.Dropped)
        run.state = replace(run.state, epoch=replace(run.state.epoch, clients=tuple(clients)))
    play_rounds(run, 40)
    run.cool_down()
    (paid,) = run.seen_events(RewardsShared)
    assert 0 not in dict(paid.earned)
    assert paid.slashed == ()


def test_samples_of_a_share_that_a_proof_voids_are_not_queued_twice(play: Any) -> None:
    """The trainer of a challenged share is proven to have signed two results, which counts its samples as lost."""
    run = play(4, verification_percent=100, **LONG)
    for _ in range(3):
        run.play_round()
    challenged = next(one for one in run.state.epoch.challenges)
    run.do(run.evidence(challenged.trainer, 0, by=(challenged.trainer + 1) % 4))
    (event,) = run.seen_events(ShareVoided)
    assert not event.requeued
    assert run.state.lost_samples == 4
    (left,) = [one for one in run.state.epoch.challenges if one.trainer == challenged.trainer and one.height == 0]
    assert left.share == ()
    for _ in range(2):
        run.play_round()
    assert not [event for event in run.seen_events(ChallengeClosed) if event.trainer == challenged.trainer]
    assert run.state.epoch.clients[challenged.verifier].missed == 0, "it could not know the samples any more"


# ---------------------------------------------------------------- what liars are told
def revealing(play: Any) -> Any:
    """A run of eight in a round whose statements have words."""
    run = play(8, verification_percent=50, **LONG)
    play_rounds(run, 5)
    assert len(words_due(run.state)) >= 3
    return run


def test_statements_with_other_words_are_refused_in_one_sentence(play: Any) -> None:
    run = revealing(play)
    count = len(words_due(run.state))
    good = run.statement(0)
    assert len(good.statement.words) == (count + 1) // 2
    for words in (b"", good.statement.words + b"\0", b"\x77" * len(good.statement.words), good.statement.words[:-1]):
        run.refused(replace(good, statement=replace(good.statement, words=words)), "InvalidWitness")
        with pytest.raises(CoordinatorError, match=r"^[^.\n]+$"):
            apply(run.state, replace(good, statement=replace(good.statement, words=words)), run.now, 1)
    run.do(good)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"epoch": 1}, "this is epoch 0, the commitment is about epoch 1"),
        ({"seed": 5}, "the commitment belongs to another round than 3, or to a forgotten one"),
        ({"height": 1}, "the share of slot {trainer} of round 1 is not challenged (any more)"),
        ({"commitment": b"r" * 31}, "a root has 32 bytes, got 31"),
    ],
)
def test_commitments_of_liars_are_refused_in_one_sentence(play: Any, change: dict[str, Any], sentence: str) -> None:
    run = play_rounds(play(8, verification_percent=50, **LONG), 3)
    one = run.state.epoch.challenges[0]
    good = run.commit(one.verifier, one.height, one.trainer)
    with pytest.raises(CoordinatorError) as caught:
        apply(run.state, replace(good, **change), run.now, 1)
    assert str(caught.value) == f"InvalidCommit: {sentence.format(trainer=one.trainer)}"
    run.do(good)
    run.refused(good, "InvalidCommit")


def test_only_who_is_asked_commits(play: Any, members: Any) -> None:
    run = play_rounds(play(8, verification_percent=50, **LONG), 3)
    one = run.state.epoch.challenges[0]
    for slot in set(range(8)) - {one.verifier}:
        run.refused(run.commit(slot, one.height, one.trainer), "InvalidCommit")
    run.refused(replace(run.commit(0, one.height, one.trainer), sender=members(77)), "InvalidCommit")
    run.withdraw(one.verifier)
    run.refused(run.commit(one.verifier, one.height, one.trainer), "InvalidCommit")


# ---------------------------------------------------------------- the bytes of the state
def test_a_state_with_challenges_travels_and_is_bounded(play: Any) -> None:
    run = revealing(play)
    reached: set[Stage] = set()
    run.say = accuses(0, 5)
    for number in range(30):
        commit_all(run, complain=number % 3 == 0, silent=frozenset({7}) if number % 5 == 0 else frozenset())
        for slot in sorted(run.elected)[:3]:
            run.do(run.statement(slot))
            assert from_plain(to_plain(run.state)) == run.state
        reached |= {one.stage for one in run.state.epoch.challenges}
        run.play_round()
        assert verification_of(from_plain(to_plain(run.state))) == verification_of(run.state)
        if run.phase == "Cooldown":
            break
    assert reached == set(Stage) - {Stage.CLOSED}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"verifier": 99}, "slots of the epoch"),
        ({"verifier": "trainer"}, "tie-breakers that are others"),
        ({"since": 1}, "a later round"),
        ({"since": 9}, "a later round"),
        ({"stage": Stage.CLOSED}, "an open challenge"),
        ({"judges": (6, 5)}, "ascending slots"),
        ({"missed": (1, 2, 3, 4)}, "at most 3"),
        ({"share": (BatchId(10**9, 10**9),)}, "samples below progress.data_index"),
    ],
)
def test_challenges_that_rounds_cannot_advance_are_not_read(play: Any, change: dict[str, Any], sentence: str) -> None:
    run = play_rounds(play(8, verification_percent=50, **LONG), 3)
    one: OpenChallenge = run.state.epoch.challenges[0]
    fields: dict[str, Any] = {name: one.trainer if value == "trainer" else value for name, value in change.items()}
    changed = replace(one, **fields)
    wrong = replace(run.state, epoch=replace(run.state.epoch, challenges=(changed, *run.state.epoch.challenges[1:])))
    with pytest.raises(WireError, match=sentence):
        from_plain(to_plain(wrong))


def test_a_default_that_is_written_out_is_refused(play: Any) -> None:
    plain = to_plain(play(3).state)
    assert "standing" not in plain["state"]["epoch"]["clients"][0]
    plain["state"]["epoch"]["challenges"] = []
    with pytest.raises(WireError, match=r"state\.epoch\.challenges: expected another value than the default"):
        from_plain(plain)


def state_bytes(state: CoordinatorState) -> bytes:
    return encode(to_plain(state))


def test_without_verification_every_byte_is_what_it_was_before(play: Any) -> None:
    """Made with the code of before: states and digests of a run with refused results, a proof, a return and a second epoch."""
    run = play(5, rounds_per_epoch=6)
    digest = hashlib.sha256()
    for number in range(9):
        if run.phase == "Cooldown":
            run.cool_down()
            run.join(1)
            run.warm_up()
        if number == 2:
            run.do(run.evidence(1, 1, by=0))
        run.play_round(seen=sorted(run.shares(run.round.height - 1))[number % 2 :])
        if run.phase == "RoundWitness":
            run.tick(after=11)
        digest.update(state_bytes(run.state))
        digest.update(run.state.history)
        if run.state.current_round is not None and len(run.state.epoch.rounds) > 1:
            digest.update(statements_digest(run.state.epoch.rounds[-2].statements))
    assert digest.hexdigest() == WITHOUT_VERIFICATION


WITHOUT_VERIFICATION = "f067d8e522b6918e931e0ff2578f64ba9a99c159b79c993dc7cf7a7a97c6435d"


def test_words_are_part_of_the_history_and_of_the_statements_digest(play: Any) -> None:
    run = play(3)
    statement = run.statement(0).statement
    spoken = replace(statement, words=b"\1")
    assert history_with_statement(bytes(32), spoken) != history_with_statement(bytes(32), statement)
    assert statements_digest((spoken,)) != statements_digest((statement,))


# ---------------------------------------------------------------- minorities
@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([20, 60]))
def test_two_lying_witnesses_of_eight_convict_nobody_and_save_no_cheat(started: Any, seed: int, percent: int) -> None:
    rng = random.Random(seed)
    run = started(8, verification_percent=percent, **LONG)

    def words(witness: int, challenge: Challenge, _judge: int) -> Word:
        if witness in (0, 1):
            return rng.choice(list(Word))
        return Word.FAILED if challenge.drawn.trainer == 2 else Word.PASSED

    run.say = words
    play_rounds(run, 25)
    struck = {slot for slot, client in enumerate(run.state.epoch.clients) if client.standing.strikes}
    assert struck <= {2}
    closed = [event for event in run.seen_events(ChallengeClosed) if event.trainer == 2]
    assert all(event.outcome != "PASSED" for event in closed)


def test_who_came_back_since_verifies_nothing_that_it_may_lack(play: Any) -> None:
    run = play(8, verification_percent=50, **LONG)
    run.play_round()
    run.withdraw(6)
    run.play_round()
    run.come_back(6)
    for _ in range(3):
        assert all(one.verifier != 6 for one in run.state.epoch.challenges), f"round {run.round.height}"
        commit_all(run)
        run.play_round()
    for _ in range(12):
        if any(one.verifier == 6 for one in run.state.epoch.challenges):
            break
        commit_all(run)
        run.play_round()
    assert any(one.verifier == 6 for one in run.state.epoch.challenges)
