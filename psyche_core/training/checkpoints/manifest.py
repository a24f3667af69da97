"""What a checkpoint folder holds, written beside it as `psyche.json`: whose model it is and the SHA-256 of all its parts.

Each tensor has its own digest, over its bytes as stored in the safetensors file, so that a damaged shard can be told from a
damaged model. Every other file has one digest over its bytes. Reading and writing need no torch: the header of a safetensors file
is JSON. Data from outside is limited in size before it is read. A folder is refused if listed files are missing, changed, or
longer or shorter than listed; files that are not listed are ignored and not read.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from psyche_core.errors import ModelError
from psyche_core.regular_files import regular

MANIFEST_FILE = "psyche.json"
MAX_MANIFEST_BYTES = 64 * 2**20
MAX_HEADER_BYTES = 100 * 2**20
"""The limit of the safetensors format itself."""

CHUNK_BYTES = 4 * 2**20
WEIGHTS = ".safetensors"

_Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,200}$")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Whose model it is. step: the last one applied; epoch: of that step; data_index: first sample never yet assigned.

    digest: full digest of the masters (32 bytes, see `digest.full_digest`), empty where it is not known. generation: how often
    the run had gone back, which tells apart two sets of masters of one step. mid_epoch: whether the epoch went on after it.
    """

    run_id: str
    step: int
    epoch: int
    data_index: int
    digest: bytes = b""
    generation: int = 0
    mid_epoch: bool = False


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class TensorEntry(_Table):
    """A tensor. file: name of the one it lies in; dtype: as safetensors writes it."""

    file: _FileName
    dtype: Annotated[str, Field(max_length=16)]
    shape: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(strict=False, max_length=16)]
    sha256: _Digest


class FileEntry(_Table):
    """A file that holds no tensors: configuration, tokenizer."""

    bytes: Annotated[int, Field(ge=0)]
    sha256: _Digest


class CheckpointManifest(_Table):
    """The content of `psyche.json`.

    Version 1 had neither digest nor generation, and is still read. Version 3 is written for what only its owner reads: a
    checkpoint in mid-epoch.
    """

    version: Literal[1, 2, 3]
    run_id: Annotated[str, Field(min_length=1, max_length=64)]
    step: Annotated[int, Field(ge=0, lt=2**32)]
    epoch: Annotated[int, Field(ge=0, lt=2**32)]
    data_index: Annotated[int, Field(ge=0, lt=2**63)]
    digest: _Digest | None = None
    generation: Annotated[int, Field(ge=0, lt=2**32)] = 0
    mid_epoch: bool = False
    tensors: dict[str, TensorEntry]
    files: dict[_FileName, FileEntry]

    @property
    def file_names(self) -> tuple[str, ...]:
        """All files of the checkpoint but the manifest, ascending."""
        return tuple(sorted({*self.files, *(entry.file for entry in self.tensors.values())}))


def write_manifest(directory: Path, facts: Facts) -> CheckpointManifest:
    """Describe the files that lie in a folder. Raises ModelError; OSError for what the disk refuses."""
    tensors: dict[str, TensorEntry] = {}
    files: dict[str, FileEntry] = {}
    for path in sorted(directory.iterdir()):
        if path.suffix == WEIGHTS:
            for name, entry in _tensors(path):
                if name in tensors:
                    message = f"tensor {name} is in {tensors[name].file} and in {path.name}"
                    raise ModelError(message)
                tensors[name] = entry
        elif path.name != MANIFEST_FILE:
            files[path.name] = FileEntry(bytes=path.stat().st_size, sha256=_digest_of(path, 0, path.stat().st_size))
    told = {**asdict(facts), "digest": facts.digest.hex() or None}
    manifest = CheckpointManifest(version=3 if facts.mid_epoch else 2, **told, tensors=tensors, files=files)
    unsaid = set() if facts.mid_epoch else {"mid_epoch"}
    (directory / MANIFEST_FILE).write_text(manifest.model_dump_json(indent=1, exclude=unsaid) + "\n", encoding="utf-8")
    return manifest


