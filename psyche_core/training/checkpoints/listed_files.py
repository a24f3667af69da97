"""Reads the `manifest.json` that other Psyche clients write next to a checkpoint in a bucket: the files that belong to it. Pure.

Those clients overwrite a checkpoint in place and leave files of older ones there, so the list with its sizes says which weights
are the present ones. It has no hashes. Our own manifest, which has hashes, is `psyche.json` (`manifest`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import PurePosixPath

LIST_FILE = "manifest.json"
MAX_LIST_BYTES = 2**20


def parse_list(text: bytes, *, start: str) -> Mapping[str, int] | None:
    """Return the size in bytes of each file of the checkpoint by its name; None if the text is not such a list.

    text: `{"metadata": {…, "step": …}, "files": [{"filename": …, "generation": …, "size_bytes": …}, …]}`. start: the prefix with
    its slash, with which a name may begin.
    """
    try:
        entries = json.loads(text)["files"]
        sizes = {str(entry["filename"]).removeprefix(start): entry["size_bytes"] for entry in entries}
    except (ValueError, KeyError, TypeError, RecursionError):
        return None

    plain = all(PurePosixPath(name).name == name and type(size) is int and size >= 0 for name, size in sizes.items())
    return sizes if plain and any(name.endswith(".safetensors") for name in sizes) else None


def wrong_size(expected: Mapping[str, int], found: Mapping[str, int], names: Collection[str]) -> str | None:
    """Return the first of these names whose file does not have the listed size; None if all have."""
    return next((name for name in sorted(names) if name in expected and found[name] != expected[name]), None)
