"""torch FSDP2 (`fully_shard`) over gloo on the CPU: parameters, gradients and AdamW's state divided among members."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from benchmarks.peers.task import Member, adamw, warmup

PATIENCE = timedelta(minutes=30)


def main() -> None:
    """See the module."""
    member = Member.from_command_line()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "eth0")
    world = member.task.members if member.rank < member.task.members else member.rank + 1
    dist.init_process_group("gloo", init_method=f"tcp://{member.meet}", rank=member.rank, world_size=world, timeout=PATIENCE)
    mesh = init_device_mesh("cpu", (world,))
    model: Any = member.model
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = adamw(model, member.task.rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, warmup(member.task))

    def whole() -> dict[str, Any]:
        return get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))

    for step in member.steps():
        optimizer.zero_grad()
        loss = member.gradients(step)
        member.clip()
        optimizer.step()
        schedule.step()
        member.told(step, loss)
        member.snapshot(step, whole)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
