"""Writes a model as a complete folder: config.json, safetensors, and the tokenizer and generation config of its source.

- Tensors get the names that checkpoints of the architecture use. These can differ from the module's names, because transformers
  fuses the experts of a layer into one tensor. They are split again here, layer by layer, so that at most one layer is in memory
  twice.
- A tied weight is written once, under its first name.
- The folder is written under another name, flushed to disk and renamed, so it appears complete; an older one is replaced.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from psyche_core.errors import ModelError
from psyche_core.models.hf.configuration import CONFIG_FILE, Configuration
from psyche_core.models.hf.quiet import first_line
from psyche_core.models.hf.tensor_files import Planned, ShardWriter, into_shards
from psyche_core.models.hf.weights import on_disk
from psyche_core.storage.folders import whole_folder

MAX_SHARD_BYTES: Final = 5 * 10**9
COPIED_FILES: Final = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "spiece.model",
    "tekken.json",
    "chat_template.jinja",
    "chat_template.json",
)
"""Files that are copied from the source folder into every checkpoint, if present."""

SAVED_DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16}

_LAYER = re.compile(r"^.*?\.\d+\.")


_CHANGED_BY_SAVING: Final = frozenset({"architectures", "dtype", "torch_dtype", "transformers_version", "_name_or_path"})


def describe(configuration: Configuration) -> dict[str, bytes]:
    """Return the files that say how a model is built, by name.

    They are the same for a model from the Hub and for one from our own checkpoint. Raises ModelError if a file cannot be read.
    """
    fields = {name: value for name, value in configuration.fields.items() if name not in _CHANGED_BY_SAVING}
    files = {CONFIG_FILE: (json.dumps(fields, indent=2, sort_keys=True) + "\n").encode()}
    for name in COPIED_FILES:
        path = configuration.source / name
        try:
            if path.is_file():
                files[name] = path.read_bytes()
        except OSError as error:
            message = f"cannot read {path}: {error.strerror}"
            raise ModelError(message) from error
    return files


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint to write.

    weights: tensors by the module's own names, tied ones once. converted: names of the tensors that are converted to `dtype`.
    dtype: float32 or bfloat16.
    """

    module: Any
    configuration: Configuration
    weights: Mapping[str, torch.Tensor]
    converted: frozenset[str]
    dtype: str

    def write(self, directory: Path, *, max_shard_bytes: int = MAX_SHARD_BYTES) -> None:
        """Write the checkpoint. `directory` appears complete or not at all. Raises ModelError."""
        try:
            with whole_folder(directory) as partial:
                self._write_config(partial / CONFIG_FILE)
                for name in COPIED_FILES:
                    if (self.configuration.source / name).is_file():
                        shutil.copyfile(self.configuration.source / name, partial / name)
                groups = list(self._groups())
                shards = into_shards([planned for group in groups for planned in self._plan(group)], max_bytes=max_shard_bytes)
                ShardWriter(partial, shards).write(entry for group in groups for entry in on_disk(self.module, group).items())
        except Exception as error:  # the file system, transformers and torch raise many exception types; all mean "not saved"
            message = f"cannot save the model to {directory}: {first_line(error)}"
            raise ModelError(message) from error

    def _write_config(self, path: Path) -> None:
        fields = {name: value for name, value in self.configuration.fields.items() if name != "torch_dtype"}
        fields |= {"architectures": [type(self.module).__name__], "dtype": self.dtype}
        path.write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n", encoding="utf-8")

    def _groups(self) -> Iterator[dict[str, torch.Tensor]]:
        """Yield the weights of each layer as one group, and all other weights as another group."""
        groups: dict[str, dict[str, torch.Tensor]] = {}
        for name, tensor in self.weights.items():
            layer = _LAYER.match(name)
            groups.setdefault(layer[0] if layer else "", {})[name] = tensor
        yield from groups.values()

    def _plan(self, group: Mapping[str, torch.Tensor]) -> list[Planned]:
        """Return the tensors that a group becomes on disk. Only the shapes of the weights are used."""
        dtype = SAVED_DTYPES[self.dtype]
        shapes = {
            name: torch.empty(tensor.shape, dtype=dtype if name in self.converted else tensor.dtype, device="meta")
            for name, tensor in group.items()
        }
        return [Planned(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in on_disk(self.module, shapes).items()]
