"""Makes `os._exit` an exception while a plugin is loaded or makes an object, so that it ends no program without a sentence.

`os._exit` ends the process at once: no exception, no clean-up, no message. Inside `exits_refused` it raises `Exited` in the
thread that entered the block. In a thread that began meanwhile nobody could catch an exception, so there it first says which
plugin was at work, then ends the process. Other threads and forked processes end as usual. A crash, or an exit in native code,
cannot be caught.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

from psyche_core.text_safety import printable

ADVICE = "which would end the whole program; it must raise an exception instead"
"""What to say of such a call, as the end of a sentence."""

_EXIT = os._exit


class Exited(BaseException):
    """A plugin called os._exit. No Exception: a plugin that handles all of those does not mean this one.

    status: what it called it with.
    """

    def __init__(self, status: object) -> None:
        super().__init__(f"os._exit({status!r})")
        self.status = status


@dataclass(slots=True)
class _Block:
    """A block that is being executed.

    Attributes:
        called: whose code it calls, for a sentence.
        thread: the thread that executes it.
        older: threads that were there before.
        exited: what os._exit raised in it.
    """

    called: str
    process: int
    thread: int
    older: frozenset[int | None]
    exited: Exited | None = None


_blocks: list[_Block] = []
_lock = threading.Lock()


@contextlib.contextmanager
def exits_refused(called: str) -> Iterator[None]:
    """Execute code of a plugin, where os._exit raises Exited. called: the plugin's name in a sentence.

    Raises Exited at the end of the block, too, if the plugin's code did not let it through.
    """
    older = frozenset(thread.ident for thread in threading.enumerate())
    block = _Block(called, os.getpid(), threading.get_ident(), older)
    with _lock:
        replaced = os._exit
        _blocks.append(block)
        os._exit = _refuse
    try:
        yield
    finally:
        with _lock:
            _blocks.remove(block)
            if not _blocks and os._exit is _refuse:
                os._exit = _EXIT if replaced is _refuse else replaced
    if block.exited is not None:
        raise block.exited


@functools.wraps(_EXIT)
def _refuse(status: int) -> NoReturn:
    """What os._exit is meanwhile. Whoever imported it by name keeps it, so it does nothing of its own outside of a block."""
    ours = [block for block in reversed(_blocks) if block.process == os.getpid()]
    for block in ours:
        if block.thread == threading.get_ident():
            block.exited = Exited(status)
            raise block.exited

    for block in ours:
        if threading.get_ident() not in block.older:
            called = f"os._exit({status!r}), called in a thread that began while {block.called} was at work,"
            _say(f"{called} ended this program")
            break
    _EXIT(status)


def _say(sentence: str) -> None:
    """Write to the process's standard error, whatever sys.stderr is now: nothing else is written afterwards."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    with contextlib.suppress(OSError):
        os.write(2, f"Error: {printable(sentence)}\n".encode())
