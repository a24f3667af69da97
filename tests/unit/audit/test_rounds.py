"""Each rule about a round's records, broken once."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from psyche_core.audit.auditing import rates_of
from psyche_core.audit.rounds import RoundChecker
from psyche_core.config.run_config import Choice, load_run_file
from psyche_core.coordinator.learning_rate import cold_start_factor, learning_rate
from psyche_core.training.checkpoints.journal_records import AppliedRound, StoredResult
from psyche_core.types import BatchId
from psyche_core.wire.messages import commitment_hash, result_hash, sign_commitment
from psyche_core.wire.signing import SecretKey

INSTANCE = bytes(range(32))
KEYS = [SecretKey(bytes(31) + bytes((slot + 1,))) for slot in range(3)]
RATE = 0.1


def result(
    step: int,
    slot: int,
    *,
    height: int | None = None,
    key: SecretKey | None = None,
    share: tuple[BatchId, ...] | None = None,
    roots: bytes = b"",
) -> StoredResult:
    key, signer = key or KEYS[slot], bytes((slot,)) * 32
    share = (BatchId(100 * step + 10 * slot, 100 * step + 10 * slot + 9),) if share is None else share
    payload_hash = hashlib.sha256(b"%d %d" % (step, slot)).digest()
    covered = result_hash(payload_hash, roots)
    commitment = commitment_hash(INSTANCE, epoch=1, step=step, seed=step, share=share, trainer=signer, payload_hash=covered)
    return StoredResult(
        epoch=1,
        height=step - 1 if height is None else height,
        step=step,
        seed=step,
        slot=slot,
        share=share,
        commitment=commitment,
        payload_hash=payload_hash,
        signature=sign_commitment(key, INSTANCE, commitment),
        trainer=key.public,
        signer=signer,
        roots=roots,
    )


def played(*results: StoredResult, rate: float = RATE) -> AppliedRound:
    first = results[0]
    pairs = tuple((each.commitment, each.payload_hash) for each in results)
    return AppliedRound(epoch=first.epoch, height=first.height, step=first.step, learning_rate=rate, results=pairs)


def checker() -> RoundChecker:
    return RoundChecker(INSTANCE, lambda _step, _start: (RATE,))


def found(round_: AppliedRound, *results: StoredResult) -> str:
    return checker().difference(round_, {each.commitment: each for each in results})


def test_a_round_that_follows_all_rules_has_no_difference() -> None:
    check = checker()
    for step in range(1, 4):
        results = [result(step, slot) for slot in range(3)]
        assert check.difference(played(*results), {each.commitment: each for each in results}) == ""
    nothing = AppliedRound(epoch=1, height=3, step=4, learning_rate=RATE, results=())
    assert check.difference(nothing, {}) == "", "no result was accepted"
    results = [result(5, 1, height=0)]
    assert check.difference(replace(played(*results)), {each.commitment: each for each in results}) == "", "another epoch"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda one: replace(one, signature=bytes(64)), "has a commitment whose signature is not valid"),
        (lambda one: replace(one, trainer=KEYS[1].public), "has a commitment whose signature is not valid"),
        (lambda one: replace(one, trainer=bytes(32)), "has a commitment whose signature is not valid"),
        (lambda one: replace(one, seed=one.seed + 1), "has a commitment that does not follow from its run"),
        (lambda one: replace(one, signer=bytes(32)), "has a commitment that does not follow from its run"),
        (lambda one: replace(one, share=(BatchId(0, 1),)), "has a commitment that does not follow from its run"),
        (lambda one: replace(one, payload_hash=bytes(32)), "was announced with another payload than the one that was applied"),
        (lambda one: replace(one, height=5), "is one of epoch 1, round 5, step 2"),
        (lambda one: replace(one, epoch=5), "is one of epoch 5, round 1, step 2"),
        (lambda one: replace(one, step=5), "is one of epoch 1, round 1, step 5"),
    ],
)
def test_a_result_that_breaks_a_rule_is_named(change: Callable[[StoredResult], StoredResult], sentence: str) -> None:
    good, bad = result(2, 0), result(2, 2)
    difference = found(played(good, bad), good, change(bad))
    assert difference.startswith(f"the result of slot 2, signed by {change(bad).trainer.hex()[:8]}, ")
    assert sentence in difference


def test_a_commitment_of_a_run_that_checks_shares_covers_the_roots_of_deltas() -> None:
    one = result(2, 0, roots=b"r" * 64)
    assert found(played(one), one) == ""
    for roots in (b"", b"s" * 64):
        assert "has a commitment that does not follow from its run" in found(played(one), replace(one, roots=roots))


def test_a_commitment_of_another_run_is_none_of_this_one() -> None:
    one = result(2, 0)
    difference = RoundChecker(bytes(32), lambda _step, _start: (RATE,)).difference(played(one), {one.commitment: one})
    assert "has a commitment that does not follow from its run" in difference


def test_a_result_that_is_not_there_is_named() -> None:
    one, other = result(2, 0), result(2, 1)
    assert found(played(one, other), one) == f"the accepted result {other.commitment.hex()[:16]}… is not in the journal"


def test_a_slot_has_one_result_and_a_sample_one_share() -> None:
    one, again = result(2, 0), result(2, 0, share=(BatchId(7, 8),))
    assert found(played(one, again), one, again) == "slot 0 has more than one accepted result"
    assert found(played(one, one), one) == "slot 0 has more than one accepted result"
    near = result(2, 1, share=(BatchId(5, 6), BatchId(209, 300)))
    assert found(played(one, near), one, near) == "the results of slots 0 and 1 are both about sample 209"


def test_a_slot_belongs_to_one_member_for_an_epoch() -> None:
    check = checker()
    first, second = result(2, 0), result(3, 0, key=KEYS[1])
    assert check.difference(played(first), {first.commitment: first}) == ""
    assert "another member had in an earlier round" in check.difference(played(second), {second.commitment: second})
    check = checker()
    next_epoch = result(3, 0, key=KEYS[1], height=0)
    assert check.difference(played(first), {first.commitment: first}) == ""
    assert check.difference(played(next_epoch), {next_epoch.commitment: next_epoch}) == ""


@pytest.mark.parametrize(("height", "is_right"), [(2, True), (0, True), (1, False), (3, False)])
def test_a_round_follows_the_one_before_or_begins_an_epoch(height: int, is_right: bool) -> None:
    check = checker()
    first, second = result(4, 0, height=1), result(5, 0, height=height)
    assert check.difference(played(first), {first.commitment: first}) == ""
    difference = check.difference(played(second), {second.commitment: second})
    assert (difference == "") is is_right
    assert is_right or difference == f"round {height} of epoch 1 follows round 1 of epoch 1"


def test_no_epoch_begins_before_the_run() -> None:
    one = result(2, 0, height=2)
    assert found(played(one), one) == "it is said to be round 2 of its epoch, before which there were 1 steps"


@pytest.mark.parametrize("rate", [0.2, math.inf, 0.0, RATE * (1 + 1e-9)])
def test_another_rate_than_the_schedule_s_is_told(rate: float) -> None:
    one = result(2, 0)
    difference = found(played(one, rate=rate), one)
    assert difference == (
        f"its results were applied with the learning rate {rate!r}, and the run's schedule gives 0.1; "
        "or the run file is not the one the run had"
    )


def test_the_last_bit_of_a_cosine_is_no_difference() -> None:
    one = result(2, 0)
    assert found(played(one, rate=math.nextafter(RATE, 1)), one) == ""


def test_an_epoch_that_started_cold_has_a_lower_rate_at_first() -> None:
    run = load_run_file(Path(__file__).parents[3] / "examples" / "local_testnet" / "state.toml")
    schedule = Choice.parse({"Constant": {"base_lr": 0.5, "warmup_init_lr": 0.0, "warmup_steps": 0}})
    llm = run.model.LLM.model_copy(update={"lr_schedule": schedule, "cold_start_warmup_steps": 10})
    rates = rates_of(llm)
    assert rates(21, 20) == (0.5, 0.5 * cold_start_factor(23, (20, 30)))
    assert rates(40, 20) == (learning_rate(schedule, 42),)
    assert rates_of(llm.model_copy(update={"cold_start_warmup_steps": 0}))(21, 20) == (0.5,)
