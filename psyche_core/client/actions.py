"""The interface that a client machine's surroundings implement: one method for each action, and the only dispatcher of actions.

The runtime carries actions out with real I/O, the simulator in virtual time. If an action is added to `events.Action`, the type
checker reports that `carry_out` does not handle it, and Python refuses to instantiate a class without the new method.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar, assert_never

from psyche_core.client.machine import events as ev

Outcome = TypeVar("Outcome")
"""The result of carrying out an action: None in virtual time, an awaitable with real I/O."""


class Actions(ABC, Generic[Outcome]):
    """Carries out the actions of one machine. The docstring of each action in `events` says how it is answered."""

    def carry_out(self, action: ev.Action) -> Outcome:
        """Call the action's method."""
        match action:  # the most frequent first
            case ev.FetchPayload():
                return self._fetch_payload(action)
            case ev.Tell():
                return self._tell(action)
            case ev.Broadcast():
                return self._broadcast(action)
            case ev.Send():
                return self._send(action)
            case ev.Train() | ev.Apply() | ev.Digest():
                return self._work(action)
            case ev.KeepResults():
                return self._keep_results(action)
            case ev.Prefetch():
                return self._prefetch(action)
            case ev.Remind():
                return self._remind(action)
            case ev.Expire():
                return self._expire(action)
            case ev.SetPeers():
                return self._set_peers(action)
            case ev.Join():
                return self._join(action)
            case ev.Load() | ev.CloseEpoch() | ev.TakeSnapshot() | ev.FetchModel():
                return self._work(action)
            case ev.Stop():
                return self._stop(action)
            case ev.StoreModel():
                return self._store_model(action)
            case _:
                assert_never(action)

    @abstractmethod
    def _join(self, action: ev.Join) -> Outcome:
        """Ask the backend for membership of the next epochs."""

    @abstractmethod
    def _send(self, action: ev.Send) -> Outcome:
        """Send a command to the coordinator."""

    @abstractmethod
    def _set_peers(self, action: ev.SetPeers) -> Outcome:
        """Set the members to communicate with."""

    @abstractmethod
    def _broadcast(self, action: ev.Broadcast) -> Outcome:
        """Seal a message and send it to all members."""

    @abstractmethod
    def _fetch_payload(self, action: ev.FetchPayload) -> Outcome:
        """Fetch and check a payload."""

    @abstractmethod
    def _expire(self, action: ev.Expire) -> Outcome:
        """Forget messages and payloads with older tags."""

    @abstractmethod
    def _keep_results(self, action: ev.KeepResults) -> Outcome:
        """Write results and their payloads to the journal."""

    @abstractmethod
    def _prefetch(self, action: ev.Prefetch) -> Outcome:
        """Start reading the samples of our share."""

    @abstractmethod
    def _remind(self, action: ev.Remind) -> Outcome:
        """Answer with Reminded after some seconds."""

    @abstractmethod
    def _store_model(self, action: ev.StoreModel) -> Outcome:
        """Put a saved checkpoint into the store."""

    @abstractmethod
    def _work(self, action: ev.Work) -> Outcome:
        """Begin a piece of work, of which at most one is outstanding."""

    @abstractmethod
    def _tell(self, action: ev.Tell) -> Outcome:
        """Show an event to people."""

    @abstractmethod
    def _stop(self, action: ev.Stop) -> Outcome:
        """End the client."""
