"""Train from a script, in one call: a run of this process, or a part in somebody else's."""

from __future__ import annotations

import functools
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

if TYPE_CHECKING:
    from psyche_core.sdk.arguments import ClientArguments


def train(target: RunConfig | Address | str, **client: Unpack[ClientArguments]) -> Metrics:
    """Take part in a run until it ends, and return our last figures. Blocks; for scripts.

    Example:
        psyche.train(run, model=module, data=dataset, checkpoint_dir="checkpoints")

    target: a RunConfig to host in this process, with one client; or the address of a run that is hosted elsewhere. client: any
    argument of `Client`. The module that was given holds the run's weights afterwards.

    Raises RuntimeError inside a running event loop, such as a notebook's, where `await train_async(…)` is to be used; ConfigError
    for a RunConfig that waits for more than one client; and what `Client` and `Coordinator` raise. Ctrl-C leaves at once.
    """
    return blocking(functools.partial(train_async, target, **client), name="train")


async def train_async(target: RunConfig | Address | str, **client: Unpack[ClientArguments]) -> Metrics:
    """`train` for programs that have an event loop, and for notebooks. Cancelling it leaves the run without ceremony."""
    async with member_of(target, client) as member:
        await member.wait()
    return member.metrics


def blocking(work: Callable[[], Awaitable[Metrics]], *, name: str) -> Metrics:
    """Run it in an event loop of its own. name: of the public function, for who has one: RuntimeError says what to use there."""
    try:
        sniffio.current_async_library()
    except sniffio.AsyncLibraryNotFoundError:
        return anyio.run(work)

    message = (
        f"psyche.{name}() blocks and cannot run inside a running event loop, such as a notebook's; "
        f"write `await psyche.{name}_async(…)` with the same arguments"
    )
    raise RuntimeError(message)


@asynccontextmanager
async def member_of(target: RunConfig | Address | str, client: ClientArguments) -> AsyncIterator[Client]:
    """A client of a run, which is hosted here too where `target` is a RunConfig.

    Raises ConfigError for a RunConfig that waits for more than one client, PsycheError for a client that ended without success,
    and what `Client` and `Coordinator` raise.
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
