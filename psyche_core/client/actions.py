"""The interface that a client machine's surroundings implement: one method for each action, and the only dispatcher of actions.

The runtime carries actions out with real I/O, the simulator in virtual time. If an action is added to `machine.actions.Action`,
the type checker reports that `carry_out` does not handle it, and Python refuses to instantiate a class without the new method.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar, assert_never

from psyche_core.client.machine import actions as act

Outcome = TypeVar("Outcome")
"""The result of carrying out an action: None in virtual time, an awaitable with real I/O."""


class Actions(ABC, Generic[Outcome]):
    """Carries out the actions of one machine. The docstring of each action says how it is answered."""

    def carry_out(self, action: act.Action) -> Outcome:
        """Call the action's method."""
        match action:  # the most frequent first
            case act.FetchPayload():
                return self._fetch_payload(action)
            case act.Notify():
                return self._notify(action)
            case act.Broadcast():
                return self._broadcast(action)
            case act.Send():
                return self._send(action)
            case act.Train() | act.Apply() | act.Digest():
                return self._work(action)
            case act.KeepResults():
                return self._keep_results(action)
            case act.Prefetch():
                return self._prefetch(action)
            case act.SetTimer():
                return self._set_timer(action)
            case act.Expire():
                return self._expire(action)
            case act.SetPeers():
                return self._set_peers(action)
            case act.Join():
                return self._join(action)
            case act.Load() | act.CloseEpoch() | act.TakeSnapshot() | act.FetchModel() | act.Recompute():
                return self._work(action)
            case act.Stop():
                return self._stop(action)
            case act.StoreModel():
                return self._store_model(action)
            case act.ShowPart():
                return self._show_part(action)
            case act.FetchPart():
                return self._fetch_part(action)
            case act.CheckParts():
                return self._check_parts(action)
            case _:
                assert_never(action)

    @abstractmethod
    def _join(self, action: act.Join) -> Outcome:
        """Ask the backend for membership of the next epochs."""

    @abstractmethod
    def _send(self, action: act.Send) -> Outcome:
        """Send a command to the coordinator."""

    @abstractmethod
    def _set_peers(self, action: act.SetPeers) -> Outcome:
        """Set the members to communicate with."""

    @abstractmethod
    def _broadcast(self, action: act.Broadcast) -> Outcome:
        """Seal a message and send it to all members."""

    @abstractmethod
    def _fetch_payload(self, action: act.FetchPayload) -> Outcome:
        """Fetch and check a payload."""

    @abstractmethod
    def _expire(self, action: act.Expire) -> Outcome:
        """Forget messages and payloads with older tags."""

    @abstractmethod
    def _keep_results(self, action: act.KeepResults) -> Outcome:
        """Write results and their payloads to the journal."""

    @abstractmethod
    def _prefetch(self, action: act.Prefetch) -> Outcome:
        """Start reading the samples of our share."""

    @abstractmethod
    def _set_timer(self, action: act.SetTimer) -> Outcome:
        """Answer with Reminded after some seconds."""

    @abstractmethod
    def _store_model(self, action: act.StoreModel) -> Outcome:
        """Put a saved checkpoint into the store."""

    @abstractmethod
    def _show_part(self, action: act.ShowPart) -> Outcome:
        """Prepare and serve our part in a stage of a challenge."""

    @abstractmethod
    def _fetch_part(self, action: act.FetchPart) -> Outcome:
        """Fetch another member's part."""

    @abstractmethod
    def _check_parts(self, action: act.CheckParts) -> Outcome:
        """Compare what trainer and judge opened."""

    @abstractmethod
    def _work(self, action: act.Work) -> Outcome:
        """Begin a piece of work, of which at most one is outstanding."""

    @abstractmethod
    def _notify(self, action: act.Notify) -> Outcome:
        """Show an event to people."""

    @abstractmethod
    def _stop(self, action: act.Stop) -> Outcome:
        """End the client."""
