"""Rules of a run's file between keys and for single values: the sentence for each that is broken."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from psyche_core.config.run_config import (
    ModelConfig,
    check_config,
    check_model,
    checked_run,
    from_plain,
    parse_run_file,
    to_plain,
)
from psyche_core.errors import ConfigError
from tests.unit.config.run_files import GOOD, KEYS, changed, refusal, with_checkpointers


@pytest.mark.parametrize(("keys", "sentence"), [
    ([KEYS[0], KEYS[1], KEYS[0]], f'config.checkpointers.2 = "{KEYS[0]}": must be a key that is not in the list yet'),
    (["AB" * 32], f'config.checkpointers.0 = "{"AB" * 32}": must be an Ed25519 public key, written as 64 lower-case hex digits'),
    (["ab" * 31], f'config.checkpointers.0 = "{"ab" * 31}": must be an Ed25519 public key, written as 64 lower-case hex digits'),
    ([KEYS[0], 5], "config.checkpointers.1 = 5: must be a valid string"),
    (KEYS[0], f'config.checkpointers = "{KEYS[0]}": must be a list'),
    ([f"{number:064x}" for number in range(17)], "must have at most 16 items, got 17"),
])  # fmt: skip
def test_a_wrong_list_of_checkpointers_is_refused(keys: Any, sentence: str) -> None:
    (got,) = refusal(with_checkpointers(keys))

    assert got.endswith(sentence)


def test_sixteen_checkpointers_are_the_most() -> None:
    keys = [f"{number:064x}" for number in range(16)]

    assert parse_run_file(with_checkpointers(keys), source="state.toml").config.checkpointers == tuple(keys)


def test_a_first_sample_near_the_end_of_the_numbers_is_refused() -> None:
    (sentence,) = refusal(GOOD + f"[progress]\nepoch_start_data_index = {2**62 + 1}\n")

    assert sentence.startswith(f"progress.epoch_start_data_index = {2**62 + 1}: must be at most 2**62")
    assert parse_run_file(GOOD + f"[progress]\nepoch_start_data_index = {2**62}\n", source="s").progress.step == 1


def numbers(table: Any, *path: str) -> Iterator[tuple[str, ...]]:
    """The path of every whole number in nested tables."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from numbers(value, *path, key)
        elif type(value) is int:
            yield (*path, key)


def with_number(table: Any, path: tuple[str, ...], value: int) -> Any:
    key, *below = path
    return {**table, key: with_number(table[key], tuple(below), value) if below else value}


STABLE = {
    "WarmupStableDecay": {
        "base_lr": 2e-4,
        "warmup_init_lr": 0.0,
        "cosine_decay_final_lr": 2e-5,
        "linear_decay_final_lr": 2e-5,
        "warmup_steps": 2,
        "stable_steps": 3,
        "cosine_decay_steps": 4,
        "linear_decay_steps": 5,
    }
}


def number_problem(schedule: Any, path: tuple[str, ...], value: int) -> str | None:
    """What is said of a number in a run file, without the value; None if it may be so."""
    plain = parse_run_file(GOOD, source="s").model_dump()
    if schedule is not None:
        plain["model"]["LLM"]["lr_schedule"] = schedule
    key = ".".join(path)
    try:
        checked_run(with_number(plain, path, value), source="s")
    except ConfigError as error:
        said = [line.removeprefix("s: ") for line in str(error).splitlines()]
        found = [line.partition(": ")[2] for line in said if line.startswith(f"{key} = ")]
        assert len(found) <= 1, said
        return found[0] if found else None
    return None


@pytest.mark.parametrize("schedule", [None, STABLE], ids=["cosine", "stable"])
def test_the_rule_of_a_number_is_told_at_once(schedule: Any) -> None:
    """`total_steps = -3` had to be at least 0, and 0 then at least 1."""
    plain = parse_run_file(GOOD, source="s").model_dump()
    paths = {*numbers(plain), *numbers({"model": {"LLM": {"lr_schedule": schedule or {}}}})}
    assert ("config", "total_steps") in paths
    assert len(paths) > 20
    for path in paths:
        if path[:2] == ("model", "LLM") and path[2] in ("optimizer", "data_location"):
            continue  # of plugins
        if schedule is not None and path[2:4] == ("lr_schedule", "Cosine"):
            continue
        for outside in (-3, 2**70):
            told = number_problem(schedule, path, outside)
            assert told is not None, path
            bound = re.fullmatch(r"must be at (?:least|most) (\d+)", told)
            if bound is not None:
                assert number_problem(schedule, path, int(bound[1])) is None, (path, told)


