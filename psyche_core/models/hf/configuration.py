"""Reads and checks `config.json` of a model folder.

The unchanged file is kept for checkpoints (`fields`). In the configuration from which the model is built, every dropout is zero,
so that equal inputs give equal gradients. Quantised models raise ModelError, because their weights cannot be trained. No code
from the folder is run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import transformers

from psyche_core.errors import ModelError
from psyche_core.models.hf.quiet import first_line, quiet
from psyche_core.regular_files import expect_regular

CONFIG_FILE: Final = "config.json"
MAX_CONFIG_BYTES: Final = 4 * 2**20


@dataclass(frozen=True, slots=True)
class Configuration:
    """A model folder's configuration.

    source: the folder. fields: the JSON object as written. parsed: the configuration object of transformers, without dropout.
    """

    source: Path
    fields: Mapping[str, Any]
    parsed: Any

    @property
    def model_type(self) -> str:
        """Name of the architecture in transformers."""
        return str(self.fields["model_type"])

    def check_length(self, max_seq_len: int) -> None:
        """Raise ModelError if the run's sequences (max_seq_len tokens) are longer than the model has positions for."""
        limit = getattr(self.parsed.get_text_config(), "max_position_embeddings", None)
        if limit is not None and 0 < limit < max_seq_len:  # some architectures use -1 for no limit
            message = (
                f"the run trains sequences of {max_seq_len} tokens but {self.source / CONFIG_FILE} "
                f"allows max_position_embeddings {limit}; change one of them"
            )
            raise ModelError(message)


def read_configuration(source: Path, *, required_types: tuple[str, ...] = ()) -> Configuration:
    """Read the configuration in `source`. required_types: allowed model types, () for any. Raises ModelError."""
    fields = _read_fields(source)
    path, model_type = source / CONFIG_FILE, fields["model_type"]
    if required_types and model_type not in required_types:
        wanted = " or ".join(map(repr, required_types))
        message = f"{path} says model_type {model_type!r}, this architecture needs {wanted}; try architecture HfAuto"
        raise ModelError(message)
    if fields.get("quantization_config") is not None:
        message = (
            f"{path} has a quantization_config, and quantised weights cannot be trained; "
            "use the original float32, bfloat16 or float16 checkpoint"
        )
        raise ModelError(message)

    try:
        with quiet():
            parsed = transformers.AutoConfig.from_pretrained(source, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # unknown model types and invalid fields raise different exceptions
        message = f"transformers {transformers.__version__} cannot read {path} (model_type {model_type!r}): {first_line(error)}"
        raise ModelError(message) from error

    if type(parsed) not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        message = f"model_type {model_type!r} in {path} is not a causal language model"
        raise ModelError(message)
    _switch_dropout_off(parsed)
    return Configuration(source, fields, parsed)


def _read_fields(source: Path) -> dict[str, Any]:
    path = source / CONFIG_FILE
    if not path.is_file():
        message = f"{source} holds no config.json; a model source is a folder with config.json and, if trained, safetensors"
        raise ModelError(message)

    try:
        fields = json.loads(read_small(path, MAX_CONFIG_BYTES))
        if isinstance(fields, dict) and isinstance(fields["model_type"], str):
            return fields
    except (OSError, ValueError, KeyError, RecursionError) as error:
        message = f"{path} is not a model configuration: expected a JSON object with a model_type ({first_line(error)})"
        raise ModelError(message) from error

    message = f"{path} is not a model configuration: expected a JSON object with a model_type"
    raise ModelError(message)


def read_small(path: Path, max_bytes: int) -> bytes:
    """Return the content of a file of at most `max_bytes`. Raises OSError, and ValueError for a longer file."""
    expect_regular(path)
    size = path.stat().st_size
    if size > max_bytes:
        message = f"it has {size} bytes, expected at most {max_bytes}"
        raise ValueError(message)

    return path.read_bytes()


def _switch_dropout_off(parsed: Any) -> None:
    """Set every dropout to zero. The module stays in eval mode, but layers with gradient checkpointing use training mode."""
    for part in {id(part): part for part in (parsed, parsed.get_text_config())}.values():
        for name, value in vars(part).items():
            if "drop" in name and isinstance(value, float):
                setattr(part, name, 0.0)
