"""Reading state.toml: what is accepted, what is kept, and the sentence for everything that is not."""

from __future__ import annotations

import math
import typing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche_core.config.rules import MAX_TABLES_BYTES, model_tables
from psyche_core.config.run_config import (
    Choice,
    CoordinatorConfig,
    ModelConfig,
    RunFile,
    from_plain,
    load_run_file,
    parse_run_file,
    to_plain,
)
from psyche_core.config.schema import RunStateName
from psyche_core.config.sentences import shown
from psyche_core.errors import ConfigError
from psyche_core.types import RunState
from psyche_core.wire.codec import decode, encode
from tests.unit.config.run_files import GOOD, KEYS, changed, names, refusal, with_checkpointers


def test_reads_every_key() -> None:
    run = parse_run_file(GOOD, source="state.toml")

    assert run.run_id == "test"
    assert run.config.init_min_clients == 3
    assert run.config.rounds_per_epoch == 0
    assert run.progress.step == 1
    llm = run.model.LLM
    assert llm.architecture == "HfLlama"
    assert llm.data_location == Choice("Server", {"location": "127.0.0.1:20001"})
    assert llm.checkpoint == Choice("Hub", {"repo_id": "emozilla/llama2-20m-init"})
    assert llm.lr_schedule.settings is not None
    assert llm.lr_schedule.settings["base_lr"] == 4e-4
    assert llm.optimizer.name == "Distro"
    assert llm.optimizer.settings is not None
    assert llm.optimizer.settings["quantize_1bit"] is True


def test_progress_and_our_addition_are_read() -> None:
    text = changed(("total_steps = 25000\nwaiting", "rounds_per_epoch = 12\ntotal_steps = 25000\nwaiting"))
    run = parse_run_file(text + "[progress]\nepoch = 2\nstep = 9\nepoch_start_data_index = 64\n", source="state.toml")

    assert run.config.rounds_per_epoch == 12
    assert (run.progress.epoch, run.progress.step, run.progress.epoch_start_data_index) == (2, 9, 64)


def test_rate_groups_survive_the_canonical_form_in_order() -> None:
    """It is what the image of a coordinator's state holds, on a chain too; tables in it are sorted by key, lists are not."""
    groups = """
[model.LLM.optimizer.Distro.rates]
norm = 6.25
embedding = 3
[model.LLM.optimizer.Distro.rates.weight_decay]
norm = 0
[[model.LLM.optimizer.Distro.rates.by_name]]
pattern = "z.*"
rate = 2.5
[[model.LLM.optimizer.Distro.rates.by_name]]
pattern = "*"
kind = "matrix"
"""
    run = parse_run_file(GOOD + groups, source="state.toml")
    rates = {
        "norm": 6.25,
        "embedding": 3,
        "weight_decay": {"norm": 0},
        "by_name": [{"pattern": "z.*", "rate": 2.5}, {"pattern": "*", "kind": "matrix"}],
    }
    assert run.model.LLM.optimizer.settings is not None
    assert run.model.LLM.optimizer.settings["rates"] == rates
    plain = decode(model_tables(run.model), max_bytes=MAX_TABLES_BYTES)
    assert isinstance(plain, dict)
    assert plain["optimizer"]["Distro"]["rates"] == rates
    assert from_plain(ModelConfig, to_plain(run.model)) == run.model


def test_checkpointers_are_read_and_survive_the_wire() -> None:
    run = parse_run_file(with_checkpointers(KEYS), source="state.toml")

    assert run.config.checkpointers == tuple(KEYS)
    over_the_wire = decode(encode(to_plain(run.config)), max_bytes=10_000)
    assert over_the_wire["checkpointers"] == KEYS
    assert from_plain(CoordinatorConfig, over_the_wire) == run.config
    assert parse_run_file(GOOD, source="state.toml").config.checkpointers == ()


def test_an_owners_file_needs_no_name_of_the_run() -> None:
    text = changed(('run_id = "test"\n', ""))

    assert parse_run_file(text, source="config.toml", run_id="mine").run_id == "mine"
    assert parse_run_file(GOOD, source="state.toml", run_id="mine").run_id == "test"
    (sentence,) = refusal(text)
    assert sentence == "run_id: missing; this key is required"


def test_what_the_reference_server_saves_is_ignored() -> None:
    text = "pending_pause = 1\nrun_state_start_unix_timestamp = 5\n" + GOOD + "[epoch_state]\nrounds_head = 3\n"

    assert parse_run_file(text, source="state.toml") == parse_run_file(GOOD, source="state.toml")


def test_tables_are_immutable() -> None:
    run = parse_run_file(GOOD, source="state.toml")

    with pytest.raises(ValueError, match="frozen"):
        run.config.total_steps = 1  # type: ignore[misc]


def test_run_state_names_are_the_coordinators() -> None:
    assert typing.get_args(RunStateName) == tuple(state.name for state in RunState)


