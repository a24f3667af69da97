"""Formulas against the vectors computed from the reference implementation (tests/vectors/run_vectors.out)."""

from __future__ import annotations

import ast
import hashlib
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psyche_core.coordinator.learning_rate import cold_start_factor, learning_rate
from psyche_core.coordinator.round.assignment import shares, split
from psyche_core.coordinator.round.batch_size import batch_size
from psyche_core.coordinator.round.bloom_filter import bloom_positions
from psyche_core.coordinator.round.committee import CommitteeSelection
from psyche_core.coordinator.round.merkle_root import merkle_root
from psyche_core.coordinator.round.shuffle import Lcg, deterministic_shuffle, shuffled_index, shuffled_positions
from psyche_core.coordinator.state import Round
from psyche_core.errors import CoordinatorError
from psyche_core.types import BatchId, Committee

VECTORS = Path(__file__).parents[2] / "vectors" / "run_vectors.out"
U64 = 2**64 - 1


def section(title: str) -> list[str]:
    """The lines under a heading of the vector file."""
    blocks = re.split(r"^## ", VECTORS.read_text(), flags=re.MULTILINE)
    (found,) = (block for block in blocks if block.startswith(title))
    return found.splitlines()[1:]


def literal(text: str) -> Any:
    return ast.literal_eval(text.strip())


SHUFFLE_SEEDS = [bytes(32), bytes([1]) * 32, hashlib.sha256(b"abc").digest(), bytes([2]) * 32]


@pytest.mark.parametrize(("line", "seed"), list(zip(section("swap_or_not"), SHUFFLE_SEEDS, strict=True)))
def test_swap_or_not(line: str, seed: bytes) -> None:
    prefix, count, expected = re.match(r"(\w+)\.\. n=(\d+) (\[.*\])", line).groups()  # type: ignore[union-attr]
    assert seed.hex().startswith(prefix)
    wanted = literal(expected)
    assert [shuffled_index(index, int(count), seed) for index in range(len(wanted))] == wanted


