"""Every decoder against bytes that hypothesis draws and bytes that the fuzzer's own mutator makes; `make fuzz` runs a million."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz import harness
from tests.fuzz.harness import MEASURED, Finding, MemoryExceeded, Target

REPOSITORY = Path(__file__).parents[2]
RUNS = 1000

load = cache(harness.load)
every_target = pytest.mark.parametrize("name", harness.names())


@every_target
def test_a_valid_encoding_is_accepted_so_that_the_target_reaches_its_decoder(name: str) -> None:
    target = load(name)
    assert any(target(seed) for seed in target.seeds)
    assert all(len(seed) <= target.max_bytes for seed in target.seeds)


@every_target
def test_a_thousand_changed_encodings_raise_what_is_documented_and_nothing_else(name: str) -> None:
    done, finding = harness.search(load(name), runs=RUNS, random=Random(f"{name} 1"))
    assert finding is None, f"input {done} of {name}: {finding.what} for {finding.data.hex()}"


@st.composite
def hostile_bytes(draw: st.DrawFn, target: Target) -> bytes:
    """Any bytes, or a valid encoding with some stretches replaced."""
    if draw(st.integers(0, 3)) == 0:
        return draw(st.binary(max_size=min(target.max_bytes, 300)))

    data = bytearray(draw(st.sampled_from(target.seeds)))
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(data)))
        data[start : start + draw(st.integers(0, 8))] = draw(st.binary(max_size=8))
    return bytes(data[: target.max_bytes])


@every_target
def test_any_bytes_raise_what_is_documented_and_take_bounded_memory(name: str) -> None:
    target = load(name)
    target(target.seeds[0])  # what is allocated once, at the first use, belongs to no input

    @settings(max_examples=60, deadline=None)
    @given(hostile_bytes(target))
    def check(data: bytes) -> None:
        target(data)  # the same for tables of one shape, which stay in bounded caches
        target.measured(data)

    check()


# ------------------------------------------------------------------------------------------------------------ the fuzzer


def make_target(run: object) -> Target:
    return Target("made", run, (ValueError,), (b"seed", b"other"), 64, (10, 4096), None)  # type: ignore[arg-type]  # a function


def test_an_error_that_is_not_documented_is_found() -> None:
    def fragile(data: bytes) -> None:
        if len(data) > 6:
            raise KeyError("too long")
        raise ValueError("documented")

    done, finding = harness.search(make_target(fragile), runs=1000, random=Random(1))
    assert finding is not None
    assert done < 1000
    assert len(finding.data) > 6
    assert finding.what == "KeyError: 'too long'"


def test_memory_over_the_bound_is_found() -> None:
    target = make_target(lambda data: bytearray(100_000 if len(data) > 4 else 10))
    assert target.measured(b"xxxx") < 4096
    with pytest.raises(MemoryExceeded, match="5 bytes made it allocate 10"):
        target.measured(b"xxxxx")
    done, finding = harness.search(target, runs=40 * MEASURED, random=Random(2))
    assert isinstance(finding, Finding)
    assert done % MEASURED == 0


def test_a_warning_is_found() -> None:
    import warnings

    _, finding = harness.search(make_target(lambda data: warnings.warn("odd", stacklevel=1)), runs=1, random=Random(3))
    assert finding is not None
    assert finding.what == "UserWarning: odd"


def test_an_input_is_repeated_by_its_seed() -> None:
    target = load("codec")
    one, other = Random(5), Random(5)
    for _ in range(50):
        assert target.mutated(target.seeds[1], one) == target.mutated(target.seeds[1], other)


def fuzz(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.fuzz.run", *words]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=60)


def test_without_atheris_the_program_changes_inputs_at_random_and_says_so(tmp_path: Path) -> None:
    done = fuzz("frames", "--runs", "300", "--engine", "random", "--findings", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "at random, without guidance by coverage" in done.stdout
    assert "300 runs" in done.stdout
    assert "no findings" in done.stdout


def test_a_target_that_is_not_there_is_named() -> None:
    done = fuzz("frame", "--runs", "1")
    assert done.returncode == 2
    assert "no target named frame; there are: " in done.stderr


def test_with_atheris_the_search_is_guided_by_coverage(tmp_path: Path) -> None:
    pytest.importorskip("atheris", reason="the extra `fuzz` is not installed")
    done = fuzz("frames", "--runs", "2000", "--findings", str(tmp_path), "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"engine": "atheris", "runs": 2000' in done.stdout
    assert '"coverage": 0' not in done.stdout