@pytest.mark.parametrize("schedule", [
    "Constant = {base_lr = 1e-3, warmup_init_lr = 0, warmup_steps = 0}",
    "Linear = {base_lr = 1e-3, warmup_init_lr = 0.0, warmup_steps = 1, final_lr = 0.0, total_steps = 2}",
    ("WarmupStableDecay = {base_lr = 2e-4, warmup_init_lr = 0.0, cosine_decay_final_lr = 2e-5, linear_decay_final_lr = 2e-5, "
    "warmup_steps = 2000, stable_steps = 161000, cosine_decay_steps = 150000, linear_decay_steps = 12000}"),
])  # fmt: skip
def test_every_schedule_is_read(schedule: str) -> None:
    head, _, rest = GOOD.partition("[model.LLM.lr_schedule.Cosine]")
    text = head + "[model.LLM.lr_schedule]\n" + schedule + "\n" + rest[rest.index("[model.LLM.optimizer") :]
    run = parse_run_file(text, source="state.toml")

    assert run.model.LLM.lr_schedule.name == schedule.split()[0]
    assert from_plain(ModelConfig, to_plain(run.model)) == run.model


@pytest.mark.parametrize("checkpoint", [
    "Dummy = {repo_id = ''}",
    "P2P = {repo_id = 'a/b', revision = 'main'}",
    "Gcs = {bucket = 'b'}",
    "P2PGcs = {bucket = 'b', prefix = 'runs/1'}",
])  # fmt: skip
def test_every_checkpoint_is_read(checkpoint: str) -> None:
    text = changed(
        ("[model.LLM.checkpoint.Hub]\n", "[model.LLM.checkpoint]\n"), ('repo_id = "emozilla/llama2-20m-init"', checkpoint)
    )

    assert parse_run_file(text, source="state.toml").model.LLM.checkpoint.name == checkpoint.split()[0]


@pytest.mark.parametrize("text", ["", "run_id", "[config", "a = 1\na = 2", "x = '\x00'", "x = " + "[" * 100_000], ids=range(6))
def test_what_is_not_toml_or_empty_is_one_error(text: str) -> None:
    assert refusal(text)


def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    missing = tmp_path / "none.toml"
    with pytest.raises(ConfigError, match=f"^cannot read the run configuration {missing}: No such file or directory$"):
        load_run_file(missing)
    with pytest.raises(ConfigError, match="it is a folder, expected a regular file"):
        load_run_file(tmp_path)
    binary = tmp_path / "state.toml"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        load_run_file(binary)
    binary.write_bytes(b"#" * (1 << 20) + b"\n")
    with pytest.raises(ConfigError, match="is over 1048576 bytes"):
        load_run_file(binary)


def test_a_good_file_is_loaded_and_a_bad_one_named(tmp_path: Path) -> None:
    path = tmp_path / "state.toml"
    path.write_text(GOOD)
    assert load_run_file(path).run_id == "test"

    path.write_text(changed(("cooldown_time = 5", "cooldown_time = 0")))
    with pytest.raises(ConfigError, match=rf"^{path}: config.cooldown_time = 0"):
        load_run_file(path)


def test_tables_survive_the_wire_exactly() -> None:
    run = parse_run_file(GOOD, source="state.toml")

    for table in (run.config, run.model):
        over_the_wire = decode(encode(to_plain(table)), max_bytes=10_000)
        assert from_plain(type(table), over_the_wire) == table


plain_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.builds(Choice, names, st.none() | st.dictionaries(st.text(max_size=8), plain_values, max_size=3)))
def test_a_choice_round_trips_through_toml_form_and_wire(choice: Choice) -> None:
    assert Choice.parse(choice.to_toml()) == choice
    assert Choice.parse(decode(encode(choice.to_toml()), max_bytes=100_000)) == choice
    assert hash(Choice.parse(choice.to_toml())) == hash(choice)


@given(plain_values)
def test_from_plain_refuses_anything_else_with_a_config_error(value: Any) -> None:
    for table in (CoordinatorConfig, ModelConfig, RunFile):
        with pytest.raises(ConfigError):
            from_plain(table, value)


@given(st.sampled_from(sorted(CoordinatorConfig.model_fields.keys() - {"checkpointers"})), plain_values)
def test_a_strange_value_is_refused_with_its_key_or_accepted_unchanged(key: str, value: Any) -> None:
    plain = to_plain(parse_run_file(GOOD, source="s").config)
    try:
        config = from_plain(CoordinatorConfig, plain | {key: value})
    except ConfigError as error:
        sentence = str(error)
    else:
        sentence = f"{key} = {shown(getattr(config, key))}: accepted"
        assert type(value) is type(plain[key])

    assert sentence.startswith(f"{key} = {shown(value)}: ")


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 2**64, -(2**63) - 1, b"bytes", {1: 2}, object()])
def test_a_choice_refuses_settings_that_cannot_travel(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^Distro\.x = "):
        Choice.parse({"Distro": {"x": value}})


def test_a_choice_refuses_endless_nesting() -> None:
    nested: dict[str, Any] = {}
    for _ in range(9):
        nested = {"x": nested}

    with pytest.raises(ValueError, match="must not be nested deeper than 8"):
        Choice.parse({"Distro": nested})
