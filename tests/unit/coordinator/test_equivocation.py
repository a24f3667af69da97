"""F7: two signed results for one share eject their signer; nothing else does."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psyche_core.coordinator import apply
from psyche_core.coordinator.commands import (
    ClientsExited,
    Equivocation,
    RoundSettled,
    SetFutureEpochRates,
    ShareVoided,
    SignedResult,
)
from psyche_core.coordinator.round.bloom_filter import BroadcastBloom
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.errors import CommandRefused, CoordinatorError
from psyche_core.interfaces.backend import check_client_command
from psyche_core.types import BatchId, ClientState, NodeIdentity
from psyche_core.wire.messages import commitment_hash, sign_commitment
from psyche_core.wire.signing import SecretKey


def test_who_signed_two_results_is_ejected_and_leaves_the_pending_list(play: Any, members: Any) -> None:
    run = play(4)
    run.play_round()
    assert run.do(run.evidence(2, 1, by=0)) == [ClientsExited(epoch=0, slots=(2,))]
    assert run.state.epoch.clients[2].state is ClientState.Ejected
    assert run.state.epoch.clients[2].exited_height == 1
    assert list(run.state.pending) == [members(0), members(1), members(3)]
    assert run.state.healthy_slots == (0, 1, 3)
    run.refused(run.evidence(2, 1, by=0), "InvalidEvidence")  # once is enough


@pytest.mark.parametrize("height", [0, 1, 2, 3])
def test_every_stored_round_can_convict(play: Any, height: int) -> None:
    run = play(4)
    for _ in range(3):
        run.play_round()
    run.do(run.evidence(1, height, by=3))
    assert run.state.epoch.clients[1].state is ClientState.Ejected


def test_a_round_no_longer_stored_convicts_nobody(play: Any) -> None:
    run = play(4)
    evidence = run.evidence(1, 0, by=3)
    for _ in range(4):
        run.play_round()
    run.refused(evidence, "InvalidEvidence")
    run.refused(replace(evidence, height=9), "InvalidEvidence")


def test_evidence_is_heard_in_the_cooldown_and_slashes(play: Any) -> None:
    run = play(3, rounds_per_epoch=2)
    run.play_epoch()
    run.do(run.evidence(0, 1, by=2))
    assert run.state.epoch.clients[0].state is ClientState.Ejected
    late = run.evidence(1, 1, by=2)
    run.cool_down()
    run.refused(late, "InvalidRunState")


@pytest.mark.parametrize("how", [ClientState.Dropped, ClientState.Withdrawn])
def test_leaving_does_not_save_an_equivocator(play: Any, how: ClientState) -> None:
    run = play(4)
    evidence = run.evidence(1, 0, by=3)
    run.play_round()
    if how is ClientState.Withdrawn:
        run.withdraw(1)
    else:
        clients = [replace(client, state=how, exited_height=1) if slot == 1 else client
                   for slot, client in enumerate(run.state.epoch.clients)]  # fmt: skip
        run.state = replace(run.state, epoch=replace(run.state.epoch, clients=tuple(clients)))
    run.join(1)
    run.play_round()
    run.do(evidence)
    ejected = run.state.epoch.clients[1]
    assert (ejected.state, ejected.exited_height) == (ClientState.Ejected, 1)
    assert all(member.signer != ejected.id.signer for member in run.state.pending)


def test_the_ejected_cannot_come_back_in_this_epoch_but_may_wait_for_the_next(play: Any, members: Any, joins: Any) -> None:
    """Keeping a key out for good is the business of the owner's list: a new key costs nothing."""
    run = play(4, rounds_per_epoch=2)
    run.play_round()
    run.do(run.evidence(2, 0, by=0))
    run.do(joins(members(2)))
    run.refused(run.ready(2), "InvalidWitness")
    run.play_epoch()
    run.cool_down()
    run.warm_up()
    assert members(2) in [client.id for client in run.state.epoch.clients]


