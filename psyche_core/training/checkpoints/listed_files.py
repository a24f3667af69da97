"""The `manifest.json` that other Psyche clients write beside a checkpoint in a bucket: which files belong to it. Pure.

They overwrite a checkpoint in place and leave files of older ones there, so the list and its sizes say which weights are the
present ones. It has no hashes. Our own manifest, which has, is `psyche.json` (`manifest`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import PurePosixPath

LIST_FILE = "manifest.json"
MAX_LIST_BYTES = 2**20


def parse_list(text: bytes, *, start: str) -> Mapping[str, int] | None:
    """Return the size in bytes of each file of the checkpoint by its name; None if the text is no such list.

    text: `{"metadata": {…, "step": …}, "files": [{"filename": …, "generation": …, "size_bytes": …}, …]}`. start: the prefix with
    its slash, which a name may begin with.
    """
    try:
        entries = json.loads(text)["files"]
        sizes = {str(entry["filename"]).removeprefix(start): entry["size_bytes"] for entry in entries}
    except (ValueError, KeyError, TypeError, RecursionError):
        return None

    plain = all(PurePosixPath(name).name == name and type(size) is int and size >= 0 for name, size in sizes.items())
    return sizes if plain and any(name.endswith(".safetensors") for name in sizes) else None


def wrong_size(expected: Mapping[str, int], found: Mapping[str, int], names: Collection[str]) -> str | None:
    """Return the first of the listed names whose file has another size than the list says, None without one."""
    return next((name for name in sorted(names) if name in expected and found[name] != expected[name]), None)
