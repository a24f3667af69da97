"""The state of the optimizer that only one replica has (momentum, residuals), on its own disk, for its own next start.

It is one file in the folder of our checkpoints, replaced at each epoch's end by flush and rename. It contains the digest of the
masters it belongs to, and is loaded only if the replica has exactly these masters. It is never sent to other members. A file that
cannot be used is reported and kept; training continues without it, slightly worse for a while. torch is imported only when it is
used.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from psyche_core.errors import ModelError
from psyche_core.storage.checkpoint_names import checkpoint_path
from psyche_core.storage.disk_errors import disk_error_in
from psyche_core.storage.folders import flush

_DIGEST = "masters_sha256"


def private_path(folder: Path, run_id: str) -> Path:
    """Return the path of a run's private state in our folder of checkpoints."""
    return folder / f".{checkpoint_path(Path(), run_id, 0).name.removesuffix('-step0')}-private.safetensors"


def save_private(path: Path, state: Mapping[str, Any], *, masters: bytes) -> None:
    """Write a private state. state: tensors by name. masters: full digest (32 bytes) of the masters. Raises ModelError."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    partial = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        tensors = {name: tensor.detach().to("cpu").contiguous() for name, tensor in state.items()}
        save_file(tensors, partial, metadata={_DIGEST: masters.hex()})
        flush(partial)
        os.replace(partial, path)  # noqa: PTH105 - it replaces on every system
    except (OSError, SafetensorError) as error:
        message = f"the optimizer's own state was not saved to {path}: {disk_error_in(error) or error}"
        raise ModelError(message) from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()


def load_private(path: Path, *, masters: bytes) -> dict[str, Any] | None:
    """Return the private state that was saved with these masters, or None if there is none.

    masters: their full digest (32 bytes). Raises ModelError for a damaged file.
    """
    if not path.is_file():
        return None

    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            if (file.metadata() or {}).get(_DIGEST) != masters.hex():
                return None
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    except (OSError, SafetensorError) as error:
        message = f"the optimizer's own state in {path} cannot be read: {error}"
        raise ModelError(message) from error