def test_all_shares_not_yet_settled_are_void_and_trained_again(play: Any) -> None:
    """Also the one of the round before the proven one: who signed twice once may have done so there."""
    run = play(4, rounds_per_epoch=2)
    run.play_round()
    run.do(run.evidence(2, 1, by=0))
    void = {*run.shares(0)[2], *run.shares(1)[2]}
    run.play_round()
    run.play_round(seen=[0, 1, 2, 3])
    assert run.phase == "Cooldown"
    assert void <= set(run.state.requeue)
    assert run.state.epoch.clients[2].accepted_rounds == 0


def wrong_evidence(run: Any) -> dict[str, Equivocation]:
    """Proofs that prove nothing, by what is wrong with them. Slot 2 is accused of round 1, by slot 0."""
    good = run.evidence(2, 1, by=0)

    def signed(**changes: Any) -> Any:
        return replace(good, second=run.signed(2, 1, "another", **changes))

    share = run.shares(1)[2]
    stranger = NodeIdentity(bytes(32), bytes(32))
    return {
        "from a stranger": replace(good, sender=stranger),
        "about another epoch": replace(good, epoch=1),
        "about a round to come": replace(good, height=2),
        "about the other round": replace(good, height=0),
        "about another slot": replace(good, index=1),
        "about a slot that does not exist": replace(good, index=99),
        "the same result twice": replace(good, second=good.first),
        "the same result signed twice": replace(good, second=replace(good.second, payload_hash=good.first.payload_hash)),
        "a hash too short": replace(good, first=replace(good.first, payload_hash=b"x" * 31)),
        "a signature too short": replace(good, first=replace(good.first, signature=b"x" * 63)),
        "a signature too long": replace(good, second=replace(good.second, signature=b"x" * 65)),
        "empty": replace(good, first=SignedResult(b"", b"")),
        "a forged signature": replace(good, second=replace(good.second, signature=bytes(64))),
        "another hash than was signed": replace(good, first=replace(good.first, payload_hash=b"x" * 32)),
        "signed by its accuser": signed(key=0),
        "signed for another run": signed(run=bytes(32)),
        "signed for another epoch": signed(epoch=1),
        "signed for another step": signed(step=1),
        "signed for another share": signed(share=(BatchId(share[0].first, share[-1].last + 1),)),
        "signed in another's name": signed(trainer=bytes(32)),
        "both signed for another epoch": replace(
            good, epoch=1, first=run.signed(2, 1, "one", epoch=1), second=run.signed(2, 1, "another", epoch=1)
        ),
        "a signed hash too short": replace(good, first=replace(run.signed(2, 1, "one", payload_hash=b"x"), payload_hash=b"x")),
    }


def test_only_a_proof_convicts(play: Any) -> None:
    run = play(4)
    run.play_round()
    for what, evidence in wrong_evidence(run).items():
        with pytest.raises(CoordinatorError) as caught:
            apply(run.state, evidence, run.now, 1)
        assert caught.value.name == "InvalidEvidence", what
        assert caught.value.message
    run.do(run.evidence(2, 1, by=0))


def test_a_member_that_left_brings_no_evidence(play: Any) -> None:
    run = play(4)
    evidence = run.evidence(2, 0, by=0)
    run.withdraw(0)
    run.refused(evidence, "InvalidEvidence")


def test_a_slot_without_samples_has_nothing_to_sign(play: Any) -> None:
    run = play(4, global_batch_size_start=2, global_batch_size_end=2)
    idle = next(slot for slot in range(4) if slot not in run.shares(0))
    by = next(slot for slot in range(4) if slot != idle)
    run.refused(run.evidence(idle, 0, by=by), "InvalidEvidence")


def test_it_is_a_command_of_clients_in_their_own_name(play: Any, members: Any) -> None:
    run = play(3)
    evidence = run.evidence(1, 0, by=0)
    assert check_client_command(evidence, members(0)) is evidence
    with pytest.raises(ValueError, match="sender"):
        check_client_command(evidence, members(1))
    with pytest.raises(CommandRefused, match="NotForClients"):
        check_client_command(SetFutureEpochRates(1, 1), members(0))