def read_manifest(directory: Path) -> CheckpointManifest | None:
    """The manifest in a folder, None when there is none. Raises ModelError for one that cannot be read."""
    path = directory / MANIFEST_FILE
    try:
        with open(path, "rb", opener=regular) as file:
            text = file.read(MAX_MANIFEST_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        message = f"cannot read {path}: {error.strerror}"
        raise ModelError(message) from error

    if len(text) > MAX_MANIFEST_BYTES:
        message = f"{path} is over the limit of {MAX_MANIFEST_BYTES} bytes"
        raise ModelError(message)

    return parse_manifest(text, source=str(path))


def parse_manifest(text: bytes, *, source: str) -> CheckpointManifest:
    """Read the content of a manifest. Raises ModelError."""
    try:
        return CheckpointManifest.model_validate_json(text, strict=False)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "it"
        message = f"{source} is no manifest of a checkpoint: {place}: {first['msg']}"
        raise ModelError(message) from error


def verify(directory: Path, manifest: CheckpointManifest) -> None:
    """Compare a folder with its manifest. Raises ModelError for the first difference; reads every listed byte."""
    by_file: dict[str, dict[str, TensorEntry]] = {}
    for name, entry in manifest.tensors.items():
        by_file.setdefault(entry.file, {})[name] = entry
    try:
        for file_name, listed in by_file.items():
            _compare(directory / file_name, listed)
        for file_name, plain in manifest.files.items():
            path = directory / file_name
            if path.stat().st_size != plain.bytes or _digest_of(path, 0, plain.bytes) != plain.sha256:
                message = f"{path} is not the file that {MANIFEST_FILE} lists; get the checkpoint again"
                raise ModelError(message)
    except OSError as error:
        message = f"the checkpoint in {directory} is not whole: {error.filename}: {error.strerror}"
        raise ModelError(message) from error


def _compare(path: Path, listed: Mapping[str, TensorEntry]) -> None:
    found = dict(_tensors(path))
    for name in listed.keys() | found.keys():
        if name not in listed or name not in found:
            where = "is not in its file" if name in listed else "is not listed"
            message = f"tensor {name} of {path} {where}; get the checkpoint again"
            raise ModelError(message)
        if listed[name] != found[name]:
            message = f"tensor {name} of {path} is not the one that {MANIFEST_FILE} lists; get the checkpoint again"
            raise ModelError(message)


def _tensors(path: Path) -> Iterator[tuple[str, TensorEntry]]:
    """The tensors of a safetensors file with their digests. Raises ModelError for a file that is none."""
    start, header = _header(path)
    size = path.stat().st_size
    for name, entry in header.items():
        if name == "__metadata__":
            continue

        match entry:
            case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [int(first), int(last)]} if (
                all(type(part) is int for part in shape) and 0 <= first <= last and start + last <= size
            ):
                digest = _digest_of(path, start + first, last - first)
                yield name, TensorEntry(file=path.name, dtype=dtype, shape=tuple(shape), sha256=digest)
            case _:
                message = f"{path} is cut or damaged: tensor {name!r:.80} does not lie in it; get the checkpoint again"
                raise ModelError(message)


def _header(path: Path) -> tuple[int, dict[str, Any]]:
    """Where the tensors begin, and the header."""
    try:
        with open(path, "rb", opener=regular) as file:
            length = int.from_bytes(file.read(8), "little")
            text = file.read(length) if length <= MAX_HEADER_BYTES else b""
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        message = f"{path} is no safetensors file, or its beginning is damaged; get the checkpoint again"
        raise ModelError(message) from error

    if not isinstance(header, dict):
        message = f"{path} is no safetensors file: its header is no table; get the checkpoint again"
        raise ModelError(message)

    return 8 + length, header


def _digest_of(path: Path, first: int, count: int) -> str:
    digest = hashlib.sha256()
    with open(path, "rb", opener=regular) as file:
        file.seek(first)
        left = count
        while left:
            chunk = file.read(min(left, CHUNK_BYTES))
            if not chunk:
                break  # cut meanwhile: the digest is another one
            digest.update(chunk)
            left -= len(chunk)
    return digest.hexdigest()


def total_bytes(manifest: CheckpointManifest) -> int:
    """About how much there is to fetch: tensors by dtype and shape, and the listed files."""
    widths = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2}
    values = sum(widths.get(entry.dtype, 1) * math.prod(entry.shape) for entry in manifest.tensors.values())
    return values + sum(entry.bytes for entry in manifest.files.values())
