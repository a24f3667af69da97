"""A model's description: the small files that describe how the model is built. Members send it to members that do not have it.

The files are configuration and tokenizer, never weights and never code. Encoded as canonical CBOR: [version, [[name, content],
…]], names ascending, so that equal files have one encoding and one hash. Names are plain names of data files (JSON, text,
tokenizer models, templates), so that a written file cannot leave its folder or be executed. Sizes and numbers are checked before
anything is decoded. The caller interprets the files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from psyche_core.errors import WireError
from psyche_core.wire.codec import decode as decode_cbor
from psyche_core.wire.codec import encode as encode_cbor

VERSION = 1
MAX_DESCRIPTION_BYTES = 64 * 2**20
MAX_FILES = 64

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,100}(\.[A-Za-z0-9_-]{1,40}){0,3}\.(json|txt|model|jinja)")

Description = Mapping[str, bytes]
"""Content of the files by name."""


def is_name(name: str) -> bool:
    """Whether a file of this name may be part of a description."""
    return _NAME.fullmatch(name) is not None


def encode(files: Description) -> bytes:
    """Return the bytes of a description. Raises ValueError for names, numbers of files or sizes that are not allowed."""
    for name in files:
        if not is_name(name):
            message = f"a file named {name!r:.80} cannot be part of a model's description"
            raise ValueError(message)
    if len(files) > MAX_FILES:
        message = f"a description has at most {MAX_FILES} files, got {len(files)}"
        raise ValueError(message)

    encoded = encode_cbor([VERSION, [[name, files[name]] for name in sorted(files)]])
    if len(encoded) > MAX_DESCRIPTION_BYTES:
        message = f"a description has at most {MAX_DESCRIPTION_BYTES} bytes, got {len(encoded)}"
        raise ValueError(message)

    return encoded


def decode(data: bytes) -> Description:
    """Read a description. Raises only WireError."""
    fields = decode_cbor(data, max_bytes=MAX_DESCRIPTION_BYTES, max_depth=3, max_items=3 + 3 * MAX_FILES)
    match fields:
        case [int(version), [*entries]] if type(version) is int:
            pass
        case _:
            message = "a model's description is a list of version and files"
            raise WireError(message)

    if version != VERSION:
        message = f"version {version} of a model's description is not {VERSION}; update the older side"
        raise WireError(message)

    files: dict[str, bytes] = {}
    last = ""
    for entry in entries:
        match entry:
            case [str(name), bytes(content)] if is_name(name) and name > last:
                files[name] = content
                last = name
            case _:
                message = "a file of a model's description is a list of a plain file name and its bytes, in order of the names"
                raise WireError(message)

    return MappingProxyType(files)
