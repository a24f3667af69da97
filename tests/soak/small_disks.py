"""Disks of a few kilobytes that processes of a test have in the place of a folder, and that fill up when the test says so.

Needs to be root inside a user namespace (`tools/loopback.sh`), and the `unshare` and `nsenter` programs. A process that only
waits holds the mount; all of it ends with that.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class NoDisks(Exception):
    """This system does not let us mount; the message says what was refused."""


class SmallDisk:
    """A tmpfs over a folder, seen by who runs inside. Use `small_disk`."""

    def __init__(self, folder: Path, holder: subprocess.Popen[str]) -> None:
        self._folder = folder
        self._holder = holder

    @property
    def inside(self) -> tuple[str, ...]:
        """A command that runs the words after it where the disk is. The process keeps its id and its working directory."""
        enter = ("nsenter", "--target", str(self._holder.pid), "--mount", "--")
        return (*enter, "sh", "-c", 'cd "$0" && exec "$@"', str(Path(self._folder).parent))

    @property
    def here(self) -> Path:
        """The disk's content, seen from outside."""
        return Path(f"/proc/{self._holder.pid}/root{self._folder}")

    def fill(self) -> None:
        """Leave no room at all, for now: who replaces a file of its own may make some. To be called again until it tells."""
        with contextlib.suppress(OSError), (self.here / "filler").open("ab", buffering=0) as filler:
            while filler.write(bytes(4096)):
                pass

    def free(self) -> None:
        """Make room again."""
        (self.here / "filler").unlink()


@contextmanager
def small_disk(folder: Path, *, kilobytes: int) -> Iterator[SmallDisk]:
    """The disk, as long as it is entered. Raises NoDisks."""
    missing = [program for program in ("unshare", "nsenter") if shutil.which(program) is None]
    if missing:
        message = f"no {missing[0]} program"
        raise NoDisks(message)

    folder.mkdir()
    script = 'mount -t tmpfs -o size="$1" none "$0" && echo mounted && exec sleep infinity'
    holder = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", script, str(folder), f"{kilobytes}k"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    try:
        if holder.stdout.readline() != "mounted\n":
            raise NoDisks(holder.communicate(timeout=20)[1].strip())
        yield SmallDisk(folder, holder)
    finally:
        holder.kill()
        holder.communicate()
