"""Follows the coordinator's states, and acts on what they mean for this machine's network and for people.

`runtime` passes the states to the client machine, which decides what they mean in the protocol. Requests to the coordinator are
in `coordinator_requests`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping

import anyio
from anyio.abc import TaskGroup

from psyche_core.client.machine.events import StateSeen
from psyche_core.client.runtime.coordinator_requests import CoordinatorRequests
from psyche_core.client.runtime.event_queue import EventQueue
from psyche_core.client.runtime.reports.fetch_times import FetchTimes
from psyche_core.client.runtime.reports.run_changes import RunChanges
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.errors import BackendError, PluginFailed
from psyche_core.interfaces import Backend, Transport
from psyche_core.telemetry import events as telemetry
from psyche_core.types import RunState

logger: logging.Logger = logging.getLogger("psyche.client")


class StateWatch:
    """Follows the states of one run's coordinator.

    connect: awaited with the members' transport addresses by signer when they have changed. apply_failure: returns why our own
    optimizer made our master weights unusable, None if they are usable. follow: called with each state, for displays; must not
    block. explain: returns one sentence about an unexpected exception.

    relays_used: set once the transport has the run's relays. Joining waits for it, so that our first address names our relay.
    """

    def __init__(
        self,
        backend: Backend,
        transport: Transport,
        requests: CoordinatorRequests,
        *,
        queue: EventQueue,
        changes: RunChanges,
        times: FetchTimes,
        connect: Callable[[Mapping[bytes, bytes]], Awaitable[None]],
        apply_failure: Callable[[], str | None],
        report: Callable[[telemetry.Event], None],
        follow: Callable[[CoordinatorState], None] | None,
        explain: Callable[[BaseException], str],
    ) -> None:
        self.relays_used: anyio.Event = anyio.Event()
        self._backend = backend
        self._transport = transport
        self._requests = requests
        self._queue = queue
        self._changes = changes
        self._times = times
        self._connect = connect
        self._apply_failure = apply_failure
        self._report = report
        self._follow = follow
        self._explain = explain
        self._addresses: Mapping[bytes, bytes] = {}
        self._relays: tuple[str, ...] | None = None
        self._loss_reported = False

    async def run(self, tasks: TaskGroup) -> None:
        """Follow until the backend has no more states. Raises BackendError if the run was not finished by then; PluginFailed."""
        finished = False
        try:
            while True:
                update = await self._backend.next_state()
                self._requests.note_answer()
                finished = update.state.run_state is RunState.Finished
                if update.all_relays != self._relays:
                    self._relays = update.all_relays
                    tasks.start_soon(self._use_relays, self._relays)
                if dict(update.addresses) != self._addresses:
                    self._addresses = dict(update.addresses)
                    await self._connect(self._addresses)
                if self._follow is not None:
                    self._follow(update.state)
                for told in self._changes.see(update.state):
                    self._report(told)
                fetched = self._times.see(update.state, now=anyio.current_time())
                if fetched is not None:
                    self._report(fetched)
                self._report_loss(update.state)
                await self._queue.put(StateSeen(update.state))
        except BackendError:
            if not finished:  # a server may close after the last state
                raise

    def _report_loss(self, state: CoordinatorState) -> None:
        """Report once that no member has the model, however long the run waits for its owner.

        Raises PluginFailed if our own optimizer made our master weights unusable, because it would do so again.
        """
        if state.model_lost and not self._loss_reported:
            self._loss_reported = True
            self._report(telemetry.ModelLost(state.progress.step - 1, to_owner=False))
            failure = self._apply_failure()
            if failure is not None:
                message = (
                    f"{failure}; no other member could apply them either, so the run cannot go on and this client stops: "
                    "mend the plugin or its settings, then start the client again"
                )
                raise PluginFailed(message)
        self._loss_reported = state.model_lost

    async def _use_relays(self, relays: tuple[str, ...]) -> None:
        """Pass the run's relays to the transport."""
        try:
            await self._transport.use_relays(relays)
        except Exception as error:  # without relays the run continues with the members that we reach directly
            logger.warning("the run's relays cannot be used: %s", self._explain(error))
        finally:
            self.relays_used.set()
