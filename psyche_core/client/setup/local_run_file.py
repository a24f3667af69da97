"""The run that `psyche train-local` trains: a run file, or a run made from options.

Options need only a model and tokens. Everything else has defaults that are usual for a small model; a run file can set more.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from psyche_core.config.options.train_local import TrainLocalSettings
from psyche_core.config.run_config import RunFile, checked_run, load_run_file
from psyche_core.errors import ConfigError

SEQUENCE_LENGTH = 2048
TOTAL_BATCH = 8
STEPS = 500
LEARNING_RATE = 4e-4
OPTIMIZER = "AdamW"
_LONG = 2**31  # seconds: in a local run nothing waits for a clock
_DISTRO = {
    "clip_grad_norm": 1.0,
    "compression_decay": 0.999,
    "compression_chunk": 64,
    "compression_topk": 8,
    "quantize_1bit": True,
}
_OF_A_RUN = ("total_batch", "sequence_length", "optimizer", "learning_rate", "warmup_steps")


def local_run_file(settings: TrainLocalSettings) -> RunFile:
    """Load or make the run. Raises ConfigError, also if the options name both a run file and a model, or neither."""
    if settings.state is not None:
        given = [name for name in ("model", *_OF_A_RUN) if getattr(settings, name) is not None]
        if given:
            names = ", ".join("--" + name.replace("_", "-") for name in given)
            message = f"{names}: the run file {settings.state} says that; change the file, or leave out --state"
            raise ConfigError(message)
        return load_run_file(settings.state)
    if settings.model is None:
        message = "give a run file with --state FILE, or a model with --model REPOSITORY or --model FOLDER"
        raise ConfigError(message)
    if settings.data is None:
        message = "--model needs the tokens to train on: --data-path FOLDER (`psyche data tokenize` makes some)"
        raise ConfigError(message)

    return checked_run(_tables(settings, settings.model), source="the options")


def _tables(settings: TrainLocalSettings, model: str) -> dict[str, Any]:
    steps = settings.steps or STEPS
    batch = settings.total_batch or TOTAL_BATCH
    warmup = settings.warmup_steps if settings.warmup_steps is not None else steps // 10
    rate = settings.learning_rate or LEARNING_RATE
    name = settings.optimizer or OPTIMIZER
    return {
        "run_id": "train-local",
        "config": {
            "warmup_time": 1,
            "cooldown_time": 1,
            "max_round_train_time": 1,
            "round_witness_time": 1,
            "epoch_time": _LONG,
            "global_batch_size_start": batch,
            "global_batch_size_end": batch,
            "global_batch_size_warmup_tokens": 0,
            "total_steps": steps,
            "init_min_clients": 1,
            "min_clients": 1,
            "witness_nodes": 0,
            "verification_percent": 0,
        },
        "model": {
            "LLM": {
                "architecture": "HfAuto",
                "data_type": "Pretraining",
                "max_seq_len": settings.sequence_length or SEQUENCE_LENGTH,
                "checkpoint": {"Hub": {"repo_id": Path(model).resolve().name if Path(model).is_dir() else model}},
                "data_location": "Dummy",  # --data gives the location of the tokens
                "lr_schedule": {
                    "Cosine": {
                        "base_lr": rate,
                        "warmup_init_lr": 0.0,
                        "warmup_steps": warmup,
                        "total_steps": max(steps, warmup + 1),
                        "final_lr": rate / 10,
                    }
                },
                "optimizer": {name: dict(_DISTRO)} if name == "Distro" else name,
            }
        },
    }