def test_percentages_of_verification_have_one_rule() -> None:
    for percent in (101, 300):
        (sentence,) = refusal(changed(("verification_percent = 0", f"verification_percent = {percent}")))
        assert sentence == f"config.verification_percent = {percent}: must be a percentage from 0 to 100"
    with pytest.raises(ConfigError, match="verification_percent = 101: must be a percentage from 0 to 100"):
        check_config(parse_run_file(GOOD, source="s").config.model_copy(update={"verification_percent": 101}))


RULES = [
    (("epoch_time = 60", "epoch_time = 0"), "config.epoch_time = 0: must be at least 1 second"),
    (("warmup_time = 30", "warmup_time = 60"), "config.warmup_time = 60: must be less than epoch_time (60)"),
    (
        ("max_round_train_time = 15", "max_round_train_time = 0"),
        "config.max_round_train_time = 0: must be at least 1 second and less than epoch_time (60)",
    ),
    (
        ("max_round_train_time = 15", "max_round_train_time = 60"),
        "config.max_round_train_time = 60: must be at least 1 second and less than epoch_time (60)",
    ),
    (("round_witness_time = 2", "round_witness_time = 0"), "config.round_witness_time = 0: must be at least 1 second"),
    (("\nmin_clients = 2", "\nmin_clients = 0"), "config.min_clients = 0: must be at least 1"),
    (
        ("init_min_clients = 3", "init_min_clients = 1"),
        "config.init_min_clients = 1: must be at least min_clients (2) and at most 256",
    ),
    (
        ("init_min_clients = 3", "init_min_clients = 257"),
        "config.init_min_clients = 257: must be at least min_clients (2) and at most 256",
    ),
    (("global_batch_size_start = 4", "global_batch_size_start = 0"), "config.global_batch_size_start = 0: must be at least 1"),
    (
        ("global_batch_size_end = 8", "global_batch_size_end = 0"),
        "config.global_batch_size_end = 0: must be at least 1 and at least global_batch_size_start (4)",
    ),
    (
        ("global_batch_size_end = 8", "global_batch_size_end = 3"),
        "config.global_batch_size_end = 3: must be at least 1 and at least global_batch_size_start (4)",
    ),
    (("total_steps = 25000\nwaiting", "total_steps = 0\nwaiting"), "config.total_steps = 0: must be at least 1"),
    (
        ("witness_nodes = 1", "witness_nodes = 3"),
        "config.witness_nodes = 3: must be at most min_clients (2) and at most 32; 0 means everybody",
    ),
    (("cooldown_time = 5", "cooldown_time = 0"), "config.cooldown_time = 0: must be at least 1 second"),
    (
        ("waiting_for_members_extra_time = 3", "waiting_for_members_extra_time = 0"),
        "config.waiting_for_members_extra_time = 0: must be at least 1 second",
    ),
    (("max_seq_len = 512", "max_seq_len = 0"), "model.LLM.max_seq_len = 0: must be at least 1 token"),
    (('Server = "127.0.0.1:20001"', 'Server = ""'), 'model.LLM.data_location.Server = "": must not be empty'),
    (
        ('\n[model.LLM.checkpoint.Hub]\nrepo_id = "emozilla/llama2-20m-init"\n', ""),
        "model.LLM.checkpoint: missing; this key is required",
    ),
    (
        ('repo_id = "emozilla/llama2-20m-init"', 'repo_id = ""'),
        'model.LLM.checkpoint.Hub.repo_id = "": must not be empty',
    ),
    (
        ("warmup_steps = 20\n", "warmup_steps = 25000\n"),
        "model.LLM.lr_schedule.Cosine.total_steps = 25000: must be greater than warmup_steps (25000)",
    ),
    (
        ("cold_start_warmup_steps = 2", "cold_start_warmup_steps = 3"),
        (
            "model.LLM.cold_start_warmup_steps = 3: must be at most "
            "(epoch_time - warmup_time) / max_round_train_time = 2 rounds of one epoch"
        ),
    ),
]


