"""Files mapped into memory, a bounded number at a time. Every use checks that the file has not changed.

A file that shrinks under a mapping would end the process when the lost part is read (SIGBUS). So size and modification time are
checked right before and right after every use. A file may still be truncated in the milliseconds between the checks. Only
copying by system calls would prevent that, at about half the speed. A view that is still held keeps its file open, so no reader
in another thread loses its data.
"""

from __future__ import annotations

import mmap
from collections import OrderedDict
from threading import Lock

from psyche_core.data.ordering.dataset_index import FileStamp
from psyche_core.errors import DataError

MOST_OPEN = 128


class MappedFiles:
    """Views of whole files. Safe to use from several threads.

    most_open: maximum number of files that stay mapped; the least recently used is closed first.
    """

    def __init__(self, *, most_open: int = MOST_OPEN) -> None:
        self.most_open = most_open
        self._views: OrderedDict[FileStamp, memoryview] = OrderedDict()
        self._lock = Lock()

    def view(self, file: FileStamp) -> memoryview:
        """The bytes of a file, which must not be empty. Raises DataError if the file has changed."""
        file.check()
        with self._lock:
            view = self._views.get(file)
            if view is None:
                view = self._views[file] = _mapped(file)
            self._views.move_to_end(file)
            while len(self._views) > self.most_open:
                self._views.popitem(last=False)

        return view


def _mapped(file: FileStamp) -> memoryview:
    try:
        with file.path.open("rb") as stream:
            view = memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:  # ValueError: the file is now empty
        message = f"cannot read the data file {file.path}: {getattr(error, 'strerror', None) or error}"
        raise DataError(message) from error

    if len(view) != file.size:
        file.check()
    return view
