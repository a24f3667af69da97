"""How memory and time of DisTrO's step fall with the ranks of one client, among which its optimizer is divided.

Real ranks: processes of this machine with one torch thread each, connected by gloo. The model is a Llama, divided by its
tensors; it computes nothing, gradients are random. Each number of ranks is measured in a process of its own; this file is also
its program.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.growth.curves import Curve, curve
from benchmarks.growth.optimizer import LEARNING_RATE, MB, TOPK, _random_payload
from psyche_core.builtin.hf_models import create_auto, divide
from psyche_core.config.run_config import Choice
from psyche_core.hookspecs import ModelContext, Parallelism
from psyche_core.models.sharding.controller import RankController
from psyche_core.models.sharding.dtensor import DTensorEngine
from psyche_core.training.build import build_optimizer
from psyche_core.training.malloc_tuning import give_back_memory
from psyche_optim_distro.hooks import psyche_register_optimizers

WIDTHS = {"4M": 256, "16M": 512, "64M": 1024}
RANKS, QUICK_RANKS = (1, 2, 4), (1, 2)
SENDERS = 8
TURNS = 7
"""Times that everything is measured; wall times are the least, processor times the mean."""


def measure(ranks: Sequence[int], size: str, *, say: Callable[[str], None]) -> dict[str, Any]:
    """Figures by number of ranks, as `_measured` describes them."""
    found = {}
    for count in ranks:
        say(f"ranks: {count} of {size} parameters")
        command = [sys.executable, "-m", "benchmarks.growth.ranks", str(count), "--size", size]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        found[str(count)] = json.loads(done.stdout)
    return found


def curves(found: dict[str, Any]) -> list[Curve]:
    """Each cost over ranks."""
    costs = (
        ("rank_0_mb", "memory of rank 0", "MB"),
        ("largest_other_mb", "memory of the largest other rank", "MB"),
        ("compress_ms", "compress, until rank 0 goes on", "ms"),
        ("apply_ms", "apply, until rank 0 goes on", "ms"),
        ("compress_cpu_ms", "compress, CPU of the busiest rank", "ms"),
        ("apply_cpu_ms", "apply, CPU of the busiest rank", "ms"),
    )
    return [
        curve(title, unit, "ranks", [(int(count), each[name]) for count, each in found.items() if each[name] is not None])
        for name, title, unit in costs
    ]


def _measured(ranks: int, size: str) -> dict[str, Any]:
    """What one number of ranks costs.

    rank_0_mb, largest_other_mb: highest resident memory of these processes while the optimizer is made and works, beyond what
    they had with the model and, on rank 0, its whole weights and gradients. compress_ms, apply_ms: until rank 0 goes on.
    compress_cpu_ms, apply_cpu_ms: processor time of the rank that takes most.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    parallelism = Parallelism(tensor=ranks, torch_threads=1)
    controller = RankController(parallelism, device_name="cpu") if ranks > 1 else None
    try:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(_config(WIDTHS[size])))
            context = ModelContext(
                source=Path(folder),
                max_seq_len=128,
                seed=bytes(32),
                device="cpu",
                parallelism=None if controller is None else parallelism,
                create_engine=DTensorEngine,
            )
            _steps(_optimizer(_model(context, controller)), [os.getpid()], 2)  # loads libraries, which are not measured
            model = _model(context, controller)  # ends the parts of the first optimizer
        others = [] if controller is None else list(controller.processes.values())
        processes = [os.getpid(), *others]
        gc.collect()
        give_back_memory()
        before = [_status(process, "VmRSS") for process in processes]
        for process in processes:
            (Path("/proc") / str(process) / "clear_refs").write_text("5")  # forgets the peak
        compress, apply = _steps(_optimizer(model), processes, TURNS + 3)
        used = [(_status(process, "VmHWM") - first) / MB for process, first in zip(processes, before, strict=True)]
    finally:
        if controller is not None:
            controller.close()
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters.values()),
        "rank_0_mb": round(used[0], 1),
        "largest_other_mb": round(max(used[1:]), 1) if others else None,
        "compress_ms": round(min(wall for wall, _ in compress[3:]), 1),
        "apply_ms": round(min(wall for wall, _ in apply[3:]), 1),
        "compress_cpu_ms": round(_most(compress[3:]), 1),
        "apply_cpu_ms": round(_most(apply[3:]), 1),
    }


def _model(context: ModelContext, controller: RankController | None) -> Any:
    model: Any = create_auto(context) if controller is None else divide(context, controller=controller)
    for parameter in model.parameters.values():
        parameter.grad = torch.randn_like(parameter)
    return model


def _optimizer(model: Any) -> Any:
    settings = {"compression_topk": TOPK, "quantize_1bit": True, "clip_grad_norm": 1.0}
    registration = psyche_register_optimizers()[0]
    return build_optimizer(lambda _kind, _name: registration, Choice(name="Distro", settings=settings), model, divided=True)


Costs = list[tuple[float, list[float]]]


def _steps(optimizer: Any, processes: Sequence[int], steps: int) -> tuple[Costs, Costs]:
    """What each compress and each apply of SENDERS checked payloads costs, as `_cost` says."""
    payloads = [_random_payload(optimizer, seed) for seed in range(SENDERS)]
    compress: Costs = []
    apply: Costs = []
    for step in range(1, steps + 1):
        for payload in payloads:
            optimizer.check(payload)
        work = partial(optimizer.apply, step - 2, payloads, learning_rate=LEARNING_RATE, own_accepted=False)
        apply.append(_cost(processes, work))
        optimizer.load_lookahead(learning_rate=LEARNING_RATE)
        compress.append(_cost(processes, partial(optimizer.compress, step, learning_rate=LEARNING_RATE)))
    return compress, apply


def _config(width: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 1024,
        "hidden_size": width,
        "intermediate_size": width * 11 // 4 // 64 * 64,
        "num_hidden_layers": 5,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "max_position_embeddings": 128,
        "tie_word_embeddings": False,
    }


def _cost(processes: Sequence[int], work: Callable[[], object]) -> tuple[float, list[float]]:
    """Wall time in milliseconds, and processor time of each process."""
    before = [_cpu_ms(process) for process in processes]
    began = time.perf_counter()
    work()
    wall = 1e3 * (time.perf_counter() - began)
    return wall, [_cpu_ms(process) - first for process, first in zip(processes, before, strict=True)]


def _most(costs: Sequence[tuple[float, list[float]]]) -> float:
    """The largest mean processor time of a process."""
    means: list[float] = [sum(times) / len(costs) for times in zip(*(times for _, times in costs), strict=True)]
    return max(means)


def _cpu_ms(process: int) -> float:
    fields = (Path("/proc") / str(process) / "stat").read_text().rpartition(")")[2].split()
    return 1e3 * (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _status(process: int, name: str) -> int:
    lines = (Path("/proc") / str(process) / "status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(f"{name}:"))
    return 1024 * int(line.split()[1])


def main() -> None:
    """Measure one number of ranks and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ranks", type=int)
    parser.add_argument("--size", choices=WIDTHS, default="64M")
    given = parser.parse_args()
    print(json.dumps(_measured(given.ranks, given.size)))


if __name__ == "__main__":
    main()
