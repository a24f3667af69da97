"""Rules between the keys of a run configuration, in the reference's order (coordinator: config, model, progress, cold start).

Every broken rule is reported, each as one sentence with key, value and rule. Additional to the rules of the reference:
verification_percent is a percentage, schedules do not divide by zero, a run has a step and samples left to train, and no
checkpointer is listed twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from psyche_core.config.schema import MAX_STRING_BYTES, MAX_URL_BYTES, OWN_TABLES, CoordinatorConfig, ModelConfig, ProgressConfig
from psyche_core.config.sentences import shown
from psyche_core.errors import ConfigError
from psyche_core.types import MAX_CLIENTS, MAX_WITNESSES
from psyche_core.wire.codec import encode

MAX_TABLES_BYTES = 2048
"""Maximum bytes of canonical CBOR for the model keys that coordinators only store: accounts on a chain have a fixed size."""

_COORDINATORS_KEYS = frozenset({"max_seq_len", "cold_start_warmup_steps", "checkpoint"})

MAX_FIRST_SAMPLE = 2**62
"""Highest first sample of a run that continues an earlier one; sample numbers end at types.MAX_SAMPLES, 2**63 - 1."""


def check_config(config: CoordinatorConfig) -> None:
    """Raise ConfigError if a `[config]` table breaks a rule. The message names all broken rules, one per line."""
    _raise(config_problems(config))


def check_model(model: ModelConfig) -> None:
    """Raise ConfigError for a `[model]` table that no client could train. Plugins check their own settings."""
    _raise(model_problems(model))


def check_cold_start(config: CoordinatorConfig, model: ModelConfig) -> None:
    """Raise ConfigError for a cold-start warm-up that does not fit in an epoch. `config` must pass `check_config` before."""
    _raise(cold_start_problems(config, model))


def _raise(problems: Iterator[str]) -> None:
    found = list(problems)
    if found:
        raise ConfigError("\n".join(found))


def config_problems(config: CoordinatorConfig) -> Iterator[str]:
    """Yield a sentence for each broken rule of `[config]`, in the reference's order."""

    def broken(key: str, rule: str) -> str:
        return f"config.{key} = {getattr(config, key)}: {rule}"

    if config.epoch_time == 0:
        yield broken("epoch_time", "must be at least 1 second")
    if config.warmup_time >= config.epoch_time:
        yield broken("warmup_time", f"must be less than epoch_time ({config.epoch_time})")
    if config.max_round_train_time == 0 or config.max_round_train_time >= config.epoch_time:
        yield broken("max_round_train_time", f"must be at least 1 second and less than epoch_time ({config.epoch_time})")
    if config.round_witness_time == 0:
        yield broken("round_witness_time", "must be at least 1 second")
    if config.min_clients == 0:
        yield broken("min_clients", "must be at least 1")
    if config.init_min_clients < config.min_clients or config.init_min_clients > MAX_CLIENTS:
        yield broken("init_min_clients", f"must be at least min_clients ({config.min_clients}) and at most {MAX_CLIENTS}")
    if config.global_batch_size_start == 0:
        yield broken("global_batch_size_start", "must be at least 1")
    if config.global_batch_size_end == 0 or config.global_batch_size_end < config.global_batch_size_start:
        start = config.global_batch_size_start
        yield broken("global_batch_size_end", f"must be at least 1 and at least global_batch_size_start ({start})")
    if config.total_steps == 0:
        yield broken("total_steps", "must be at least 1")
    if config.witness_nodes > config.min_clients or config.witness_nodes > MAX_WITNESSES:
        rule = f"must be at most min_clients ({config.min_clients}) and at most {MAX_WITNESSES}; 0 means everybody"
        yield broken("witness_nodes", rule)
    if config.cooldown_time == 0:
        yield broken("cooldown_time", "must be at least 1 second")
    if config.waiting_for_members_extra_time == 0:
        yield broken("waiting_for_members_extra_time", "must be at least 1 second")
    if config.verification_percent > 100:
        yield broken("verification_percent", "must be a percentage from 0 to 100")
    for place, key in enumerate(config.checkpointers):
        if key in config.checkpointers[:place]:
            yield f"config.checkpointers.{place} = {shown(key)}: must be a key that is not in the list yet"


