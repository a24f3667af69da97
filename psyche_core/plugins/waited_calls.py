"""Calls foreign code that may hang, in a thread of its own, so that a person is told who hangs, and the caller goes on.

A store's calls block. One that never ends would keep a member that has nothing else to do alive and silent for ever, since no
thread of Python can be ended from outside. So the caller waits for a sign of life only so long. The thread that hangs is left
behind; it does not keep the process from ending.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from psyche_core.errors import StoreError
from psyche_core.interfaces.store import Proceed, go_on

logger: logging.Logger = logging.getLogger("psyche.plugins")

_Given = TypeVar("_Given")


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a call may say nothing, in seconds. A call of `proceed` is a sign of life.

    Attributes:
        told_after: then a warning names it, and the caller may end the wait.
        most: then it counts as hanging. A part of 8 MiB must fit in on a slow line.
    """

    told_after: float = 60.0
    most: float = 900.0


class Hangs(StoreError):
    """A call said nothing for too long. Its thread may still run, so what it was made on must not be used again."""


@dataclass(frozen=True, slots=True)
class _Ended(Generic[_Given]):
    given: _Given | None
    raised: BaseException | None


def waited_for(call: Callable[[Proceed], _Given], *, called: str, patience: Patience, proceed: Proceed = go_on) -> _Given:
    """Call something in a thread of its own, and give what it gives or raise what it raises.

    call: takes a function that it calls before each part of its work, from any thread. proceed: what that function does; it runs
    in the caller's thread, and what it raises is raised in the call. If the call is silent after the warning, `proceed` is asked
    each second, so that whoever leaves need not wait. called: the call in words, for messages.

    Raises Hangs if the call is silent for `patience.most` seconds, and what `proceed` raises during a silence.
    """
    letters: SimpleQueue[SimpleQueue[BaseException | None] | _Ended[_Given]] = SimpleQueue()

    def ask() -> None:
        answer: SimpleQueue[BaseException | None] = SimpleQueue()
        letters.put(answer)
        raised = answer.get()
        if raised is not None:
            raise raised

    def work() -> None:
        try:
            letters.put(_Ended(call(ask), None))
        except BaseException as error:  # foreign code; the caller decides
            letters.put(_Ended(None, error))

    threading.Thread(target=work, name=called, daemon=True).start()
    heard = time.monotonic()
    told = False
    while True:
        silent = time.monotonic() - heard
        if silent >= patience.most:
            message = (
                f"{called} said nothing for {patience.most:g} s, so it counts as hanging; tell its author, or use another place"
            )
            raise Hangs(message)
        if silent >= patience.told_after:
            if not told:
                logger.warning("%s has said nothing for %g s; it is given %g s", called, patience.told_after, patience.most)
            told = True
            proceed()

        wait = min(1.0, patience.most - silent) if told else patience.told_after - silent
        try:
            letter = letters.get(timeout=max(wait, 0.001))
        except Empty:
            continue
        if isinstance(letter, _Ended):
            if letter.raised is not None:
                raise letter.raised
            return letter.given  # type: ignore[return-value]  # what the call gave
        heard, told = time.monotonic(), False
        try:
            proceed()
        except BaseException as error:  # what ends the call: it cleans up, and raises it again
            letter.put(error)
        else:
            letter.put(None)