@settings(deadline=None, max_examples=60)
@given(st.binary(max_size=40), st.binary(max_size=70), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_bytes_from_outside_are_refused_and_never_raise_otherwise(
    playing: CoordinatorState, payload_hash: bytes, signature: bytes, height: int, index: int
) -> None:
    sender = playing.epoch.clients[0].id
    for number, slot in ((0, 0), (height, index), (0, index), (height, 0)):
        result = SignedResult(payload_hash, signature)
        evidence = Equivocation(sender, 0, number, slot, result, replace(result, payload_hash=payload_hash[::-1]))
        with pytest.raises(CoordinatorError) as caught:
            apply(playing, evidence, playing.since, 1)
        assert caught.value.name == "InvalidEvidence"


@pytest.fixture(scope="module")
def playing(started: Any) -> Any:
    return started(3).state


def test_the_commitment_is_the_one_of_the_wire(play: Any, secrets: Any) -> None:
    """A proof made of two results as they travel between clients, with nothing of this test's helpers."""
    run = play(2)
    key: SecretKey = secrets(1)
    slot = next(slot for slot, client in enumerate(run.state.epoch.clients) if client.id.signer == key.public)
    halves = []
    for payload in (b"a" * 32, b"b" * 32):
        commitment = commitment_hash(
            run.state.instance,
            epoch=0,
            step=1,
            seed=run.round.seed,
            share=run.shares(0)[slot],
            trainer=key.public,
            payload_hash=payload,
        )
        halves.append(SignedResult(payload, sign_commitment(key, run.state.instance, commitment)))
    run.do(Equivocation(run.state.epoch.clients[1 - slot].id, 0, 0, slot, *halves))
    assert run.state.epoch.clients[slot].state is ClientState.Ejected


def divided(run: Any, slot: int, *, of: dict[int, str]) -> None:
    """Play the current round with witnesses that verified different payloads of `slot` in the round before."""
    height = run.round.height
    healthy = sorted(set(run.elected) & set(run.state.healthy_slots))
    for witness in healthy:
        bloom = BroadcastBloom(run.round.seed)
        for payload in (of[witness],) if witness in of else ():
            bloom.add(the_commitment(run, slot, height - 1, payload))
        if run.round.height == height:
            run.do(run.statement(witness, broadcast_bloom=bloom.to_bytes()), after=1)


def the_commitment(run: Any, slot: int, height: int, payload: str) -> bytes:
    judged = run.state.round_at(height)
    return commitment_hash(
        run.state.instance,
        epoch=run.state.progress.epoch,
        step=judged.step,
        seed=judged.seed,
        share=run.shares(height)[slot],
        trainer=run.state.epoch.clients[slot].id.signer,
        payload_hash=hashlib.sha256(payload.encode()).digest(),
    )


def size(run: Any, slot: int, height: int) -> int:
    return sum(len(batch) for batch in run.shares(height)[slot])


def test_a_share_is_void_when_the_proof_comes_before_the_round_is_decided(play: Any) -> None:
    run = play(4)
    run.play_round()
    run.do(run.evidence(2, 0, by=0))
    run.play_round()
    settled = run.seen_events(RoundSettled)[-1]
    assert (settled.height, 2 in settled.accepted, 2 in settled.refused) == (0, False, True)
    assert run.state.round_at(0).voided == (2,)
    run.refused(run.evidence(2, 0, by=0), "InvalidEvidence")


def test_two_results_that_divide_the_witnesses_are_void_even_when_the_proof_comes_late(play: Any) -> None:
    """Accepted by its bits, and no commitment agreed on: every client leaves it out, and the samples are trained again."""
    run = play(4, rounds_per_epoch=0)
    run.play_round()
    divided(run, 2, of={0: "one", 1: "one", 2: "another", 3: "another"})
    assert 2 in run.seen_events(RoundSettled)[-1].accepted
    before = run.state.epoch.clients[2].accepted_rounds
    again = size(run, 2, 0)
    events = run.do(run.evidence(2, 0, by=0))
    assert events[-1] == ShareVoided(epoch=0, height=0, slot=2, requeued=True)
    assert sum(map(len, run.state.requeue)) == again
    assert run.state.epoch.clients[2].accepted_rounds == before - 1
    assert run.state.lost_samples == 0


def test_a_result_agreed_on_stays_when_its_trainer_is_convicted_late(play: Any) -> None:
    run = play(4)
    run.play_round()
    divided(run, 2, of={0: "one", 1: "one", 2: "another", 3: "one"})
    queue = run.state.requeue
    assert run.do(run.evidence(2, 0, by=0)) == [ClientsExited(epoch=0, slots=(2,))]
    assert run.state.requeue == queue
    assert run.state.lost_samples == 0


def test_a_late_proof_that_cannot_show_what_was_agreed_on_counts_the_samples_as_lost(play: Any) -> None:
    run = play(4)
    run.play_round()
    divided(run, 2, of={0: "one", 1: "another", 2: "a third", 3: "a third"})
    lost = size(run, 2, 0)
    events = run.do(run.evidence(2, 0, by=0))
    assert events[-1] == ShareVoided(epoch=0, height=0, slot=2, requeued=False)
    assert run.state.lost_samples == lost
    run.refused(run.evidence(2, 0, by=0), "InvalidEvidence")


def signed_twice(run: Any, slot: int, height: int, *, first: str, second: str, by: int) -> Equivocation:
    proof: Equivocation = run.evidence(slot, height, by=by)
    return replace(proof, first=run.signed(slot, height, first), second=run.signed(slot, height, second))


def test_a_third_result_moves_lost_samples_to_the_queue_once(play: Any) -> None:
    """The first proof cannot show that nobody applied the share, the second one can: its samples are in one place then."""
    run = play(9, rounds_per_epoch=0, global_batch_size_start=18, global_batch_size_end=18)
    run.play_round()
    seen = ["one", "another", "another", "another", *["a third"] * 5]
    divided(run, 2, of=dict(enumerate(seen)))
    assert 2 in run.seen_events(RoundSettled)[-1].accepted
    credited, share = run.state.epoch.clients[2].accepted_rounds, size(run, 2, 0)

    run.do(run.evidence(2, 0, by=0))
    assert (run.state.lost_samples, sum(map(len, run.state.requeue))) == (share, 0)
    events = run.do(signed_twice(run, 2, 0, first="another", second="a third", by=1))
    assert events == [ShareVoided(epoch=0, height=0, slot=2, requeued=True)]
    assert (run.state.lost_samples, sum(map(len, run.state.requeue))) == (0, share)
    assert run.state.epoch.clients[2].accepted_rounds == credited - 1
    run.refused(signed_twice(run, 2, 0, first="one", second="a third", by=3), "InvalidEvidence")


def test_a_third_result_that_shows_nothing_new_leaves_the_samples_lost(play: Any) -> None:
    run = play(9, rounds_per_epoch=0, global_batch_size_start=18, global_batch_size_end=18)
    run.play_round()
    divided(run, 2, of=dict(enumerate(["one"] * 3 + ["another"] * 3 + ["a third"] * 3)))
    share = size(run, 2, 0)
    run.do(run.evidence(2, 0, by=0))
    run.refused(signed_twice(run, 2, 0, first="another", second="a third", by=1), "InvalidEvidence")
    assert (run.state.lost_samples, run.state.requeue) == (share, ())


def test_each_round_of_an_ejected_client_is_judged_by_its_own_proofs(play: Any) -> None:
    """The proof that ejects is about one round; in another one too nobody knows whether a third result was applied."""
    run = play(4, rounds_per_epoch=0)
    run.play_round()
    both = {0: "one", 1: "another", 2: "a third", 3: "a third"}
    divided(run, 2, of=both)
    divided(run, 2, of=both)
    shares = [size(run, 2, 0), size(run, 2, 1)]
    run.do(run.evidence(2, 0, by=0))
    assert run.state.lost_samples == shares[0]
    assert run.do(run.evidence(2, 1, by=0)) == [ShareVoided(epoch=0, height=1, slot=2, requeued=False)]
    assert run.state.lost_samples == sum(shares)