def model_problems(model: ModelConfig) -> Iterator[str]:
    """Yield a sentence for each broken rule of `[model]`, in the reference's order."""
    llm = model.LLM
    if llm.max_seq_len == 0:
        yield "model.LLM.max_seq_len = 0: must be at least 1 token"

    location = (llm.data_location.settings or {}).get("location")
    if isinstance(location, str):
        key = f"model.LLM.data_location.{llm.data_location.name}"
        limit = MAX_STRING_BYTES if llm.data_location.name == "Server" else MAX_URL_BYTES
        if not location:
            yield f'{key} = "": must not be empty'
        if len(location.encode()) > limit:
            yield f"{key} = {shown(location)}: must be at most {limit} bytes of UTF-8, got {len(location.encode())}"

    if llm.checkpoint.name == "Ephemeral":
        yield 'model.LLM.checkpoint = "Ephemeral": must be Hub, Gcs, P2P, P2PGcs or Dummy, or nobody can join'
    elif llm.checkpoint.name != "Dummy":
        for key in ("repo_id", "bucket"):
            if (llm.checkpoint.settings or {}).get(key) == "":
                yield f'model.LLM.checkpoint.{llm.checkpoint.name}.{key} = "": must not be empty'

    yield from _schedule_problems(llm.lr_schedule.name, llm.lr_schedule.settings or {})

    scores = model.thresholds
    if scores.median_threshold > scores.threshold:
        yield (
            f"model.verification.median_threshold = {scores.median_threshold}: must be at most threshold ({scores.threshold}), "
            "since a share with a larger score does not pass"
        )
    try:
        model_tables(model)
    except ConfigError as error:
        yield f"model.LLM: {error}"


def model_tables(model: ModelConfig) -> bytes:
    """Return canonical CBOR of the keys of model.LLM that coordinators only store, and of OWN_TABLES by their names, if any.

    Raises ConfigError if it is longer than MAX_TABLES_BYTES, or for values that canonical CBOR cannot contain.
    """
    plain = model.model_dump()
    kept = {key: value for key, value in plain["LLM"].items() if key not in _COORDINATORS_KEYS}
    own = {name: plain[name] for name in OWN_TABLES if name in plain}
    try:
        tables = encode({**kept, **own})
    except (TypeError, ValueError) as error:
        message = f"expected values that canonical CBOR can carry: {error}"
        raise ConfigError(message) from error

    if len(tables) > MAX_TABLES_BYTES:
        size = (
            f"expected at most {MAX_TABLES_BYTES} bytes of CBOR for architecture, data, optimizer and relays, got {len(tables)}"
        )
        message = f"{size}; shorten the settings, such as lists of files"
        raise ConfigError(message)

    return tables


def _schedule_problems(name: str, settings: Mapping[str, Any]) -> Iterator[str]:
    if name in ("Linear", "Cosine") and settings["total_steps"] <= settings["warmup_steps"]:
        key = f"model.LLM.lr_schedule.{name}.total_steps"
        yield f"{key} = {settings['total_steps']}: must be greater than warmup_steps ({settings['warmup_steps']})"
    if name == "WarmupStableDecay":
        falling = ("base_lr", "cosine_decay_final_lr", "linear_decay_final_lr")
        for above, below in itertools.pairwise(falling):
            if settings[below] > settings[above]:
                yield f"model.LLM.lr_schedule.{name}.{below} = {settings[below]}: must be at most {above} ({settings[above]})"


def cold_start_problems(config: CoordinatorConfig, model: ModelConfig) -> Iterator[str]:
    """Yield a sentence if the cold-start warm-up does not fit in the rounds of one epoch."""
    steps = model.LLM.cold_start_warmup_steps
    if steps == 0 or config.max_round_train_time == 0 or config.warmup_time >= config.epoch_time:
        return

    rounds = (config.epoch_time - config.warmup_time) // config.max_round_train_time
    if steps > rounds:
        rule = f"must be at most (epoch_time - warmup_time) / max_round_train_time = {rounds} rounds of one epoch"
        yield f"model.LLM.cold_start_warmup_steps = {steps}: {rule}"


def progress_problems(progress: ProgressConfig, total_steps: int | None) -> Iterator[str]:
    """Yield a sentence for each broken rule of `[progress]`. total_steps: None if `[config]` could not be read."""
    if progress.step == 0:
        yield "progress.step = 0: must be at least 1, the first step"
    if total_steps is not None and progress.step > max(total_steps, 1):
        yield f"progress.step = {progress.step}: must be at most total_steps ({total_steps}), else nothing is left to train"
    if progress.epoch_start_data_index > MAX_FIRST_SAMPLE:
        key = f"progress.epoch_start_data_index = {progress.epoch_start_data_index}"
        yield f"{key}: must be at most 2**62, so that the run cannot reach the end of the numbers of samples"