@pytest.mark.parametrize(("replacement", "sentence"), RULES, ids=[sentence.split(":")[0] for _, sentence in RULES])
def test_a_broken_rule_gives_key_value_and_rule(replacement: tuple[str, str], sentence: str) -> None:
    assert sentence in refusal(changed(replacement))


def test_more_witnesses_than_can_be_stored_are_refused() -> None:
    text = changed(
        ("\nmin_clients = 2", "\nmin_clients = 40"),
        ("init_min_clients = 3", "init_min_clients = 40"),
        ("witness_nodes = 1", "witness_nodes = 33"),
    )

    assert refusal(text) == ["config.witness_nodes = 33: must be at most min_clients (40) and at most 32; 0 means everybody"]


def test_rules_come_in_the_references_order_and_all_at_once() -> None:
    text = changed(
        ("round_witness_time = 2", "round_witness_time = 0"),
        ("cooldown_time = 5", "cooldown_time = 0"),
        ("max_seq_len = 512", "max_seq_len = 0"),
        ("warmup_time = 30", "warmup_time = 90"),
    )

    assert [line.split(" ")[0] for line in refusal(text)] == [
        "config.warmup_time",
        "config.round_witness_time",
        "config.cooldown_time",
        "model.LLM.max_seq_len",
    ]


def test_a_bad_type_in_one_table_does_not_hide_a_broken_rule_in_another() -> None:
    text = changed(("max_seq_len = 512", 'max_seq_len = "512"'), ("cooldown_time = 5", "cooldown_time = 0"))

    assert refusal(text) == [
        'model.LLM.max_seq_len = "512": must be a valid integer',
        "config.cooldown_time = 0: must be at least 1 second",
    ]


@pytest.mark.parametrize(("replacement", "sentence"), [
    (("\nwarmup_time = 30", "\nwarmup_tme = 30"), "config.warmup_tme: unknown key; did you mean warmup_time?"),
    (("[config]", "[confg]"), "confg: unknown key; did you mean config?"),
    (("max_seq_len = 512", "max_seq_length = 512"), "model.LLM.max_seq_length: unknown key; did you mean max_seq_len?"),
    (("base_lr = 4", "bas_lr = 4"), "model.LLM.lr_schedule.Cosine.bas_lr: unknown key; did you mean base_lr?"),
    (("repo_id = ", "repo = "), "model.LLM.checkpoint.Hub.repo: unknown key; did you mean repo_id?"),
    (("run_id = ", "runid = "), "runid: unknown key; did you mean run_id?"),
    (("[config]\n", "[config]\nzzz = 1\n"), ("config.zzz: unknown key; known: checkpointers, cooldown_time, epoch_time, "
     "global_batch_size_end, global_batch_size_start, global_batch_size_warmup_tokens, init_min_clients, max_round_train_time, "
     "min_clients, restart_from_checkpoint, round_witness_time, rounds_per_epoch, total_steps, verification_percent, "
     "waiting_for_members_extra_time, warmup_time, witness_nodes")),
    (("lr_schedule.Cosine", "lr_schedule.cosin"), "model.LLM.lr_schedule.cosin: unknown variant; did you mean Cosine?"),
    (("checkpoint.Hub", "checkpoint.Hubb"), "model.LLM.checkpoint.Hubb: unknown variant; did you mean Hub?"),
])  # fmt: skip
def test_an_unknown_key_is_refused_with_the_nearest_known_one(replacement: tuple[str, str], sentence: str) -> None:
    assert sentence in refusal(changed(replacement))


