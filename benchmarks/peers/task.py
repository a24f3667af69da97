"""What every system trains: the same Llama from the same first weights, the same tokens by step and rank, one schedule.

Nothing here imports psyche_core, so that workers can use it in environments without it: torch, transformers and numpy only. The
orchestrator writes a folder with `prepare`; a worker reads it with `Member.from_command_line`, and tells its progress in a file
of its own:

    {"what": "step", "step": 3, "time": 1790000000.1, "loss": 6.1, "sequences": 6, "busy": 0.9, "cpu": 0.9, ...}
    {"what": "weights", "step": 3, "time": 1790000000.2, "file": "weights-3.pt", "seconds": 0.1}

time: unix seconds, at the end of the step. loss: of the member's own sequences, nats a token, before the step. busy and cpu: wall
and processor seconds in forward and backward. step: counted from 1.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

VALIDATION_SEQUENCES = 64
REFERENCE_WIDTH = 128
"""The rate of matrices and of the head is multiplied by this over the model's width, as in the run files of our examples."""

REST_FACTOR = 6.25
"""How much larger the rates of head, embedding and norms are than that of matrices: tuned for AdamW (benchmarks.convergence)."""


@dataclass(frozen=True, slots=True)
class Task:
    """What a cell trains.

    members: that begin. sequences: of each in a step. rate: of matrices, at width 128. warmup: steps of a linearly rising rate,
    which is constant afterwards. every: steps from one snapshot of the weights to the next. settings: of one system.
    """

    folder: str
    members: int
    sequences: int
    sequence_length: int
    steps: int
    rate: float
    warmup: int
    every: int
    settings: dict[str, Any]

    def save(self, file: Path) -> None:
        """Write it for `load`."""
        file.write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, file: Path) -> Task:
        """Read what `save` wrote."""
        return cls(**json.loads(file.read_text()))


def prepare(
    folder: Path, config: dict[str, Any], *, training: NDArray[np.uint16], validation: NDArray[np.uint16], seed: int = 0
) -> int:
    """Write model and tokens into a folder and return the number of parameters. config: as in a model's config.json."""
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # type: ignore[no-untyped-call]  # bars of a second fill whatever log this goes to
    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(**{key: value for key, value in config.items() if key not in ("architectures", "dtype")})
    )
    (folder / "model").mkdir(parents=True)
    model.save_pretrained(folder / "model")
    for name, tokens in (("training", training), ("validation", validation)):
        (folder / name).mkdir()
        tokens.astype("<u2").tofile(folder / name / "tokens.bin")
    return sum(parameter.numel() for parameter in model.parameters())


def load_model(folder: Path) -> torch.nn.Module:
    """The model with its first weights, float32."""
    from transformers import LlamaForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # type: ignore[no-untyped-call]
    model: torch.nn.Module = LlamaForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    model.train()
    return model


