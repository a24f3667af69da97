"""torch DistributedDataParallel over gloo, with or without one of torch's hooks that compress gradients.

settings: `hook` is none, fp16, bf16 or powersgd; `rank` is PowerSGD's.
"""

from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from benchmarks.peers.task import Member, adamw, warmup

PATIENCE = timedelta(minutes=30)
"""torch's own limit for a collective operation: without one it would wait for a lost member for ever."""

POWER_SGD_STEPS = 2
"""Whole gradients in the first steps; PowerSGD with error feedback needs this many, and torch's 1000 would be the whole run."""

ONE_BUCKET_MB = 1024
"""PowerSGD gets all gradients in one bucket. Of several, each begins its next exchange when its last one is done, in the order of
each member's own clock; gloo then joins exchanges that do not belong together, and the run dies."""


def main() -> None:
    """See the module."""
    member = Member.from_command_line()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "eth0")
    world = member.task.members if member.rank < member.task.members else member.rank + 1
    dist.init_process_group("gloo", init_method=f"tcp://{member.meet}", rank=member.rank, world_size=world, timeout=PATIENCE)
    bucket = ONE_BUCKET_MB if member.task.settings.get("hook") == "powersgd" else None
    model = (
        DistributedDataParallel(  # all begin with the same weights, so nobody has to send them; nothing in the buffers changes
            member.model, init_sync=False, broadcast_buffers=False, bucket_cap_mb=bucket
        )
    )
    add_hook(model, member.task.settings)
    optimizer = adamw(member.model, member.task.rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, warmup(member.task))
    for step in member.steps():
        optimizer.zero_grad()
        loss = member.gradients(step, model)
        member.clip()
        optimizer.step()
        schedule.step()
        member.told(step, loss)
        member.snapshot(step)
    dist.destroy_process_group()


def add_hook(model: DistributedDataParallel, settings: dict[str, object]) -> None:
    """Let a hook of torch's compress gradients on their way."""
    match settings.get("hook", "none"):
        case "fp16":
            model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        case "bf16":
            model.register_comm_hook(None, default_hooks.bf16_compress_hook)
        case "powersgd":
            state = powerSGD_hook.PowerSGDState(
                process_group=None,
                matrix_approximation_rank=settings["rank"],
                start_powerSGD_iter=POWER_SGD_STEPS,
                min_compression_rate=2,
            )
            model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


if __name__ == "__main__":
    main()
