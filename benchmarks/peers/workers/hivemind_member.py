"""hivemind.Optimizer: gradients of all members are averaged once they have trained `target_batch_size` sequences together.

meet: the address (libp2p) of a peer of its DHT, see hivemind_meeting. settings: `accumulate`, how many steps' sequences make one
update; `matchmaking`, seconds in which members find their group. The progress file counts local steps.
"""

from __future__ import annotations

import time
from typing import Any

import hivemind
import torch
from hivemind.compression import Float16Compression

from benchmarks.peers.task import Member, groups, warmup


class ClippedAdamW(torch.optim.AdamW):
    """AdamW that clips what was averaged, as everybody else does."""

    def step(self, closure: Any = None) -> Any:
        """Clip, then AdamW's own."""
        torch.nn.utils.clip_grad_norm_([tensor for group in self.param_groups for tensor in group["params"]], 1.0)
        return super().step(closure)


def main() -> None:
    """See the module."""
    member = Member.from_command_line()
    task, settings = member.task, member.task.settings
    accumulate = int(settings["accumulate"])
    dht = hivemind.DHT(
        host_maddrs=[f"/ip4/{member.address}/tcp/0"],
        initial_peers=[member.meet],
        start=True,
        use_relay=False,
        use_auto_relay=False,
    )
    optimizer = hivemind.Optimizer(
        dht=dht,
        run_id="peers",
        target_batch_size=task.members * task.sequences * accumulate,
        batch_size_per_step=task.sequences,
        params=groups(member.model, task.rate),
        optimizer=lambda parameters: ClippedAdamW(parameters, lr=task.rate, betas=(0.9, 0.95), weight_decay=0.1),
        scheduler=lambda made: torch.optim.lr_scheduler.LambdaLR(made, lambda done: warmup(task)(done * accumulate)),
        matchmaking_time=float(settings["matchmaking"]),
        averaging_timeout=120.0,
        grad_compression=Float16Compression(),
        state_averaging_compression=Float16Compression(),
        average_state_every=int(settings["average_state_every"]),
        tracker_opts={"min_refresh_period": 0.1, "default_refresh_period": 0.5},
    )
    optimizer.load_state_from_peers()  # a late member gets the others' weights; the first find nobody
    step, last = 0, 0
    while optimizer.local_epoch * accumulate < task.steps:
        step += 1
        loss = member.gradients(step)
        optimizer.step()
        optimizer.zero_grad()
        member.told(step, loss, update=optimizer.local_epoch)
        reached = optimizer.local_epoch * accumulate
        if reached // task.every > last // task.every:
            member.snapshot(reached // task.every * task.every)
        last = reached
    time.sleep(float(settings["matchmaking"]))  # the others may still average with us
    optimizer.shutdown()
    dht.shutdown()


if __name__ == "__main__":
    main()
