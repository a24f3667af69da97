"""`python -m psyche_core.cli.end_with_parent ARGUMENTS`: runs `psyche ARGUMENTS` and ends when its parent process ends.

The starter keeps a pipe to its stdin open and writes nothing. The system closes that pipe when the starter ends, however it ends,
kill -9 included; then this process kills itself. This works wherever there are pipes, unlike asking the kernel for a signal, and
needs no clean-up. There is no graceful shutdown, because nobody is left to wait for it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from psyche_core.cli import main


def run() -> None:
    """Run the command line of sys.argv. Raises SystemExit, and ends the process when the pipe at stdin closes."""
    threading.Thread(target=_end_with_parent, name="end with parent", daemon=True).start()
    main()


def _end_with_parent() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass  # not for us
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    run()
