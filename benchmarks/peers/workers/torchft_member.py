"""torchft: each member is a replica group of its own, and a lighthouse at `meet` says who takes part.

settings: `method` is diloco or localsgd; `every`, inner steps from one synchronisation to the next; `outer_rate`, DiLoCo's of the
outer step. Values are sent as float32: torchft's eight bits need a GPU.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torchft import Manager, ProcessGroupGloo
from torchft.local_sgd import DiLoCo, LocalSGD

from benchmarks.peers.task import Member, adamw, warmup

PATIENCE = timedelta(minutes=20)
"""Of everything in torchft that waits: its minute ends a synchronisation over a slow line before it is done."""

NOTICED = timedelta(seconds=600)
"""After this time a collective operation is given up, with whoever does not answer."""


def main() -> None:
    """See the module."""
    member = Member.from_command_line()
    task, settings = member.task, member.task.settings
    inner = adamw(member.model, task.rate)
    outer = torch.optim.SGD(member.model.parameters(), lr=float(settings.get("outer_rate", 0.7)), momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(inner, warmup(task))

    def state() -> dict[str, Any]:
        return {"model": member.model.state_dict(), "inner": inner.state_dict(), "outer": outer.state_dict()}

    def load(given: dict[str, Any]) -> None:
        member.model.load_state_dict(given["model"])
        inner.load_state_dict(given["inner"])
        outer.load_state_dict(given["outer"])

    store: Any = dist.TCPStore(  # type: ignore[attr-defined]  # not in its __all__
        host_name=member.address, port=0, is_master=True, wait_for_workers=False
    )
    manager = Manager(
        pg=ProcessGroupGloo(timeout=NOTICED),
        load_state_dict=load,
        state_dict=state,
        min_replica_size=1,
        use_async_quorum=False,
        timeout=NOTICED,
        quorum_timeout=PATIENCE,
        connect_timeout=timedelta(seconds=60),
        rank=0,
        world_size=1,
        store_addr=member.address,
        store_port=store.port,
        lighthouse_addr=f"http://{member.meet}",
        replica_id=f"member_{member.rank}",
        hostname=member.address,
        init_sync=False,  # all begin with the same weights; a late member is sent the others'
    )
    every = int(settings["every"])
    synchronised: Any = (
        DiLoCo(manager, [member.model], inner, outer, sync_every=every, pin_memory=False, use_bucketization=True)
        if settings["method"] == "diloco"
        else LocalSGD(manager, member.model, inner, sync_every=every)
    )
    with synchronised:
        for step in member.steps():
            inner.zero_grad()
            loss = member.gradients(step)
            member.clip()
            inner.step()
            schedule.step()
            member.told(step, loss)
            member.snapshot(step)
    manager.shutdown(wait=False)


if __name__ == "__main__":
    main()
