"""The optimizer's public state in a checkpoint folder: the file `public_state.safetensors` beside the weights.

transformers reads `model.safetensors`, or the files of its index, and ignores this one. A folder without the file stands for a
state of zeros: a model of other software, or a checkpoint of an optimizer without such state. If `psyche.json` lists the state,
the file must be there, as listed; if it lists none, the file is not part of the checkpoint and is not read. An optimizer without
public state ignores the file.

Format: safetensors, float32, names with the prefix of `shared_tensors`, and the format's version in the metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open

from psyche_core.errors import ModelError
from psyche_core.interfaces.optimizer import Optimizer
from psyche_core.interfaces.parameters import LazyParameters
from psyche_core.models.hf.tensor_files import Planned, write_tensors
from psyche_core.regular_files import expect_regular
from psyche_core.storage.folders import whole_folder, write_inside
from psyche_core.training.checkpoints.manifest import STATE_FILE, read_manifest, verify
from psyche_core.training.shared_tensors import PREFIX, prefixed

_VERSION_KEY: Final = "psyche_public_state"
_VERSION: Final = "1"


def save_with_public_state(directory: Path, state: Mapping[str, torch.Tensor], *, write: Callable[[Path], None]) -> None:
    """Write a model with a public state. `directory` appears complete or not at all.

    state: by the optimizer's names. write: writes the model into a folder that it creates itself. Raises ModelError.
    """
    tensors = prefixed(state)
    plan = [Planned(name, torch.float32, tuple(tensor.shape)) for name, tensor in tensors.items()]
    try:
        with whole_folder(directory) as partial:
            write_inside(partial, write)
            metadata = {"format": "pt", _VERSION_KEY: _VERSION}
            write_tensors(partial / STATE_FILE, plan, iter(tensors.items()), metadata=metadata)
    except OSError as error:
        message = f"cannot save the optimizer's public state to {directory}: {error.strerror or error}"
        raise ModelError(message) from error


def load_public_state(optimizer: Optimizer, folder: Path) -> None:
    """Load the public state in a model's folder, if the optimizer has a public state and the folder contains one.

    Raises ModelError for a file that is listed but missing, damaged, or of another optimizer, model or version.
    """
    if not optimizer.public_state:
        return

    path = folder / STATE_FILE
    if not _is_listed(path) or not path.exists():
        return

    try:
        expect_regular(path)
        with safe_open(path, framework="pt") as file:
            version = (file.metadata() or {}).get(_VERSION_KEY)
            if version != _VERSION:
                message = f"{path} holds a public state of version {version}, expected {_VERSION}; use a newer version of psyche"
                raise ModelError(message)
            state = _StateFile(path, file)
            state.check()
            optimizer.load_public_state(state)
    except (SafetensorError, OSError) as error:
        message = f"{path} is cut short or damaged ({error}); download the checkpoint again"
        raise ModelError(message) from error
    except ModelError as error:
        if str(path) in str(error):
            raise
        message = (
            f"{path} does not fit this run's optimizer and model: {error}; to start with a state of zeros, remove the file from "
            "the checkpoint of every member"
        )
        raise ModelError(message) from error


def _is_listed(path: Path) -> bool:
    """Return whether the manifest lists the file, and verify the file then; True without a manifest. Raises ModelError."""
    manifest = read_manifest(path.parent)
    if manifest is None:
        return True

    listed = {name: entry for name, entry in manifest.tensors.items() if entry.file == path.name}
    weights = {entry.file for entry in manifest.tensors.values()} - {path.name}
    if listed and any((path.parent / name).exists() for name in weights):  # without weights it is a model's description
        verify(path.parent, manifest.model_copy(update={"tensors": listed, "files": {}}))
    return bool(listed)


class _StateFile(LazyParameters):
    """The tensors of an open file, by the optimizer's names. Each lookup reads one."""

    def __init__(self, path: Path, file: Any) -> None:
        self._path = path
        self._file = file
        self._slices = {name: file.get_slice(name) for name in self._names()}

    def _names(self) -> Iterator[str]:
        for name in self._file.keys():  # noqa: SIM118 - no mapping
            if not name.startswith(PREFIX):
                message = f"{self._path} holds tensor {name}, which is no public state of an optimizer"
                raise ModelError(message)
            yield name

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name.removeprefix(PREFIX): tuple(found.get_shape()) for name, found in self._slices.items()}

    def __getitem__(self, name: str) -> torch.Tensor:
        found: torch.Tensor = self._file.get_tensor(PREFIX + name)
        return found

    def check(self) -> None:
        """Raise ModelError for another dtype and for values that are not finite."""
        for name, found in self._slices.items():
            dtype = str(found.get_dtype())
            if dtype != "F32":
                message = f"tensor {name} of {self._path} is stored as {dtype}, expected F32"
                raise ModelError(message)
            if not bool(self._file.get_tensor(name).isfinite().all()):
                message = f"tensor {name} of {self._path} holds values that are NaN or infinite; the checkpoint is damaged"
                raise ModelError(message)
