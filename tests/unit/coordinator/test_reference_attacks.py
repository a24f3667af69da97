"""Attacks the reference implementation allowed (S1 to S9 of the study of it), tried here.

Those that concern other programs than a coordinator:

    S5   an authorization revoked during an epoch: the Solana backend's (here who left the owner's list cannot join again; who
         may join at all is the backend's rule, see plugins/backend_tcp/tests/test_allow_list.py)
    S6   accounts created by a stranger before their owner does: the Solana programs'
    S8   who may send at all, over TCP: below for the rules, plugins/backend_tcp/tests for the server
    S9   closing an authorization that was never used: the Solana programs'
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from psyche_core.config.run_config import Choice
from psyche_core.coordinator.checkpoints import checkpointer_slot
from psyche_core.coordinator.commands import (
    Checkpoint,
    HealthCheck,
    Pause,
    Resume,
    SetFutureEpochRates,
    StatementVoided,
    Tick,
    UpdateConfig,
    WarmupWitness,
)
from psyche_core.coordinator.round.bloom_filter import BroadcastBloom
from psyche_core.coordinator.round.committee import witness_slots
from psyche_core.coordinator.round.witness import accepted_slots, choose_commitment
from psyche_core.errors import CommandRefused
from psyche_core.interfaces.backend import check_client_command


def test_s1_nobody_forces_an_early_start_with_other_indices(play: Any, members: Any) -> None:
    run = play()
    run.join(0, 1, 2)
    run.tick(after=3)
    run.join(9)
    run.do(run.ready(0))
    for index in (1, 2, 3, 999):
        for sender in (members(0), members(9), members(77)):
            wrong = WarmupWitness(sender=sender, epoch=0, index=index, model_digest=b"\1" * 32)
            run.refused(wrong, "InvalidWitness")
    assert run.phase == "Warmup"
    run.do(run.ready(1))
    run.do(run.ready(2))
    assert run.phase == "RoundTrain"


def test_s2_a_mere_member_cannot_redirect_the_checkpoint(play: Any) -> None:
    run = play(5, rounds_per_epoch=1)
    run.play_round()
    run.play_round()
    run.sign_end(b"\1" * 32)
    elected = checkpointer_slot(run.state)
    location = Choice("Hub", {"repo_id": "elsewhere"})
    for slot, client in enumerate(run.state.epoch.clients):
        if slot != elected:
            run.refused(Checkpoint(sender=client.id, location=location), "InvalidCheckpoint")
    run.do(Checkpoint(sender=run.state.epoch.clients[elected].id, location=location))


def test_s3_a_full_statement_makes_nobody_healthy_and_supports_no_commitment(play: Any) -> None:
    """All bits set is refused where it names who had no share, and one liar of four decides nothing with those who had."""
    run = play(4)
    run.play_round()
    assert run.do(run.statement(0, participants=b"\xff" * 32)) == [StatementVoided(epoch=0, height=1, slot=0)]
    assert run.round.statements == ()
    run.do(run.statement(0, seen=[0, 1, 2, 3], broadcast_bloom=b"\xff" * 320))
    for slot in (1, 2, 3):
        run.do(run.statement(slot, seen=[0, 1, 2]))
    first = run.state.epoch.rounds[0]
    assert accepted_slots(run.state, first) == {0, 1, 2}
    for forged in (b"x" * 32, b"y" * 32):
        assert choose_commitment(run.state, first, 0, [forged]) is None


def test_s3_an_empty_statement_votes_nobody_out(play: Any, commitments: Any) -> None:
    run = play(4)
    run.play_round()
    run.do(run.statement(0, seen=[], broadcast_bloom=bytes(320)))
    for slot in (1, 2, 3):
        run.do(run.statement(slot))
    first = run.state.epoch.rounds[0]
    assert accepted_slots(run.state, first) == {0, 1, 2, 3}
    assert choose_commitment(run.state, first, 2, [commitments(2, 0)]) == commitments(2, 0)
    run.play_round()
    run.refused(HealthCheck(sender=run.state.epoch.clients[0].id, slots=(3,)), "InvalidHealthCheck")


def test_s3_a_witness_does_not_choose_the_filters_keys(play: Any) -> None:
    """Equal items, another round: other bits. With keys of its own a witness needed one bit for everything."""
    filters = set()
    for seed in (1, 2, 3):
        bloom = BroadcastBloom(seed)
        bloom.add(b"c" * 32)
        filters.add(bloom.to_bytes())
        assert sum(byte.bit_count() for byte in bloom.to_bytes()) > 4
    assert len(filters) == 3


def test_s4_no_client_chooses_when_to_tick_or_with_which_seed(play: Any, members: Any) -> None:
    """Ticks and their seeds are the backend's: a client that sends one is refused before the coordinator sees it."""
    for command in (Tick(), Pause(), Resume(), UpdateConfig(), SetFutureEpochRates(1, 1)):
        with pytest.raises(CommandRefused, match="NotForClients"):
            check_client_command(command, members(0))


def test_s4_when_a_statement_arrives_changes_no_election_of_the_present_round(play: Any) -> None:
    run = play(6, witness_nodes=3, min_clients=3, init_min_clients=6)
    run.play_round()
    elected, shares = run.elected, run.shares(1)
    for slot in elected[:2]:
        run.do(run.statement(slot), after=5)
        assert witness_slots(run.state, run.state.round_at(1)) == elected
        assert run.shares(1) == shares


def test_s7_health_reports_come_from_witnesses_of_the_previous_round_only(play: Any, members: Any) -> None:
    run = play(6, witness_nodes=2, min_clients=2, init_min_clients=6)
    run.play_round()
    run.play_round(seen=[0, 1, 2, 3, 4])
    witnesses = {statement.index for statement in run.state.epoch.rounds[-2].statements}
    assert len(witnesses) == 2
    for slot in set(range(6)) - witnesses:
        run.refused(HealthCheck(sender=members(slot), slots=(5,)), "InvalidHealthCheck")
    run.join(30)
    run.refused(HealthCheck(sender=members(30), slots=(5,)), "InvalidHealthCheck")
    run.do(HealthCheck(sender=members(min(witnesses)), slots=(5,)))
    assert run.state.healthy_slots == (0, 1, 2, 3, 4)


def test_s8_who_never_joined_or_is_not_in_the_epoch_moves_nothing(play: Any, members: Any) -> None:
    run = play(6, witness_nodes=2, min_clients=2, init_min_clients=6)
    run.play_round()
    run.play_round(seen=[0, 1, 2, 3, 4])
    run.join(30)  # pending for the next epoch only
    slot = run.elected[0]
    for number in (30, 40):
        sender = members(number)
        run.refused(HealthCheck(sender=sender, slots=(5,)), "InvalidHealthCheck")
        run.refused(replace(run.statement(slot), sender=sender), "InvalidWitness")
        run.refused(replace(run.ready(slot), sender=sender), "InvalidWitness")
        run.refused(replace(run.evidence(1, 2, by=0), sender=sender), "InvalidEvidence")
        run.refused(Checkpoint(sender=sender, location=Choice("Hub", {"repo_id": "x"})), "InvalidRunState")