@pytest.mark.parametrize(("replacement", "sentence"), [
    (("\nwarmup_time = 30", ""), "config.warmup_time: missing; this key is required"),
    (('run_id = "test"', ""), "run_id: missing; this key is required"),
    (("base_lr = 4.0e-4\n", ""), "model.LLM.lr_schedule.Cosine.base_lr: missing; this key is required"),
    (("\nwarmup_time = 30", "\nwarmup_time = -1"), "config.warmup_time = -1: must be at least 0"),
    (("\nwarmup_time = 30", "\nwarmup_time = 30.5"), "config.warmup_time = 30.5: must be a valid integer"),
    (("\nwarmup_time = 30", "\nwarmup_time = 30.0"), "config.warmup_time = 30.0: must be a valid integer"),
    (("\nwarmup_time = 30", "\nwarmup_time = true"), "config.warmup_time = true: must be a valid integer"),
    (("\nwarmup_time = 30", "\nwarmup_time = [30]"), "config.warmup_time = [30]: must be a valid integer"),
    (("\nwarmup_time = 30", f"\nwarmup_time = {2**64}"), f"config.warmup_time = {2**64}: must be less than epoch_time (60)"),
    (("total_steps = 25000\nwaiting", f"total_steps = {2**32}\nwaiting"),
     f"config.total_steps = {2**32}: must be at most {2**32 - 1}"),
    (("\nmin_clients = 2", "\nmin_clients = 65536"), "config.min_clients = 65536: must be at most 65535"),
    (("waiting_for_members_extra_time = 3", "waiting_for_members_extra_time = 256"),
     "config.waiting_for_members_extra_time = 256: must be at most 255"),
    (('data_type = "Pretraining"', 'data_type = "Training"'),
     "model.LLM.data_type = \"Training\": must be 'Pretraining' or 'Finetuning'"),
    (('run_state = "WaitingForMembers"', 'run_state = "Waiting"'),
     ("run_state = \"Waiting\": must be 'Uninitialized', 'WaitingForMembers', 'Warmup', 'RoundTrain', 'RoundWitness', "
     "'Cooldown', 'Finished' or 'Paused'")),
    (("base_lr = 4.0e-4", "base_lr = nan"), "model.LLM.lr_schedule.Cosine.base_lr = nan: must be a finite number"),
    (("base_lr = 4.0e-4", "base_lr = 0.0"), "model.LLM.lr_schedule.Cosine.base_lr = 0.0: must be greater than 0"),
    (("final_lr = 4.0e-5", "final_lr = -1.0"), "model.LLM.lr_schedule.Cosine.final_lr = -1.0: must be at least 0"),
    (("compression_decay = 0.999", "compression_decay = inf"),
     "model.LLM.optimizer.Distro.compression_decay = inf: must be a finite number"),
    (('architecture = "HfLlama"', 'architecture = ""'),
     'model.LLM.architecture = "": must be a name of letters, digits, _ and -, at most 64, starting with a letter'),
    (('architecture = "HfLlama"', "architecture = 3"), "model.LLM.architecture = 3: must be a valid string"),
    (('Server = "127.0.0.1:20001"', "Server = 20001"),
     "model.LLM.data_location.Server = 20001: must be a table or a string"),
    (('Server = "127.0.0.1:20001"', 'Server = "a"\nHttp = "b"'),
     "model.LLM.data_location: must be a name or a table with exactly one name, got 2 (Server, Http)"),
    (("[model.LLM.checkpoint.Hub]\nrepo_id = ", "[model.LLM.checkpoint]\nHub = "),
     'model.LLM.checkpoint.Hub = "emozilla/llama2-20m-init": must be a table with repo_id, revision'),
    (("[model.LLM.checkpoint.Hub]\nrepo_id = ", "[model.LLM.checkpoint.Ephemeral]\nrepo_id = "),
     'model.LLM.checkpoint.Ephemeral = {"repo_id": "emozilla/llama2-20m-init"}: takes no settings'),
    (('"test"', r'"te\u0000st"'), r'run_id = "te\u0000st": must not contain NUL characters'),
    (('Server = "127.0.0.1:20001"', '"Server\\n" = "h:1"'),
     r'model.LLM.data_location: "Server\n" must be a name of letters, digits, _ and -, at most 64, starting with a letter'),
    (('Server = "127.0.0.1:20001"', ""), "model.LLM.data_location: must be a name or a table with exactly one name, got 0 ()"),
])  # fmt: skip
def test_a_value_of_the_wrong_kind_is_refused(replacement: tuple[str, str], sentence: str) -> None:
    assert sentence in refusal(changed(replacement))


