"""`[model.verification]`: with which scores a checked share passes; it changes nothing where it is not there."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from psyche_core.builtin.memory_transport import MemoryNetwork, MemoryTransport
from psyche_core.client.runtime.checking.share_checker import ShareChecker
from psyche_core.client.runtime.worker import describe_exception
from psyche_core.config.rules import model_tables
from psyche_core.config.run_config import ModelConfig, VerificationConfig, from_plain, parse_run_file, to_plain
from psyche_core.coordinator import new_state
from psyche_core.coordinator.canonical_image import decode, encode
from psyche_core.errors import ConfigError
from psyche_core.verification.replay import Rule
from psyche_core.wire.signing import SecretKey

RUN = (Path(__file__).parents[3] / "examples" / "local_testnet" / "state.toml").read_text()
TABLE = "\n[model.verification]\nthreshold = 0.2\nmedian_threshold = 0.015625\n"


def model(text: str) -> ModelConfig:
    return parse_run_file(text, source="state.toml").model


def test_a_run_names_thresholds_and_they_survive_wire_and_image() -> None:
    named = model(RUN + TABLE)
    assert named.thresholds == VerificationConfig(threshold=0.2, median_threshold=0.015625)
    assert from_plain(ModelConfig, to_plain(named)) == named
    run = parse_run_file(RUN + TABLE, source="state.toml")
    state = new_state(run.run_id, run.config, run.model, now=1, instance=bytes(32))
    assert decode(encode(state)).model.thresholds == named.thresholds


def test_without_the_table_everything_looks_as_before() -> None:
    bare = model(RUN)
    assert bare.thresholds == VerificationConfig()
    assert set(to_plain(bare)) == {"LLM"}
    assert b"verification" not in model_tables(bare)
    assert (Rule().threshold, Rule().median_threshold) == (bare.thresholds.threshold, bare.thresholds.median_threshold)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("threshold = 0.0", r"model\.verification\.threshold"),
        ("threshold = 1.5", r"model\.verification\.threshold"),
        ("threshold = nan", r"model\.verification\.threshold"),
        ('threshold = "0.1"', r"model\.verification\.threshold"),
        ("median_threshold = 0.06", r"median_threshold = 0\.06: must be at most threshold \(0\.05\)"),
        ("threshold = 0.001", r"median_threshold = 0\.005: must be at most threshold \(0\.001\)"),
        ("limit = 0.1", r"model\.verification\.limit"),
    ],
)
def test_what_cannot_be_a_threshold_is_refused(table: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        model(f"{RUN}\n[model.verification]\n{table}\n")


@pytest.mark.anyio
async def test_a_member_checks_with_the_run_s_thresholds() -> None:
    async with MemoryTransport(MemoryNetwork(), SecretKey(hashlib.sha256(b"checker").digest()).public) as transport:
        checker = ShareChecker(transport, explain=describe_exception)
        assert checker.rule == Rule()
        for text, rule in ((RUN, Rule()), (RUN + TABLE, Rule(threshold=0.2, median_threshold=0.015625))):
            run = parse_run_file(text, source="state.toml")
            checker.follow(new_state(run.run_id, run.config, run.model, now=1, instance=bytes(32)))
            assert checker.rule == rule