def rows(file: Path, sequence_length: int) -> NDArray[np.uint16]:
    """All whole sequences of a token file (sequences, sequence_length), mapped."""
    tokens = np.memmap(file, dtype="<u2", mode="r")
    return tokens[: tokens.size // sequence_length * sequence_length].reshape(-1, sequence_length)


def places(task: Task, *, step: int, rank: int, count: int) -> NDArray[np.int64]:
    """Numbers of the sequences of a step and rank in an order shuffled once for everybody. A late member has the last rank."""
    order = np.random.default_rng(0).permutation(count)
    first = ((step - 1) * (task.members + 1) + rank) * task.sequences
    return order[np.arange(first, first + task.sequences) % count]


def loss_of(model: Callable[..., Any], sequences: torch.Tensor) -> torch.Tensor:
    """Mean loss in nats a predicted token. sequences: int64 (sequences, length)."""
    loss: torch.Tensor = model(input_ids=sequences, labels=sequences, use_cache=False).loss
    return loss


@torch.no_grad()
def validation_loss(model: torch.nn.Module, folder: Path, sequence_length: int) -> float:
    """Loss on the first held-out sequences, in nats a token."""
    held_out = torch.from_numpy(
        rows(folder / "validation" / "tokens.bin", sequence_length)[:VALIDATION_SEQUENCES].astype(np.int64)
    )
    model.eval()
    parts = [held_out[first : first + 8] for first in range(0, len(held_out), 8)]
    losses = [float(loss_of(model, part)) * len(part) for part in parts]
    model.train()
    return sum(losses) / len(held_out)


def factor_of(name: str, width: int) -> float:
    """The factor of the rate for a tensor of that name."""
    by_width = REFERENCE_WIDTH / width
    if "lm_head" in name:
        return REST_FACTOR * by_width
    return REST_FACTOR if "embed" in name or "norm" in name else by_width


def groups(model: torch.nn.Module, rate: float) -> list[dict[str, Any]]:
    """Parameter groups for a torch optimizer, one for each factor of the rate."""
    named = dict(model.named_parameters())
    width = next(parameter.shape[-1] for name, parameter in named.items() if "embed" in name)
    by_factor: dict[float, list[torch.nn.Parameter]] = {}
    for name, parameter in named.items():
        by_factor.setdefault(factor_of(name, width), []).append(parameter)
    return [{"params": parameters, "lr": rate * factor} for factor, parameters in by_factor.items()]


def adamw(model: torch.nn.Module, rate: float) -> torch.optim.AdamW:
    """AdamW as everybody but DisTrO uses it."""
    return torch.optim.AdamW(groups(model, rate), lr=rate, betas=(0.9, 0.95), weight_decay=0.1)


def warmup(task: Task) -> Callable[[int], float]:
    """The factor of the rate by number of finished steps, for LambdaLR."""
    return lambda done: min(1.0, (done + 1) / max(1, task.warmup))


class Member:
    """One member's side of the task: batches, gradients, and the file of progress.

    address: of this member. meet: HOST:PORT at which members meet, of the first member or of a service.
    """

    def __init__(self, task: Task, *, rank: int, address: str, meet: str, progress: Path) -> None:
        torch.set_num_threads(1)
        self.task = task
        self.rank = rank
        self.address = address
        self.meet = meet
        self.folder = Path(task.folder)
        self.model = load_model(self.folder)
        self._rows = rows(self.folder / "training" / "tokens.bin", task.sequence_length)
        self._progress = progress
        self._busy = self._cpu = 0.0

    @classmethod
    def from_command_line(cls) -> Member:
        """The member that the orchestrator's arguments describe."""
        parser = argparse.ArgumentParser()
        parser.add_argument("--task", type=Path, required=True)
        parser.add_argument("--rank", type=int, required=True)
        parser.add_argument("--address", required=True)
        parser.add_argument("--meet", required=True)
        parser.add_argument("--progress", type=Path, required=True)
        given = parser.parse_args()
        return cls(Task.load(given.task), rank=given.rank, address=given.address, meet=given.meet, progress=given.progress)

    def batch(self, step: int) -> torch.Tensor:
        """The sequences of a step, int64 (sequences, length)."""
        chosen = places(self.task, step=step, rank=self.rank, count=len(self._rows))
        return torch.from_numpy(self._rows[chosen].astype(np.int64))

    def gradients(self, step: int, model: Callable[..., Any] | None = None) -> float:
        """Forward and backward of a step's batch; returns the loss. model: what wraps ours, where something does."""
        sequences = self.batch(step)
        wall, cpu = time.perf_counter(), time.thread_time()
        loss = loss_of(self.model if model is None else model, sequences)
        loss.backward()  # type: ignore[no-untyped-call]
        value = float(loss.detach())
        self._busy, self._cpu = time.perf_counter() - wall, time.thread_time() - cpu
        if not math.isfinite(value):
            message = f"the loss of step {step} is {value}"
            raise SystemExit(message)
        return value

    def told(self, step: int, loss: float, *, update: int | None = None) -> None:
        """The step whose gradients came last is done. update: how often weights have changed, if not at each step."""
        figures = {"sequences": self.task.sequences, "busy": self._busy, "cpu": self._cpu, "update": update}
        self._write(what="step", step=step, loss=loss, **figures)

    def clip(self) -> None:
        """Scale the gradients down to a norm of 1, as our run files do."""
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)

    def snapshot(self, step: int, state: Callable[[], dict[str, Any]] | None = None) -> None:
        """Write the weights after a step, where it is one of `every`; the first member only. state: what gives them."""
        if step % self.task.every and step != self.task.steps:
            return
        began = time.perf_counter()
        values = (state or self.model.state_dict)()
        if self.rank:
            return
        moment = time.time()
        file = self._progress.with_name(f"weights-{step}.pt")
        torch.save(values, file)
        self._write(what="weights", step=step, moment=moment, file=file.name, seconds=time.perf_counter() - began)

    def steps(self) -> Iterator[int]:
        """All steps of the task, from 1."""
        yield from range(1, self.task.steps + 1)

    def _write(self, *, moment: float | None = None, **values: object) -> None:
        line = json.dumps({**values, "time": time.time() if moment is None else moment}) + "\n"
        descriptor = os.open(self._progress, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line.encode())  # at once: whoever is killed leaves whole lines
        finally:
            os.close(descriptor)
