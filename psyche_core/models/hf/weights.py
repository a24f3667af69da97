"""Reads the weights of a model folder: finds the files, checks that they are complete, and loads them into the module.

If the folder has safetensors files, all tensors are loaded; if it has none, the weights are random. Half-precision checkpoints
become float32. Anything that would silently replace trained weights raises ModelError: a file that is missing or truncated,
another format, and tensors that are missing, unexpected, of another shape, integers or not finite.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
import transformers
from safetensors import SafetensorError, safe_open
from transformers.core_model_loading import revert_weight_conversion

from psyche_core.errors import ModelError
from psyche_core.models.hf.configuration import Configuration, read_small
from psyche_core.models.hf.quiet import first_line, quiet
from psyche_core.regular_files import expect_regular

WEIGHTS_FILE: Final = "model.safetensors"
INDEX_FILE: Final = "model.safetensors.index.json"
MAX_INDEX_BYTES: Final = 64 * 2**20

_FLOATS: Final = ("F32", "BF16", "F16")
_OTHER_FORMATS: Final = ("*.bin", "*.pt", "*.pth", "*.gguf")


def stored_tensors(source: Path) -> dict[str, str]:
    """Return the dtype codes of the tensors in the folder's safetensors files, by name; {} if the weights are random.

    Checks that all files exist and are complete and readable. Raises ModelError.
    """
    if (source / WEIGHTS_FILE).exists():
        files: tuple[Path, ...] = (source / WEIGHTS_FILE,)
        expected: dict[str, list[str]] = {}
    elif (source / INDEX_FILE).exists():
        expected = _read_index(source / INDEX_FILE)
        files = tuple(source / name for name in sorted(expected))
    else:
        _refuse_unusable(source)
        return {}

    stored: dict[str, str] = {}
    for path in files:
        held = _read_header(path)
        missing = sorted(set(expected.get(path.name, ())) - held.keys())
        if missing:
            message = f"{path} does not hold tensor {missing[0]}, which {INDEX_FILE} says it does; download it again"
            raise ModelError(message)
        stored |= held
    return stored


def load_module(configuration: Configuration, stored: Mapping[str, str], *, attention: str | None) -> Any:
    """Return the module with exactly the tensors of the folder, float32, on the CPU.

    stored: the result of `stored_tensors`. attention: None for the model's default. Raises ModelError, and any exception that
    transformers raises for a configuration it cannot build.
    """
    source = configuration.source
    auto: Any = transformers.AutoModelForCausalLM
    try:
        with quiet():
            module, info = auto.from_pretrained(
                source,
                config=configuration.parsed,
                dtype=torch.float32,
                attn_implementation=attention,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                ignore_mismatched_sizes=True,  # so that they are reported below, by name
                output_loading_info=True,
            )
    except RuntimeError:  # tensors that it fuses do not fit together; it only logs which ones
        _refuse_unfitting(source, missing=sorted(_expected_names(configuration) - stored.keys()))
        raise

    _refuse_unfitting(
        source,
        missing=sorted(info["missing_keys"]),
        unexpected=sorted(info["unexpected_keys"]),
        wrongly_shaped=sorted(str(entry[0]) for entry in info["mismatched_keys"]),
    )
    _check_tie(module, configuration)
    _check_values(module, stored, source)
    return module


def on_disk(module: Any, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return tensors of a module by the names that checkpoints of its architecture use. tensors: must be complete layers."""
    found: dict[str, torch.Tensor] = revert_weight_conversion(module, dict(tensors))
    return found


def _expected_names(configuration: Configuration) -> set[str]:
    auto: Any = transformers.AutoModelForCausalLM
    with quiet(), torch.device("meta"):
        module = auto.from_config(configuration.parsed)
    return set(on_disk(module, dict(module.named_parameters())))


def _refuse_unfitting(source: Path, **problems: list[str]) -> None:
    for problem, names in problems.items():
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            said = problem.replace("_", " ")
            message = f"the weights in {source} do not fit its config.json: tensor {names[0]}{more} {said}"
            raise ModelError(message)


