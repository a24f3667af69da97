"""A member that trains by itself and talks to nobody: what computing alone takes, with as many neighbours on the machine."""

from __future__ import annotations

import torch

from benchmarks.peers.task import Member, adamw, warmup


def main() -> None:
    """See the module."""
    member = Member.from_command_line()
    optimizer = adamw(member.model, member.task.rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, warmup(member.task))
    for step in member.steps():
        optimizer.zero_grad()
        loss = member.gradients(step)
        member.clip()
        optimizer.step()
        schedule.step()
        member.told(step, loss)
        member.snapshot(step)


if __name__ == "__main__":
    main()
