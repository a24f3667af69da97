"""Train from a script in one call: host a run in this process, or take part in a run hosted elsewhere."""

from __future__ import annotations

import functools
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Unpack

import anyio
import sniffio

from psyche_core.errors import ConfigError, PsycheError
from psyche_core.sdk.address import Address
from psyche_core.sdk.client import Client
from psyche_core.sdk.coordinator import Coordinator
from psyche_core.sdk.metrics import Metrics
from psyche_core.sdk.run_config import RunConfig
from psyche_core.telemetry import events

if TYPE_CHECKING:
    from psyche_core.sdk.argument_types import ClientArguments

_ATTEMPTS = 3
"""Number of shares in a row that an only member may fail to train. Each can take a whole round."""

_NOT_TRAINED = re.compile(r"step \d+ was not trained: (?P<why>.*)", re.DOTALL)
"""Matches the message of the Problem event for a share that was not trained (see `client.runtime.worker`)."""


def train(target: RunConfig | Address | str, **client: Unpack[ClientArguments]) -> Metrics:
    """Take part in a run until it ends, and return our last figures. Blocks; for scripts.

    Example:
        psyche.train(run, model=module, data=dataset, checkpoint_dir="checkpoints")

    target: a RunConfig to host in this process, with one client; or the address of a run that is hosted elsewhere. client: any
    argument of `Client`. The given module holds the run's weights afterwards.

    Raises RuntimeError inside a running event loop, such as a notebook's: use `await train_async(…)` there. Raises ConfigError
    for a RunConfig that waits for more than one client, PsycheError if this client is the only member and could not train three
    shares in a row, and the errors of `Client` and `Coordinator`. Ctrl-C stops at once. Problems that do not end it appear on
    standard error, see `Client`.
    """
    return blocking(functools.partial(train_async, target, **client), name="train")


async def train_async(target: RunConfig | Address | str, **client: Unpack[ClientArguments]) -> Metrics:
    """`train` for programs that have an event loop, and for notebooks. If cancelled, it does not leave the run cleanly."""
    async with member_of(target, client) as member:
        async for _ in followed(member):
            pass
    return member.metrics


def blocking(work: Callable[[], Awaitable[Metrics]], *, name: str) -> Metrics:
    """Run `work` in a new event loop.

    name: name of the public function. Raises RuntimeError inside a running event loop; the message names the function to use
    there.
    """
    try:
        sniffio.current_async_library()
    except sniffio.AsyncLibraryNotFoundError:
        return anyio.run(work)

    message = (
        f"psyche.{name}() blocks and cannot run inside a running event loop, such as a notebook's; "
        f"write `await psyche.{name}_async(…)` with the same arguments"
    )
    raise RuntimeError(message)


async def followed(member: Client) -> AsyncIterator[events.Event]:
    """A client's events. Raises the error that ended the client, and PsycheError if no member can train: see `train`."""
    failed = 0
    async for event in member.events():
        if isinstance(event, events.StepTrained):
            failed = 0
        elif isinstance(event, events.Problem) and (found := _NOT_TRAINED.fullmatch(event.message)):
            failed += 1
            if failed >= _ATTEMPTS and _is_alone(member):
                message = f"{failed} steps in a row could not be trained, and no other member could: {found['why']}"
                raise PsycheError(message)
        yield event


def _is_alone(member: Client) -> bool:
    state = member.state
    return state is not None and len(state.epoch.clients) == 1


@asynccontextmanager
async def member_of(target: RunConfig | Address | str, client: ClientArguments) -> AsyncIterator[Client]:
    """A client of a run. If `target` is a RunConfig, the run is hosted here, too.

    Raises ConfigError for a RunConfig that waits for more than one client, PsycheError for a client that ended without success,
    and the errors of `Client` and `Coordinator`.
    """
    async with AsyncExitStack() as stack:
        address = target
        if isinstance(target, RunConfig):
            wanted = target.config.init_min_clients
            if wanted > 1:
                message = (
                    f"train() hosts a run with one client, and run {target.run_id} waits for {wanted}; set clients=1, or use "
                    "psyche.Coordinator and one psyche.Client for each"
                )
                raise ConfigError(message)
            address = (await stack.enter_async_context(Coordinator(target))).address
        assert not isinstance(address, RunConfig)
        member = await stack.enter_async_context(Client(address, **client))
        yield member
        ended = await member.wait()
    if not ended.success:
        raise PsycheError(ended.reason)