@settings(deadline=None)
@given(st.integers(0, 600), st.binary(min_size=32, max_size=32))
def test_bulk_shuffle_is_the_single_one_and_a_permutation(count: int, seed: bytes) -> None:
    positions = shuffled_positions(count, seed)
    assert sorted(positions) == list(range(count))
    for index in {0, count // 2, count - 1} & set(range(count)):
        assert positions[index] == shuffled_index(index, count, seed)


@pytest.mark.parametrize("index", [-1, 5, 6])
def test_swap_or_not_refuses_an_index_outside(index: int) -> None:
    with pytest.raises(ValueError, match="below the count of 5"):
        shuffled_index(index, 5, bytes(32))


def committee_blocks() -> list[tuple[tuple[int, ...], list[str]]]:
    lines = section("committee selection")[:15]
    return [(literal(lines[at].split(" seed=")[0]), lines[at : at + 3]) for at in range(0, 15, 3)]


@pytest.mark.parametrize(("numbers", "lines"), committee_blocks())
def test_committee_selection(numbers: tuple[int, ...], lines: list[str]) -> None:
    ties, witnesses, percent, total, seed = numbers
    drawn = CommitteeSelection(
        tie_breaker_nodes=ties, witness_nodes=witnesses, verification_percent=percent, total_nodes=total, seed=seed
    )
    assert drawn.verifier_nodes == int(lines[0].rsplit(" ", 1)[1])
    positions, flags = (literal(part) for part in lines[1].split("pos:")[1].split("is:"))
    proofs = [drawn.witness_proof(index) for index in range(len(positions))]
    assert [proof.position for proof in proofs] == positions
    assert [proof.witness for proof in proofs] == [bool(flag) for flag in flags]
    assert [proof.index for proof in proofs] == list(range(len(positions)))

    positions, letters = (part.rsplit("]", 1)[0] + "]" for part in re.split(r"(?<=\]) ", lines[2].split("pos:")[1].strip()))
    names = {"T": Committee.Trainer, "V": Committee.Verifier}
    drawn_committees = [drawn.committee_proof(index) for index in range(len(literal(positions)))]
    assert [proof.position for proof in drawn_committees] == literal(positions)
    for proof, letter in zip(drawn_committees, literal(letters), strict=True):
        wanted = Committee.TieBreaker if proof.position < ties else names[letter]
        assert proof.committee is wanted


def test_committee_totals() -> None:
    drawn = CommitteeSelection(tie_breaker_nodes=10, witness_nodes=20, verification_percent=30, total_nodes=100, seed=12345)
    assert {committee.name: len(drawn.members(committee)) for committee in Committee} == {
        "TieBreaker": 10,
        "Verifier": 27,
        "Trainer": 63,
    }
    assert len(drawn.witnesses()) == 20
    assert sorted(drawn.witnesses()) == [index for index in range(100) if drawn.witness_proof(index).witness]
    for committee in Committee:
        assert list(drawn.members(committee)) == [n for n in range(100) if drawn.committee_proof(n).committee is committee]


def test_everybody_witnesses_up_to_32() -> None:
    numbers = {"tie_breaker_nodes": 0, "witness_nodes": 0, "verification_percent": 0, "seed": 7}
    assert len(CommitteeSelection(**numbers, total_nodes=31).witnesses()) == 31
    assert len(CommitteeSelection(**numbers, total_nodes=200).witnesses()) == 32


@pytest.mark.parametrize(
    "change",
    [{"tie_breaker_nodes": 11}, {"witness_nodes": 11}, {"verification_percent": 101}, {"total_nodes": U64}],
)
def test_impossible_committees_are_refused(change: dict[str, int]) -> None:
    numbers = {"tie_breaker_nodes": 0, "witness_nodes": 0, "verification_percent": 0, "total_nodes": 10, "seed": 1} | change
    with pytest.raises(CoordinatorError) as caught:
        CommitteeSelection(**numbers)
    assert caught.value.name == "InvalidCommitteeSelection"


@pytest.mark.parametrize("line", section("LCG"))
def test_lcg(line: str) -> None:
    seed, outputs = line.split(" ", 1)
    generator = Lcg(int(seed))
    assert [generator.next_u64() for _ in range(3)] == literal(outputs)


@pytest.mark.parametrize("line", section("shuffle\n"))
def test_fisher_yates(line: str) -> None:
    seed, five, eight = re.match(r"(\d+) (\[.*?\]) (\[.*?\])", line).groups()  # type: ignore[union-attr]
    given_items = [1, 2, 3, 4, 5]
    assert deterministic_shuffle(given_items, int(seed)) == literal(five)
    assert given_items == [1, 2, 3, 4, 5]
    assert deterministic_shuffle(range(8), int(seed)) == literal(eight)


def test_batch_size_ramp() -> None:
    lines = section("batch size schedule")
    for line in lines[:8]:
        tokens, size = map(int, line.split())
        assert batch_size(tokens, start=8, end=32, warmup_tokens=1_000_000) == size
    for tokens, size in literal(lines[8].split(": ", 1)[1]):
        assert batch_size(tokens, start=12288, end=32768, warmup_tokens=549755813888) == size
    assert batch_size(0, start=4, end=9, warmup_tokens=0) == 9

    wanted = dict(literal(lines[9].split(": ", 1)[1]))
    index, reached = 0, {}
    for step in range(1, 101):
        reached[step] = index
        index += batch_size(index * 2048, start=8, end=32, warmup_tokens=1_000_000)
    assert {step: reached[step] for step in wanted if step <= 100} == {s: i for s, i in wanted.items() if s <= 100}


def test_split() -> None:
    lines = section("data split")
    for line in lines[:4]:
        numbers, intervals = re.match(r"(\(.*?\)) (\[.*)", line).groups()  # type: ignore[union-attr]
        assert split(*literal(numbers)) == literal(intervals)
    assert sorted(last - first + 1 for first, last in split(0, 384, 23)) == literal(lines[4].split(": ")[1])


def test_full_assignment(play: Any) -> None:
    state = play(5).state
    round_ = Round(height=0, step=1, seed=42, slots=(0, 1, 2, 3, 4), batches=(BatchId(100, 112),))
    wanted = {}
    for line in section("full assignment"):
        interval, slot = line.strip().split(" -> client ")
        wanted[int(slot)] = (BatchId.parse(interval),)
    assert shares(state, round_) == wanted


@settings(deadline=None)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=6),
    st.integers(1, 9),
    st.integers(0, U64),
)
def test_shares_of_several_intervals_are_the_cut_concatenation(
    bare_state: Any, sizes: list[int], clients: int, seed: int
) -> None:
    """The shares' samples are the round's samples, each once, in lengths that differ by one at most."""
    batches, first = [], 3
    for size in sizes:
        batches.append(BatchId(first, first + size - 1))
        first += size + 2
    state = bare_state
    round_ = Round(height=0, step=1, seed=seed, slots=tuple(range(clients)), batches=tuple(batches))
    found = shares(state, round_)
    assert len(found) == min(clients, sum(sizes))
    lengths = [sum(len(batch) for batch in share) for share in found.values()]
    assert max(lengths) - min(lengths) <= 1
    dealt = [sample for share in found.values() for batch in share for sample in range(batch.first, batch.last + 1)]
    assert sorted(dealt) == [sample for batch in batches for sample in range(batch.first, batch.last + 1)]
    assert dealt == sorted(dealt)  # in the order of the shuffled trainers: contiguous stretches
    whole = replace(round_, batches=(BatchId(0, sum(sizes) - 1),))
    assert list(shares(state, whole)) == list(found)


