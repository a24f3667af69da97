"""Options of `psyche train-local`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from psyche_core.config.options import common, groups
from psyche_core.config.options.shared import ComputeOptions, LogOptions, OtlpOptions


class TrainLocalSettings(LogOptions, OtlpOptions, ComputeOptions):
    """All options of `psyche train-local`."""

    state: Path | None = Field(
        default=None,
        json_schema_extra=groups.MODEL_AND_DATA,
        description="Run file (state.toml): its model, optimizer, learning rates and batch sizes are used.",
    )
    model: str | None = Field(
        default=None,
        json_schema_extra=groups.MODEL_AND_DATA,
        description="Instead of a run file: a model to train, as a folder or a repository of the Hub (owner/name). Needs --data.",
    )
    data: Path | None = Field(
        default=None,
        json_schema_extra=groups.MODEL_AND_DATA | {"aliases": ["--data-path"]},
        description="Token file or folder of them to train on, instead of the run's data_location.",
    )
    total_batch: int | None = Field(
        default=None,
        ge=1,
        le=65535,
        json_schema_extra=groups.TRAINING,
        description="With --model: sequences of each step.  [default: 8]",
    )
    sequence_length: int | None = Field(
        default=None,
        ge=1,
        json_schema_extra=groups.TRAINING | {"unit": "TOKENS"},
        description="With --model: length of a sequence.  [default: 2048]",
    )
    optimizer: str | None = Field(
        default=None,
        json_schema_extra=groups.TRAINING,
        description="With --model: AdamW, Distro, or another optimizer by plugin name.  [default: AdamW]",
    )
    learning_rate: float | None = Field(
        default=None,
        gt=0,
        json_schema_extra=groups.TRAINING,
        description="With --model: highest learning rate of a cosine schedule.  [default: 0.0004]",
    )
    warmup_steps: int | None = Field(
        default=None,
        ge=0,
        json_schema_extra=groups.TRAINING,
        description="With --model: steps of rising learning rate.  [default: a tenth of the steps]",
    )
    token_size: Literal["TwoBytes", "FourBytes"] = Field(
        default="TwoBytes", json_schema_extra=groups.MODEL_AND_DATA, description="Bytes per token of --data."
    )
    members: int = Field(
        default=1,
        ge=1,
        le=256,
        json_schema_extra=groups.TRAINING,
        description="Number of simulated members that divide each round's batch. They train one after the other in this process.",
    )
    steps: int | None = Field(
        default=None,
        ge=1,
        le=2**32 - 1,
        json_schema_extra=groups.TRAINING,
        description="Steps to train; default: the run's total_steps, or 500 with --model.",
    )
    validation_data: Path | None = Field(
        default=None,
        json_schema_extra=groups.EVALUATION,
        description="Held-out tokens for measuring the loss: a token file or a folder of them.",
    )
    validation_token_size: Literal["TwoBytes", "FourBytes"] = Field(
        default="TwoBytes", json_schema_extra=groups.EVALUATION, description="Bytes per held-out token."
    )
    validation_sequences: int = Field(
        default=64, ge=1, json_schema_extra=groups.EVALUATION, description="Number of held-out sequences for each measurement."
    )
    validation_every: int = Field(
        default=100, ge=1, json_schema_extra=groups.EVALUATION, description="Number of steps between measurements."
    )
    checkpoint_dir: Path | None = Field(
        default=None, json_schema_extra=groups.CHECKPOINTS, description="Folder to save the trained model in."
    )
    micro_batch_size: common.MicroBatchSize = Field(
        default=8, json_schema_extra=groups.COMPUTE | {"aliases": ["--micro-batch"]}, description=common.MICRO_BATCH_SIZE
    )
    cache_dir: Path | None = Field(
        default=None,
        json_schema_extra=groups.MODEL_AND_DATA,
        description="Folder for downloads; default: the system's cache folder.",
    )
    logs: common.Logs = Field(default="auto", json_schema_extra=groups.SCREEN, description=common.LOGS)
    optim_stats_steps: int | None = Field(default=None, ge=1, json_schema_extra=groups.TELEMETRY, description=common.OPTIM_STATS)
    tracker: common.TrackerNames = Field(default=(), json_schema_extra=groups.TELEMETRY, description=common.TRACKER)
    base: Path | None = Field(
        default=None,
        json_schema_extra=groups.MODEL_AND_DATA,
        description="Folder at which relative paths of the run file start; default: the run file's folder, or the current folder "
        "with --model.",
    )

    @property
    def run_base(self) -> Path:
        """Folder at which relative paths of the run file start."""
        if self.base is not None:
            return self.base
        if self.state is not None:
            return self.state.parent
        return Path(self.model).resolve().parent if self.model and Path(self.model).is_dir() else Path.cwd()
