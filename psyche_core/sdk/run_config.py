"""A run's configuration for programs: read from a file, or made from a few arguments.

Names are those of `state.toml`: arguments fill the same tables and are checked by the same rules. The default times suit members
in one program or one network. For a run over the internet, use a file, which sets all of them.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from psyche_core.config.run_config import CoordinatorConfig, ModelConfig, RunFile, checked_run, load_run_file
from psyche_core.coordinator import new_state
from psyche_core.coordinator.state import CoordinatorState, Progress
from psyche_core.plugin_objects import IN_CODE
from psyche_core.sdk.arguments.checks import mapping_of, path_of

_TIMES: Mapping[str, int] = MappingProxyType(
    {
        "warmup_time": 60,
        "cooldown_time": 1,
        "max_round_train_time": 60,
        "round_witness_time": 2,
        "epoch_time": 600,
        "waiting_for_members_extra_time": 1,
    }
)
"""Seconds. The witness time is an upper limit: a round ends as soon as all witnesses have sent their statements."""


class RunConfig:
    """The configuration of a run, the same for all members. Immutable.

    Example:
        run = psyche.RunConfig("mine", total_steps=100, sequence_length=128, batch_size=16, learning_rate=1e-3)

    Raises ConfigError with one sentence for each broken rule. Guaranteed: a RunConfig is valid. Not guaranteed: that its plugins
    are installed; each client checks that itself.

    Args:
        run_id: name, 1 to 32 bytes of UTF-8.
        total_steps: steps to train.
        sequence_length: tokens per sample.
        batch_size: sequences per step, trained by all members together.
        learning_rate: constant, dimensionless, after `lr_warmup_steps`; or a schedule as in `lr_schedule` of a run file.
        clients: minimum number of members; with fewer the run waits.
        steps_per_epoch: members join, leave and save between epochs.
        optimizer: a plugin's name, or `{name: settings}`, as `optimizer` of a run file.
        model: the same, as `architecture` of a run file. If it is left out, every client gives an object for it.
        data: the same, as `data_location` of a run file. If it is left out, every client gives an object for it.
        checkpoint: the same, as `checkpoint` of a run file.
        config: further keys of `[config]`, which override all other arguments.
        base: folder that relative paths start from; the current folder if not given.
    """

    __slots__ = ("_base", "_file")

    def __init__(
        self,
        run_id: str,
        *,
        total_steps: int,
        sequence_length: int,
        batch_size: int,
        learning_rate: float | Mapping[str, Any],
        lr_warmup_steps: int = 0,
        clients: int = 1,
        steps_per_epoch: int = 0,
        optimizer: str | Mapping[str, Any] = "AdamW",
        model: str = IN_CODE,
        data: str | Mapping[str, Any] = IN_CODE,
        checkpoint: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        base: Path | str | None = None,
    ) -> None:
        mapping_of("config", config, of="keys of a run file's [config]")
        folder = path_of("base", base)
        schedule = learning_rate
        if not isinstance(learning_rate, Mapping):
            constant = {"base_lr": learning_rate, "warmup_init_lr": 0.0, "warmup_steps": lr_warmup_steps}
            schedule = {"Constant": constant}
        tables = {
            "run_id": run_id,
            "config": {
                **_TIMES,
                "total_steps": total_steps,
                "rounds_per_epoch": steps_per_epoch,
                "init_min_clients": clients,
                "min_clients": clients,
                "witness_nodes": 0,
                "global_batch_size_start": batch_size,
                "global_batch_size_end": batch_size,
                "global_batch_size_warmup_tokens": 0,
                "verification_percent": 0,
                **(config or {}),
            },
            "model": {
                "LLM": {
                    "architecture": model,
                    "data_type": "Pretraining",
                    "max_seq_len": sequence_length,
                    "cold_start_warmup_steps": 0,
                    "checkpoint": checkpoint or {"Hub": {"repo_id": "in-code"}},
                    "data_location": data,
                    "lr_schedule": schedule,
                    "optimizer": optimizer,
                }
            },
        }
        self._file = checked_run(tables, source="RunConfig")
        self._base = folder or Path()

    @classmethod
    def from_file(cls, file: RunFile, *, base: Path) -> Self:
        """Make a RunConfig from tables that were read and checked. base: folder that their relative paths start from."""
        made = cls.__new__(cls)
        made._file, made._base = file, base
        return made

    @property
    def run_id(self) -> str:
        """The run's name."""
        return self._file.run_id

    @property
    def base(self) -> Path:
        """Folder that relative paths start from."""
        return self._base

    @property
    def config(self) -> CoordinatorConfig:
        """`[config]`: times in seconds, batch sizes in sequences, numbers of members."""
        return self._file.config

    @property
    def model(self) -> ModelConfig:
        """`[model]`: architecture, data, optimizer, learning rates."""
        return self._file.model

    def first_state(self) -> CoordinatorState:
        """The first state of a coordinator of this run; each call returns a state with a new instance id."""
        progress = self._file.progress
        return new_state(
            self.run_id,
            self.config,
            self.model,
            progress=Progress(progress.epoch, progress.step, progress.epoch_start_data_index),
            now=int(time.time()),
            instance=secrets.token_bytes(32),
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunConfig) and (self._file, self._base) == (other._file, other._base)

    def __hash__(self) -> int:
        return hash((self.run_id, self._base))

    def __repr__(self) -> str:
        return f"RunConfig({self.run_id!r}, total_steps={self.config.total_steps})"


def load_run(path: Path | str) -> RunConfig:
    """Read and check a run file (`state.toml`). Relative paths in it start at its folder. Blocks for a short time.

    Raises ConfigError with every problem, one sentence per line, and also if the file cannot be read.
    """
    what: object = path
    if not isinstance(what, Path | str):
        message = f"load_run takes the path of a run file, got a {type(what).__name__}"
        raise TypeError(message)

    path = Path(path)
    return RunConfig.from_file(load_run_file(path), base=path.absolute().parent)