def test_fnv_with_the_key_as_initial_state() -> None:
    for line in section("FNV-1a"):
        key, values = line.split(" ", 1)
        found = [bloom_positions([int(key, 16)], item, 2**64)[0] for item in (b"", b"a", b"psyche")]
        assert [hex(value) for value in found] == literal(values)


def test_bloom_positions() -> None:
    items = [bytes.fromhex("010203"), hashlib.sha256(bytes(32)).digest(), hashlib.sha256(bytes([1]) * 32).digest()]
    lines = section("bloom 1024 bits")
    words = [0] * 16
    for item, line in zip(items, lines[:3], strict=True):
        prefix, positions = line.split(" ", 1)
        assert item.hex().startswith(prefix)
        found = bloom_positions(range(1, 9), item, 1024)
        assert found == literal(positions)
        if item != items[0]:
            for position in found:
                words[position // 64] |= 1 << (position % 64)
    assert [hex(word) for word in words] == literal(lines[3].split(" ", 1)[1])
    assert bloom_positions([0] * 8, items[1], 1024) == literal(lines[5].split(": ")[1])


def test_merkle_roots() -> None:
    words = b"my very eager mother just served us nine pizzas make prime".split()
    for line in section("merkle")[:5]:
        count, root = line.split()
        assert merkle_root(words[: int(count)]).hex() == root
    assert merkle_root([]) == bytes(32)


SCHEDULES: list[tuple[dict[str, Any], dict[int, float]]] = [
    (
        {"Constant": {"base_lr": 0.01, "warmup_init_lr": 0.001, "warmup_steps": 10}},
        {0: 0.001, 1: 0.0019000000000000002, 5: 0.0055000000000000005, 9: 0.0091, 10: 0.01, 1000: 0.01},
    ),
    (
        {"Linear": {"base_lr": 0.01, "warmup_init_lr": 0.001, "warmup_steps": 10, "total_steps": 100, "final_lr": 0.0001}},
        {0: 0.001, 9: 0.0091, 10: 0.01, 55: 0.00505, 99: 0.00020999999999999838, 100: 0.0001, 200: 0.0001},
    ),
    (
        {"Cosine": {"base_lr": 4e-4, "warmup_init_lr": 0, "warmup_steps": 500, "total_steps": 25000, "final_lr": 4e-5}},
        {
            0: 0,
            1: 8.000000000000001e-07,
            499: 0.0003992,
            501: 0.00039999999852017594,
            12750: 0.00022,
            24999: 4.0000001479824065e-05,
        },
    ),
    (
        {
            "WarmupStableDecay": {
                "base_lr": 2e-4,
                "warmup_init_lr": 0.0,
                "warmup_steps": 2000,
                "stable_steps": 161000,
                "cosine_decay_steps": 150000,
                "cosine_decay_final_lr": 2e-5,
                "linear_decay_steps": 12000,
                "linear_decay_final_lr": 2e-5,
            }
        },
        {
            0: 0,
            1: 1.0000000000000001e-07,
            1999: 0.0001999,
            2000: 2e-4,
            163000: 2e-4,
            238000: 0.00011,
            312999: 2.0000000019739213e-05,
        },
    ),
    (
        {
            "WarmupStableDecay": {
                "base_lr": 0.01,
                "warmup_init_lr": 0.001,
                "warmup_steps": 10,
                "stable_steps": 60,
                "cosine_decay_steps": 110,
                "cosine_decay_final_lr": 0.001,
                "linear_decay_steps": 20,
                "linear_decay_final_lr": 0.0,
            }
        },
        {69: 0.01, 70: 0.010000000000000002, 125: 0.0055000000000000005, 179: 0.0010018351322731486, 190: 0.0005, 200: 0, 250: 0},
    ),
]


@pytest.mark.parametrize(("schedule", "wanted"), SCHEDULES)
def test_learning_rate(schedule: dict[str, Any], wanted: dict[int, float]) -> None:
    assert {step: learning_rate(schedule, step) for step in wanted} == wanted


def test_learning_rate_takes_the_choice_of_the_configuration(play: Any) -> None:
    choice = play().state.model.LLM.lr_schedule
    assert [learning_rate(choice, step) for step in (0, 1, 2, 99)] == [0.0, 0.0005, 0.001, 0.001]
    with pytest.raises(ValueError, match="Polynomial"):
        learning_rate({"Polynomial": {"base_lr": 1.0, "warmup_init_lr": 0.0, "warmup_steps": 0}}, 1)


def test_cold_start_factor() -> None:
    wanted = {999: 1.0, 1000: 0.0, 1001: 0.01, 1050: 0.5, 1099: 0.99, 1100: 1.0, 1101: 1.0}
    assert {step: cold_start_factor(step, (1000, 1100)) for step in wanted} == wanted
    assert cold_start_factor(5, None) == 1.0
