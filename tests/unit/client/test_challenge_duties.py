"""What a member does in challenges of shares: who shows, fetches, recomputes, commits and checks what; what it says then."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psyche_core.client.machine import actions as act
from psyche_core.client.machine.verification.duties import MAX_OPENINGS, Duties, givers, place_of
from psyche_core.coordinator.commands import VerifierCommit
from psyche_core.coordinator.lifecycle.challenges import challenge_of, words_due
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.types import BatchId
from psyche_core.verification.challenge import Challenge, Stage
from psyche_core.verification.merkle import committed_root
from psyche_core.verification.words import Word, decode_words
from psyche_core.wire.messages import Opening, Result
from tests.unit.coordinator.conftest import Play, make_state

RESULT = Result(0, 0, 1, 0, (BatchId(0, 0),), bytes(32), 1, bytes(32), bytes(64), bytes(64))
TAG = 99


JUNK = b"j" * 32


@dataclass
class Members:
    """Eight members' duties around a run that is played; what one shows is announced to all, and fetches succeed.

    silent: members that show nothing. cheats: trainers whose parts do not fit. junk: members that announce junk to every second
    witness first. withheld: parts that nobody sends. before: everybody's last result; result: the challenged one. now: seconds.
    """

    run: Play
    silent: frozenset[int] = frozenset()
    cheats: frozenset[int] = frozenset()
    junk: frozenset[int] = frozenset()
    withheld: frozenset[bytes] = frozenset()
    before: Result | None = None
    result: Result = RESULT
    now: float = 0.0
    duties: list[Duties] = field(default_factory=lambda: [Duties() for _ in range(8)])
    done: list[tuple[int, act.Action]] = field(default_factory=list)

    @property
    def state(self) -> CoordinatorState:
        return self.run.state

    def turn(self) -> None:
        """All members do what is due until nothing is."""
        for _ in range(6):
            for slot, own in enumerate(self.duties):
                own.follow(self.state, lambda *_: self.result, lambda *_: self.before, now=self.now)
                clients = tuple(client.id for client in self.state.epoch.clients)
                todo = own.actions(self.state, slot, identity=clients[slot], clients=clients, tag=TAG, now=self.now)
                work = own.next_recompute(self.state, slot, tag=TAG)
                for action in [*todo, *([work] if work is not None else [])]:
                    self.done.append((slot, action))
                    self.answer(slot, own, action)

    def answer(self, slot: int, own: Duties, action: act.Action) -> None:
        match action:
            case act.ShowPart() if slot not in self.silent:
                shown = bytes([slot, action.challenge.stage, action.place.since % 256]) + bytes(29)
                assert own.shown(action.place, slot, shown, 10)
                for other, theirs in enumerate(self.duties):
                    if other != slot:
                        if slot in self.junk and other % 2 and action.challenge.stage is Stage.REVEAL:
                            theirs.announced(slot, opening(action.place, JUNK))
                        theirs.announced(slot, opening(action.place, shown))
            case act.FetchPart() if action.payload_hash in self.withheld:
                own.missing(action.payload_hash, now=0.0)
            case act.FetchPart():
                own.fetched(action.payload_hash)
            case act.CheckParts() if action.trainers == JUNK:
                own.checked(action.place, action.judge, Word.TRAINER_MISSING)
            case act.CheckParts():
                fits = action.challenge.drawn.trainer not in self.cheats
                own.checked(action.place, action.judge, Word.PASSED if fits else Word.FAILED)
            case act.Recompute():
                own.recomputed(action.place, bytes([slot]) * 32)
            case act.Send(VerifierCommit() as command):
                self.run.do(command)

    def play(self, rounds: int) -> None:
        for _ in range(rounds):
            self.turn()
            self.run.say = self.said
            self.run.play_round()
            self.now += 10

    def said(self, witness: int, challenge: Challenge, judge: int) -> Word:
        due = words_due(self.state)
        words = decode_words(self.duties[witness].words(self.state), count=len(due))
        return words[due.index((challenge, judge))]

    def did(self, kind: type[Any]) -> list[tuple[int, Any]]:
        return [(slot, action) for slot, action in self.done if isinstance(action, kind)]


def opening(place: act.StagePlace, payload_hash: bytes) -> Opening:
    return Opening(0, place.since, 0, place.about, place.trainer, payload_hash, 10)


def members(percent: int = 30, *, witness_nodes: int = 0, **options: Any) -> Members:
    size: dict[str, Any] = {"global_batch_size_start": 16, "global_batch_size_end": 16, "witness_nodes": witness_nodes}
    run = Play(make_state(verification_percent=percent, rounds_per_epoch=60, **size)).start(8)
    return Members(run, **options)


def closed(party: Members) -> list[tuple[int, str, tuple[int, ...]]]:
    events = [event for event in party.run.events if type(event).__name__ == "ChallengeClosed"]
    return [(event.trainer, event.outcome, event.strikes) for event in events]  # type: ignore[union-attr]


def test_members_that_do_their_duties_pass() -> None:
    party = members()
    party.play(16)
    assert len(closed(party)) > 20
    assert {outcome for _, outcome, _ in closed(party)} == {"PASSED"}
    assert not any(client.missed for client in party.state.epoch.clients)
    for slot, work in party.did(act.Recompute):
        assert slot == work.challenge.drawn.verifier
        assert work.share
    committed = [action.command for _, action in party.did(act.Send)]
    assert all(command.commitment is not None for command in committed)
    assert len(committed) == len(party.did(act.Recompute))


def test_a_commitment_is_bound_to_who_commits() -> None:
    party = members()
    party.play(4)
    (slot, sent) = party.did(act.Send)[0]
    assert sent.command.commitment == committed_root(bytes([slot]) * 32, party.state.epoch.clients[slot].id.signer)


@pytest.mark.parametrize(("before", "follows"), [(bytes(32), True), (b"x" * 32, True), (b"r" * 32, False)])
def test_a_result_goes_on_from_the_delta_of_the_last_one_or_from_zero(before: bytes, follows: bool) -> None:
    party = members()
    party.play(3)
    own, last = Duties(), replace(RESULT, roots=b"x" * 32 + bytes(32))
    own.follow(party.state, lambda *_: replace(RESULT, roots=b"a" * 32 + before), lambda *_: last, now=0.0)
    assert {duty.follows for duty in own.open.values()} == {follows}


def test_a_trainer_whose_result_follows_from_nothing_counts_as_silent() -> None:
    party = members(before=replace(RESULT, roots=b"x" * 64))
    party.result = replace(RESULT, roots=b"r" * 64)
    party.play(6)
    assert "PASSED" not in {outcome for _, outcome, _ in closed(party)}
    silent = [(trainer, strikes) for trainer, outcome, strikes in closed(party) if outcome == "SILENCE"]
    assert silent
    assert all(strikes == (trainer,) for trainer, strikes in silent)


@pytest.mark.parametrize("witness_nodes", [0, 1])
def test_only_the_verifier_fetches_signs_and_all_fetch_opened_chunks_who_may_be_witnesses(witness_nodes: int) -> None:
    """Who fetched only once it is elected would state before it has them, against an honest trainer."""
    party = members(witness_nodes=witness_nodes)
    party.play(12)
    stages: dict[bytes, tuple[Stage, set[int]]] = {}
    for _, shown in party.did(act.ShowPart):
        stages[bytes([shown.slot, shown.challenge.stage, shown.place.since % 256]) + bytes(29)] = (shown.challenge.stage, set())
    for slot, fetched in party.did(act.FetchPart):
        stages[fetched.payload_hash][1].add(slot)
    of_signs = [who for stage, who in stages.values() if stage is Stage.COMMIT and who]
    of_chunks = [who for stage, who in stages.values() if stage is Stage.REVEAL and who]
    assert of_signs
    assert all(len(who) <= 2 for who in of_signs), "two challenges of one trainer at most"
    assert of_chunks
    assert all(len(who) == 7 for who in of_chunks), "all but the giver"


def test_a_cheat_meets_three_tie_breakers_who_get_the_signs_from_two_members() -> None:
    party = members(cheats=frozenset({3}), percent=20)
    for _ in range(40):
        party.play(1)
        if any(outcome == "GUILTY" for _, outcome, _ in closed(party)):
            break
    assert [(trainer, strikes) for trainer, outcome, strikes in closed(party) if outcome == "GUILTY"] == [(3, (3,))]
    shown = [(slot, action) for slot, action in party.did(act.ShowPart) if action.challenge.stage is Stage.TIE_COMMIT]
    assert {slot for slot, _ in shown} == {3, shown[0][1].challenge.drawn.verifier}
    judges = [slot for slot, work in party.did(act.Recompute) if work.challenge.stage is Stage.TIE_COMMIT]
    assert len(judges) == len(set(judges)) == 3


def test_tie_breakers_can_recompute_where_the_cheat_keeps_its_signs_from_them() -> None:
    party = members(cheats=frozenset({3}), percent=20)
    for _ in range(60):
        tying = [one for one in party.state.epoch.challenges if one.trainer == 3 and one.stage is Stage.TIE_COMMIT]
        party.silent = frozenset({3}) if tying else frozenset()
        party.play(1)
    assert any(work.challenge.stage is Stage.TIE_COMMIT for _, work in party.did(act.Recompute))
    assert all(strikes in ((), (3,)) for _, _, strikes in closed(party))
    assert not any(client.missed for slot, client in enumerate(party.state.epoch.clients) if slot != 3)


def test_a_verifier_that_gets_no_signs_complains_after_a_third_of_the_training_time() -> None:
    party = members(silent=frozenset({2}), percent=60)
    for _ in range(12):
        party.turn()
        party.now += party.state.config.max_round_train_time / 3 + 0.1
        party.turn()
        party.run.say = party.said
        party.run.play_round()
    complaints = [action.command for _, action in party.did(act.Send) if action.command.commitment is None]
    assert complaints
    assert {command.trainer for command in complaints} == {2}
    assert {(trainer, strikes) for trainer, outcome, strikes in closed(party) if strikes} == {(2, (2,))}


def test_who_recomputes_is_busy_until_it_has_committed_or_waited_long_enough() -> None:
    party = members(silent=frozenset(range(8)))
    party.play(3)
    party.turn()
    one = party.state.epoch.challenges[0]
    own = party.duties[one.verifier]
    assert own.busy(party.state, one.verifier, now=party.now)
    assert not own.busy(party.state, one.verifier, now=party.now + party.state.config.max_round_train_time / 3 + 0.1)
    assert not party.duties[one.trainer].busy(party.state, one.trainer, now=party.now) or any(
        other.verifier == one.trainer for other in party.state.epoch.challenges
    )
    own.announced(one.trainer, opening(act.StagePlace(one.height, one.trainer, one.since), b"s" * 32))
    own.fetched(b"s" * 32)
    own.actions(
        party.state, one.verifier, identity=party.state.epoch.clients[one.verifier].id,
        clients=tuple(client.id for client in party.state.epoch.clients), tag=TAG, now=party.now,
    )  # fmt: skip
    work = own.next_recompute(party.state, one.verifier, tag=TAG)
    assert work is not None
    assert own.next_recompute(party.state, one.verifier, tag=TAG) is None, "once"
    assert own.busy(party.state, one.verifier, now=party.now + 1e6), "it works"
    own.recomputed(work.place, None)
    assert not own.busy(party.state, one.verifier, now=party.now), "it has failed"


@pytest.mark.parametrize("had", [True, False])
def test_who_announces_junk_to_some_witnesses_first_gains_nothing(had: bool) -> None:
    """They would say different things for ever, so its challenges were never decided. had: whether the junk can be fetched."""
    everybody = frozenset(range(8))
    party = members(junk=everybody, cheats=everybody, withheld=frozenset() if had else frozenset({JUNK}))
    said: list[set[Word]] = []
    for _ in range(8):
        party.turn()
        for stored in party.state.epoch.challenges:
            challenge = challenge_of(party.state, stored)
            if challenge.stage is Stage.REVEAL and challenge.awaits_words(party.run.round.height):
                others = everybody - {challenge.drawn.trainer, challenge.drawn.verifier}
                said.append({party.said(witness, challenge, challenge.drawn.verifier) for witness in others})
        party.play(1)
    assert len(said) >= 3
    assert all(words == {Word.FAILED} for words in said), said


def test_a_part_that_nobody_sends_is_asked_for_again() -> None:
    party = members(silent=frozenset(range(8)))
    party.play(3)
    party.turn()
    one = party.state.epoch.challenges[0]
    own, clients = party.duties[one.verifier], tuple(client.id for client in party.state.epoch.clients)
    own.announced(one.trainer, opening(act.StagePlace(one.height, one.trainer, one.since), b"s" * 32))

    def fetches(now: float) -> int:
        due = own.actions(party.state, one.verifier, identity=clients[one.verifier], clients=clients, tag=TAG, now=now)
        return sum(isinstance(action, act.FetchPart) for action in due)

    assert [fetches(party.now), fetches(party.now)] == [1, 0]
    own.missing(b"s" * 32, now=party.now)
    assert [fetches(party.now), fetches(party.now + 1.0), fetches(party.now + 1.0)] == [0, 1, 0]


@pytest.mark.parametrize("stage", list(Stage))
def test_givers_are_members_of_the_challenge(stage: Stage) -> None:
    party = members(cheats=frozenset({3}), percent=20)
    seen = False
    for _ in range(30):
        party.play(1)
        for one in party.state.epoch.challenges:
            challenge = challenge_of(party.state, one)
            assert set(givers(challenge)) <= {one.trainer, one.verifier, *one.judges}
            seen = seen or challenge.stage is stage
            assert place_of(challenge) == act.StagePlace(one.height, one.trainer, one.since)
    assert seen or stage in (Stage.CLOSED, Stage.SIGNS, Stage.RECOMMIT)


def test_who_was_dropped_still_shows_what_it_has_trained_and_does_nothing_else() -> None:
    party = members()
    party.play(3)
    clients = tuple(client.id for client in party.state.epoch.clients)
    for slot, own in enumerate(party.duties):
        own.follow(party.state, lambda *_: RESULT, lambda *_: None, now=0.0)
        due = own.actions(party.state, slot, identity=clients[slot], clients=clients, tag=TAG, now=1e9, healthy=False)
        assert {type(action) for action in due} <= {act.ShowPart}
        assert len(due) == sum(one.trainer == slot for one in party.state.epoch.challenges)


OPENINGS = st.builds(
    Opening, st.just(0), st.integers(0, 6), st.just(0), st.integers(0, 6), st.integers(0, 9), st.binary(min_size=32, max_size=32),
    st.integers(0, 2**40 - 1),
)  # fmt: skip


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 7), OPENINGS), max_size=60))
def test_openings_of_liars_are_bounded_and_convict_nobody(invented: list[tuple[int, Opening]]) -> None:
    """Any opening of a slot about any stage: what counts is the slot's own part, and its first one."""
    party = members()
    party.play(3)
    for slot, message in invented:
        for own in party.duties:
            own.announced(slot, message)
    for own in party.duties:
        assert max((sum(key[1] == slot for key in own.parts) for slot in range(8)), default=0) <= MAX_OPENINGS
    party.play(4)
    assert all(strikes == () for _, _, strikes in closed(party) if strikes)
    party.turn()
    assert party.state.epoch.challenges
    for own in party.duties:
        assert len(own.open) == len(party.state.epoch.challenges)
