"""Mends one method of the iroh bindings: bytes on their way to Rust are copied in one go, not one by one in Python.

As shipped, version 1.2 sends 4 MB/s and blocks the event loop meanwhile (iroh-ffi issue 229). Decided here: the method is
replaced only in the versions it was measured in and only if the replacement passes a test against the real library; otherwise a
warning is given and everything works, slowly. To be removed when a fixed release is out.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import warnings
from typing import Any

import iroh.iroh_ffi

_ffi: Any = iroh.iroh_ffi
_MEASURED = ("1.2.",)
_SAMPLE = bytes(range(256)) * 3


def _write(builder: Any, value: bytes | memoryview) -> None:
    """Append `value`, bytes or anything that has bytes, to the builder's Rust buffer."""
    count = len(value)
    if not count:
        return

    whole = isinstance(value, memoryview) and value.c_contiguous and not value.readonly
    source = (ctypes.c_char * count).from_buffer(value) if whole else bytes(value)
    with builder._reserve(count):
        buffer = builder.rbuf
        ctypes.memmove(ctypes.addressof(buffer.data.contents) + buffer.len, source, count)


def _copies_right() -> bool:
    """Whether appended samples come out of a Rust buffer as they went in, across a reallocation."""
    builder = _ffi._UniffiRustBufferBuilder()
    try:
        _write(builder, _SAMPLE[:5])
        _write(builder, b"")
        _write(builder, _SAMPLE)
        _write(builder, memoryview(_SAMPLE)[7:])
        _write(builder, memoryview(bytearray(_SAMPLE))[7:])
        buffer = builder.rbuf
        return bool(buffer.data[: buffer.len] == _SAMPLE[:5] + _SAMPLE + 2 * _SAMPLE[7:])
    finally:
        builder.discard()


def mend() -> bool:
    """Replace the method where that is known to be right; False, with a warning, where it is not. Safe to call again."""
    version = importlib.metadata.version("iroh")
    builder = getattr(_ffi, "_UniffiRustBufferBuilder", None)
    if getattr(builder, "write", None) is _write:
        return True

    reason = ""
    if not version.startswith(_MEASURED):
        reason = f"it was measured with {' '.join(_MEASURED)}x only"
    else:
        try:
            if not _copies_right():
                reason = "its test failed"
        except Exception as error:  # whatever is different about this build, the shipped method stays
            reason = f"its test raised {type(error).__name__}: {error}"

    if reason:
        message = f"sends over QUIC will be slow: the copy in iroh {version} was not mended, since {reason}"
        warnings.warn(message, RuntimeWarning, stacklevel=2)
        return False

    _ffi._UniffiRustBufferBuilder.write = _write
    return True
