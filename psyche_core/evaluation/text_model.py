"""A model with its tokenizer, opened from a folder for reading and writing text. It is not trained."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from psyche_core.errors import ModelError, NoSuchModel
from psyche_core.models.hf.configuration import read_configuration
from psyche_core.models.hf.devices import pick_devices
from psyche_core.models.hf.quiet import first_line, quiet
from psyche_core.models.hf.weights import load_module, stored_tensors

DTYPES: dict[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""Number formats in which a model can compute, by name."""

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")


@dataclass(frozen=True, slots=True)
class TextModel:
    """A causal language model of transformers and its tokenizer.

    max_tokens: most tokens of a text, None without a limit.
    """

    module: Any
    tokenizer: Any
    max_tokens: int | None

    @property
    def device(self) -> torch.device:
        """The device for token ids."""
        return torch.device(self.module.device)


def open_text_model(folder: Path, *, device: str = "auto", dtype: str = "float32", tokenizer: Path | None = None) -> TextModel:
    """Open a model folder: config.json, safetensors and a tokenizer. No code in it is run and no pickle is read.

    device: as for clients; of several devices the first is used. dtype: one of DTYPES. tokenizer: folder of the tokenizer, if the
    model has none of its own. Raises NoSuchModel, NoSuchDevice and ModelError.
    """
    chosen = pick_devices(device)[0]
    configuration = read_configuration(folder)
    stored = expect_weights(folder)
    words = load_tokenizer(tokenizer or folder)
    try:
        module = load_module(configuration, stored, attention=None).to(device=chosen, dtype=DTYPES[dtype]).eval()
    except ModelError:
        raise
    except Exception as error:  # a broken config or file may raise almost any exception of transformers or safetensors
        message = f"cannot build a causal language model from {folder}: {first_line(error)}"
        raise ModelError(message) from error
    return text_model(module, words)


def expect_weights(folder: Path) -> dict[str, str]:
    """Return the dtype codes of the stored tensors by name. Raises NoSuchModel if there are none, and ModelError."""
    stored = stored_tensors(folder)
    if not stored:
        message = f"{folder} says how a model is built and holds no weights (*.safetensors); name a trained model or a checkpoint"
        raise NoSuchModel(message)
    return stored


def text_model(module: Any, tokenizer: Any) -> TextModel:
    """Combine a module in memory with a tokenizer. Raises NoSuchModel if they do not fit together."""
    rows = int(module.get_input_embeddings().num_embeddings)
    if len(tokenizer) > rows:
        message = f"the tokenizer has {len(tokenizer)} tokens and the model knows {rows}; name the model's own with --tokenizer"
        raise NoSuchModel(message)

    limit = getattr(module.config.get_text_config(), "max_position_embeddings", None)
    return TextModel(module, tokenizer, limit if limit is not None and limit > 0 else None)


def load_tokenizer(folder: Path) -> Any:
    """Return the tokenizer in a folder, as transformers reads it. Raises NoSuchModel, ModelError."""
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        message = f"{folder} holds no tokenizer (tokenizer.json); name a folder that does with --tokenizer"
        raise NoSuchModel(message)

    auto: Any = transformers.AutoTokenizer
    try:
        with quiet():
            return auto.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # broken files raise almost any exception
        message = f"transformers {transformers.__version__} cannot read the tokenizer in {folder}: {first_line(error)}"
        raise ModelError(message) from error