def _read_index(path: Path) -> dict[str, list[str]]:
    """Return the names of tensors by the name of the shard that must contain them. Raises ModelError if a shard is missing."""
    try:
        weight_map: Any = json.loads(read_small(path, MAX_INDEX_BYTES))["weight_map"]
        shards: dict[str, list[str]] = {}
        for tensor, shard in weight_map.items():
            if not isinstance(shard, str) or Path(shard).name != shard or not shard.endswith(".safetensors"):
                message = f"{path} names {shard!r} as a shard, expected the plain name of a .safetensors file"
                raise ModelError(message)
            shards.setdefault(shard, []).append(tensor)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        message = f"{path} is not an index of shards: expected JSON with a weight_map ({first_line(error)}); download it again"
        raise ModelError(message) from error

    absent = sorted(shard for shard in shards if not (path.parent / shard).is_file())
    if absent or not shards:
        what = f"shard {absent[0]} is missing" if absent else "no shard is named in it"
        message = f"{path} does not match its folder: {what} ({len(absent)} of {len(shards)} shards absent); download them again"
        raise ModelError(message)
    return shards


def _read_header(path: Path) -> dict[str, str]:
    """Return the dtype codes by name from a safetensors file's header. Raises ModelError if it does not match the file."""
    try:
        expect_regular(path)
        with safe_open(path, framework="pt") as handle:
            dtypes = {name: str(handle.get_slice(name).get_dtype()) for name in handle.keys()}  # noqa: SIM118 - no mapping
    except (SafetensorError, OSError) as error:
        message = f"{path} is cut short or no safetensors file ({first_line(error)}); download it again"
        raise ModelError(message) from error

    quantised = sorted(name for name, dtype in dtypes.items() if dtype.startswith(("F4", "F6", "F8")))
    if quantised:
        got = f"{path} holds {quantised[0]} as {dtypes[quantised[0]]}"
        message = f"{got}, expected {', '.join(_FLOATS)}; quantised weights cannot be trained"
        raise ModelError(message)
    return dtypes


def _refuse_unusable(source: Path) -> None:
    """Raise ModelError if the folder has weights that we do not read, because random weights must never replace trained ones."""
    for path in sorted(source.glob("*.safetensors")):
        message = (
            f"{path} is neither {WEIGHTS_FILE} nor in a {INDEX_FILE}; add the index, or remove the file to start with "
            "random weights"
        )
        raise ModelError(message)
    for pattern in _OTHER_FORMATS:
        for path in source.glob(pattern):
            message = (
                f"{path} has an unsupported weight format; convert it to safetensors, or remove it to start with random weights"
            )
            raise ModelError(message)


def _check_tie(module: Any, configuration: Configuration) -> None:
    """Raise ModelError if the configuration ties the embeddings but the stored ones differ.

    transformers unties them in this case, but a model built from config.json only would have one parameter less.
    """
    output = module.get_output_embeddings()
    tied = getattr(configuration.parsed.get_text_config(), "tie_word_embeddings", False)
    if tied and output is not None and output.weight is not module.get_input_embeddings().weight:
        message = (
            f"the weights in {configuration.source} do not fit its config.json: tie_word_embeddings is true, but the output "
            "embedding differs from the input's; set it to false if they are meant to differ"
        )
        raise ModelError(message)


def _check_values(module: torch.nn.Module, stored: Mapping[str, str], source: Path) -> None:
    for name, tensor in module.named_parameters():
        if stored.get(name, "F32") not in _FLOATS or tensor.dtype != torch.float32:
            message = f"tensor {name} in {source} is stored as {stored.get(name)}, expected {', '.join(_FLOATS)}"
            raise ModelError(message)
        if not bool(tensor.isfinite().all()):
            message = f"tensor {name} in {source} holds values that are NaN or infinite; the checkpoint is damaged, use another"
            raise ModelError(message)
