"""The thread in which the node runs, and calls to it from the event loop.

LiteSVM must be used from one thread and a call takes up to milliseconds, so all calls wait in one queue. Notifications that a
call causes are passed to the event loop before the call's own result, in order of their creation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from psyche_backend_solana.localnet.serving.node import Node

P = ParamSpec("P")
T = TypeVar("T")
Deliver = Callable[[list[tuple[int, str]]], None]


class Engine:
    """Runs functions in the node's thread. deliver: called in the event loop with the messages for connections."""

    def __init__(self, deliver: Deliver) -> None:
        self._deliver = deliver
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="psyche-localnet")
        self._node: Node | None = None

    async def start(self, make: Callable[[], Node]) -> None:
        """Create the node in its thread."""
        self._node = await asyncio.get_running_loop().run_in_executor(self._executor, make)

    @property
    def node(self) -> Node:
        """The node, only to pass its methods to `call`. Do not call them from another thread."""
        assert self._node is not None, "the engine was not started"
        return self._node

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function and return its result. Cancelling the caller does not stop a function that has started."""
        loop = asyncio.get_running_loop()

        def work() -> T:
            try:
                return function(*args, **kwargs)
            finally:
                outgoing = self.node.take_outgoing()
                if outgoing:
                    loop.call_soon_threadsafe(self._deliver, outgoing)

        return await loop.run_in_executor(self._executor, work)

    async def aclose(self) -> None:
        """Wait for queued calls, and end the thread; idempotent."""

        def drop() -> None:
            self._node = None

        try:
            await asyncio.get_running_loop().run_in_executor(self._executor, drop)
        except RuntimeError:  # closed before
            return

        self._executor.shutdown(wait=False)
