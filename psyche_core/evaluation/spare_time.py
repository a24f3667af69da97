"""Lends the model of a training client to evaluations while nothing else needs it.

The trainer always has priority. It reports when it works (`reclaim`, `release`); a borrower of the model is then stopped at its
next layer by the exception Reclaimed, and borrows again. So training waits for at most one layer. The lent weights are the run's
(the optimizer's master weights), not those with which the trainer last computed. Borrowing does not change the module
permanently.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any


class Reclaimed(Exception):
    """The trainer needs the model now: return it, and borrow it again to continue."""


class SpareTimeOver(Exception):
    """There is no spare time any more, because the client ends."""


@dataclass(frozen=True, slots=True)
class Loan:
    """A borrowed model. module: of transformers. step: the last one whose results are in it."""

    module: Any
    step: int


class SpareTime:
    """The time in which a trainer does not need its model. Methods may be called from any thread.

    module: returns the module, or None while there is none. prepare: writes the run's weights into it.
    """

    def __init__(self, module: Callable[[], Any], prepare: Callable[[], None]) -> None:
        self._module = module
        self._prepare = prepare
        self._condition = threading.Condition()
        self._claims = 0
        self._lent = False
        self._stale = True
        self._closed = False
        self._first_seen = False
        self.step: int = 0

    def reclaim(self) -> bool:
        """Claim the model for the trainer. Return whether it is lent now, so that `wait_until_free` must be called."""
        with self._condition:
            self._claims += 1
            return self._lent

    def wait_until_free(self) -> None:
        """Block until no borrower has the model."""
        with self._condition:
            self._condition.wait_for(lambda: not self._lent)

    def release(self) -> None:
        """End a claim of the trainer, which may have changed the weights."""
        with self._condition:
            self._claims -= 1
            self._stale = True
            self._condition.notify_all()

    def note_first_seen(self) -> None:
        """Who borrows has done what it wanted with the first model, or wants nothing of it."""
        with self._condition:
            self._first_seen = True
            self._condition.notify_all()

    def wait_until_first_seen(self, seconds: float) -> None:
        """Block until `note_first_seen` was called, or all lending has ended, at most some seconds."""
        with self._condition:
            self._condition.wait_for(lambda: self._first_seen or self._closed, timeout=seconds)

    def close(self) -> None:
        """End all lending."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()

    @property
    def closed(self) -> bool:
        """Whether there is no spare time any more."""
        return self._closed

    def pause(self, seconds: float) -> None:
        """Block for some seconds. Raises SpareTimeOver."""
        with self._condition:
            if self._condition.wait_for(lambda: self._closed, timeout=seconds):
                raise SpareTimeOver

    @contextmanager
    def borrow(self) -> Iterator[Loan]:
        """Wait for the model and hold it. The model raises Reclaimed once the trainer needs it. Raises SpareTimeOver."""
        with self._condition:
            while True:
                self._condition.wait_for(lambda: self._closed or not self._claims)
                if self._closed:
                    raise SpareTimeOver
                module = self._module()
                if module is not None:
                    break
                self._condition.wait(timeout=1.0)  # a claim loads the model, and its release notifies
            self._lent = True
            step, stale, self._stale = self.step, self._stale, False
        try:
            if stale:
                self._prepare()
            with ExitStack() as stack:
                stack.enter_context(_as_for_reading(module))
                for layer in _layers(module):
                    stack.callback(layer.register_forward_pre_hook(self._look).remove)
                yield Loan(module, step)
        finally:
            with self._condition:
                self._lent = False
                self._condition.notify_all()

    def _look(self, *_: Any) -> None:
        if self._closed or self._claims:
            raise Reclaimed


def _layers(module: Any) -> list[Any]:
    """Return the module and all members of its lists of layers."""
    lists = [each for each in module.modules() if type(each).__name__ == "ModuleList"]
    return [module, *(layer for each in lists for layer in each)]


@contextmanager
def _as_for_reading(module: Any) -> Iterator[None]:
    """Put the module into eval mode without gradient checkpointing, which would also disable its cache; restore it afterwards."""
    parts = list(module.modules())
    training = [part.training for part in parts]
    recomputing = [part for part in parts if getattr(part, "gradient_checkpointing", False) is True]
    for part in parts:
        part.training = False
    for part in recomputing:
        part.gradient_checkpointing = False
    try:
        yield
    finally:
        for part, value in zip(parts, training, strict=True):
            part.training = value
        for part in recomputing:
            part.gradient_checkpointing = True
