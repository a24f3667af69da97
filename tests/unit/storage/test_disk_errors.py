"""Why a disk refused something, said in words: no numbers and no names of unfinished files."""

from __future__ import annotations

import errno

import pytest

from psyche_core.errors import ModelError
from psyche_core.storage.disk_errors import disk_error_in


def caused(error: Exception) -> ModelError:
    outer = ModelError(f"cannot save: {error}")
    outer.__cause__ = error
    return outer


FULL = "No space left on device; make room on its disk"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.ENOSPC, "No space left on device", ".a.partial/x", None, ".b"), FULL),
        (caused(OSError(errno.ENOSPC, "No space left on device", "x")), FULL),
        (caused(ValueError("I/O error: No space left on device (os error 28)")), FULL),
        (PermissionError(errno.EACCES, "Permission denied", "x"), "Permission denied"),
        (ModelError("tensor a holds NaN"), None),
        (OSError("no number"), None),
    ],
)
def test_the_reason_is_the_disks_own_with_advice_where_it_is_full(error: Exception, reason: str | None) -> None:
    assert disk_error_in(error) == reason
