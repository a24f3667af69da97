"""`docs/reference/run-configuration.md` is what the code writes, and says what the code does."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from psyche_core.config import schema
from psyche_core.config.run_config import load_run_file, parse_run_file
from psyche_core.errors import ConfigError
from psyche_core.plugins import PluginRegistry
from psyche_core.server.run_files import load_run

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import run_configuration
from run_configuration_keys import DESCRIBED, described

REPOSITORY = Path(__file__).parents[2]
EXAMPLE = (REPOSITORY / "examples" / "local_testnet" / "state.toml").read_text()
SEEDS = Path(__file__).parent / "seed_config.toml"


def test_the_page_is_what_the_code_writes() -> None:
    assert run_configuration.PAGE.read_text() == run_configuration.page(), "run tools/run_configuration.py --write"


def test_every_key_is_described_and_nothing_else() -> None:
    for table, keys in DESCRIBED.items():
        assert set(keys) <= set(table.model_fields), table
        for name in table.model_fields:
            assert described(table, name).effect


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        (key, value, described(table, key).rule)
        for table, key, value in (
            (schema.CoordinatorConfig, "warmup_time", 10**6),
            (schema.CoordinatorConfig, "cooldown_time", 0),
            (schema.CoordinatorConfig, "max_round_train_time", 0),
            (schema.CoordinatorConfig, "round_witness_time", 0),
            (schema.CoordinatorConfig, "epoch_time", 0),
            (schema.CoordinatorConfig, "total_steps", 0),
            (schema.CoordinatorConfig, "init_min_clients", 257),
            (schema.CoordinatorConfig, "min_clients", 0),
            (schema.CoordinatorConfig, "witness_nodes", 33),
            (schema.CoordinatorConfig, "global_batch_size_start", 0),
            (schema.CoordinatorConfig, "global_batch_size_end", 0),
            (schema.CoordinatorConfig, "verification_percent", 101),
            (schema.CoordinatorConfig, "waiting_for_members_extra_time", 0),
            (schema.LLMConfig, "max_seq_len", 0),
            (schema.LLMConfig, "cold_start_warmup_steps", 10**6),
        )
    ],
)
def test_a_value_beyond_the_bounds_that_the_page_names_is_refused(key: str, value: int, rule: str) -> None:
    assert rule
    text, found = re.subn(rf"^{key} = .*$", f"{key} = {value}", EXAMPLE, count=1, flags=re.MULTILINE)
    assert found
    with pytest.raises(ConfigError, match=rf"{key} = {value}: must be "):
        parse_run_file(text, source="state.toml")


def test_the_configuration_that_the_manual_prints_is_an_owners() -> None:
    files = load_run(SEEDS, None, PluginRegistry.discover(), only_looks=True)
    assert files.run.config.waiting_for_members_extra_time == schema.WAITING_SECONDS
    assert files.run.model.LLM.cold_start_warmup_steps == 0
    assert files.run.model.LLM.optimizer.name == "Distro"
    with pytest.raises(ConfigError, match="run_id: missing"):
        load_run_file(SEEDS)
