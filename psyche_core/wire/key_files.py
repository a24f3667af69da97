"""Files that hold a secret: read without blocking, up to a size limit, and only if nobody else can read them.

The rules are those of ssh: if we own a key file and its group or others may read it, it is rejected, and the error message
contains the command that fixes it. If another user owns it (for example a secret that the system mounted for us), its mode is not
checked. Only regular files are read: a device may have no end, and reading a pipe may block for ever. Error messages never show
the content of a file.
"""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path

from psyche_core.errors import IdentityError
from psyche_core.regular_files import NotRegular, regular

MAX_KEY_BYTES = 4096


def read_key_file(path: Path, *, what: str, remedy: str, any_owner: bool = False, others_may_read: bool = False) -> bytes:
    """Return the content of a key file, at most MAX_KEY_BYTES. Raises IdentityError with one sentence.

    what: the kind of file for messages, such as `identity key`. remedy: end of the message, says how to get such a file.
    any_owner: reject a file that others can read even if another user owns it. others_may_read: do not check who can read it.
    """
    try:
        descriptor = regular(path, os.O_RDONLY)
        try:
            if not others_may_read:
                _check_readers(os.fstat(descriptor), path, what=what, any_owner=any_owner)
            return os.read(descriptor, MAX_KEY_BYTES)
        finally:
            os.close(descriptor)
    except NotRegular as error:
        message = f"the {what} {path} is {error.kind}, expected a regular file; {remedy}"
        raise IdentityError(message) from error
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL
        reason = error.strerror if isinstance(error, OSError) else str(error)
        message = f"cannot read the {what} {path}: {reason}; {remedy}"
        raise IdentityError(message) from error


def _check_readers(found: os.stat_result, path: Path, *, what: str, any_owner: bool) -> None:
    if not hasattr(os, "getuid"):
        return  # Windows has no such file modes

    ours = any_owner or found.st_uid == os.getuid()
    if ours and found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        message = (
            f"the {what} {path} can be read by other users of this machine (mode {stat.S_IMODE(found.st_mode):o}); "
            f"take that away with `chmod 600 {shlex.quote(str(path))}`"
        )
        raise IdentityError(message)
