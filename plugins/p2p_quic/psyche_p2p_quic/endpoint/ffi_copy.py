"""Patches one method of the iroh bindings, so that bytes passed to Rust are copied at once, not one by one in Python.

The method of version 1.2 sends 4 MB/s and blocks the event loop meanwhile (iroh-ffi issue 229). It is replaced only in versions
in which the replacement was measured, and only if it passes a test against the real library. Otherwise there is a warning, and
everything works, but slowly. Remove this module when a fixed release is out.
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
    """Append `value`, bytes or a buffer, to the builder's Rust buffer."""
    count = len(value)
    if not count:
        return

    whole = isinstance(value, memoryview) and value.c_contiguous and not value.readonly
    source = (ctypes.c_char * count).from_buffer(value) if whole else bytes(value)
    with builder._reserve(count):
        buffer = builder.rbuf
        ctypes.memmove(ctypes.addressof(buffer.data.contents) + buffer.len, source, count)


def _copies_right() -> bool:
    """Return whether a Rust buffer returns samples as they were appended, also across a reallocation."""
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
    """Replace the method if the replacement is known to work, else warn and return False. Safe to call again."""
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
        except Exception as error:  # this build differs in some way: keep the original method
            reason = f"its test raised {type(error).__name__}: {error}"

    if reason:
        message = f"sends over QUIC will be slow: the slow copy in iroh {version} was not replaced, because {reason}"
        warnings.warn(message, RuntimeWarning, stacklevel=2)
        return False

    _ffi._UniffiRustBufferBuilder.write = _write
    return True