def test_ephemeral_checkpoints_are_refused() -> None:
    plain = to_plain(parse_run_file(GOOD, source="state.toml").model)
    plain["LLM"] |= {"checkpoint": "Ephemeral", "optimizer": "Dummy"}  # an optimizer that does nothing is allowed
    model = from_plain(ModelConfig, plain)

    with pytest.raises(ConfigError) as caught:
        check_model(model)
    assert [line.split(":")[0] for line in str(caught.value).splitlines()] == [
        'model.LLM.checkpoint = "Ephemeral"',
    ]


def test_strings_over_their_limit_are_refused_not_cut() -> None:
    assert parse_run_file(changed(('"test"', f'"{"r" * 32}"')), source="s").run_id == "r" * 32
    assert refusal(changed(('"test"', f'"{"é" * 17}"'))) == [f'run_id = "{"é" * 17}": must be at most 32 bytes of UTF-8, got 34']
    assert refusal(changed(('"test"', '""'))) == ['run_id = "": must not be empty']


@pytest.mark.parametrize("name", ["../../evil", "/etc", "a/b", "a\\b", ".", "..", "a\nb", "a\x1b[2J", "a\u202eb", "a\u200bb"])
def test_a_run_id_that_files_cannot_be_named_after_is_refused(name: str) -> None:
    """`psyche validate-config` said OK, and a testnet wrote its results to runs/../../evil."""
    (sentence,) = refusal(changed(('"test"', json.dumps(name))))
    assert sentence.startswith("run_id = ")
    assert "because files are named after the run" in sentence or "must not contain control characters" in sentence


@pytest.mark.parametrize("name", ["first-light", "a run", "...", "a.b", "läufer", "走る", "x" * 32])
def test_a_run_id_may_have_letters_of_all_languages_spaces_and_dots(name: str) -> None:
    assert parse_run_file(changed(('"test"', json.dumps(name))), source="s").run_id == name
    (sentence,) = refusal(changed(("emozilla/llama2-20m-init", "e" * 65)))
    assert sentence == f'model.LLM.checkpoint.Hub.repo_id = "{"e" * 65}": must be at most 64 bytes of UTF-8, got 65'
    (sentence,) = refusal(changed(("127.0.0.1:20001", "h" * 65)))
    assert sentence == f'model.LLM.data_location.Server = "{"h" * 65}": must be at most 64 bytes of UTF-8, got 65'
    (sentence,) = refusal(changed(('Server = "127.0.0.1:20001"', f'Preprocessed = "{"h" * 193}"')))
    assert sentence.endswith("must be at most 192 bytes of UTF-8, got 193")


def test_a_falling_schedule_must_fall() -> None:
    head, _, rest = GOOD.partition("[model.LLM.lr_schedule.Cosine]")
    schedule = (
        "[model.LLM.lr_schedule.WarmupStableDecay]\nbase_lr = 1e-4\nwarmup_init_lr = 0.0\ncosine_decay_final_lr = 2e-4\n"
        "linear_decay_final_lr = 0.0\nwarmup_steps = 1\nstable_steps = 1\ncosine_decay_steps = 1\nlinear_decay_steps = 1\n"
    )
    key = "model.LLM.lr_schedule.WarmupStableDecay.cosine_decay_final_lr"

    assert refusal(head + schedule + rest[rest.index("[model.LLM.optimizer") :]) == [
        f"{key} = 0.0002: must be at most base_lr (0.0001)"
    ]


@pytest.mark.parametrize(("step", "rule"), [(0, "must be at least 1"), (25001, "must be at most total_steps (25000)")])
def test_progress_must_leave_a_step_to_train(step: int, rule: str) -> None:
    (sentence,) = refusal(GOOD + f"[progress]\nstep = {step}\n")

    assert sentence.startswith(f"progress.step = {step}: {rule}")


def test_b14_a_zero_config_with_a_cold_start_is_refused_without_dividing_by_zero() -> None:
    names = [line.split(" = ") for line in GOOD.split("[config]")[1].split("[model.LLM]")[0].split("\n") if line]
    text = changed(*((f"\n{name} = {value}\n", f"\n{name} = 0\n") for name, value in names if name != "total_steps"))

    assert "config.epoch_time = 0: must be at least 1 second" in refusal(text)
