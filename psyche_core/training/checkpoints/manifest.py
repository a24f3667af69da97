"""The manifest of a checkpoint folder, the file `psyche.json` in it: which model it is, and the SHA-256 of all its parts.

Each tensor has its own digest, over its bytes as stored in the safetensors file, so that a damaged file can be distinguished from
a different model. Every other file has one digest over its bytes. Reading and writing do not need torch: the header of a
safetensors file is JSON. The size of data from other machines is checked before it is read. A folder is invalid if listed files
are missing, changed, or longer or shorter than listed; files that are not listed are ignored and not read. The optimizer's public
state is in a safetensors file of its own, which other software need not read.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from psyche_core.errors import ModelError
from psyche_core.regular_files import regular
from psyche_core.storage.checkpoint_names import MANIFEST_FILE
from psyche_core.types import MAX_CLIENTS, Decision

MAX_MANIFEST_BYTES = 64 * 2**20
MAX_HEADER_BYTES = 100 * 2**20
"""The limit that the safetensors format itself has."""

STATE_FILE = "public_state.safetensors"
"""The optimizer's public state, see `public_state`."""

CHUNK_BYTES = 4 * 2**20
WEIGHTS = ".safetensors"

_Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_Slots = Annotated[tuple[Annotated[int, Field(ge=0, lt=MAX_CLIENTS)], ...], Field(strict=False, max_length=MAX_CLIENTS)]
_FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,200}$")]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFacts:
    """Which model a checkpoint contains.

    step: the last one applied. epoch: the epoch of that step. data_index: first sample that was never assigned. digest: full
    digest of the model (32 bytes, see `shared_tensors.shared_digest`), empty if unknown. generation: how often the run had gone
    back; it distinguishes different masters of the same step. mid_epoch: whether it was saved before the end of the epoch.
    instance: of the run (32 bytes); it distinguishes runs that were begun anew under the same name. Empty for a model of no run.
    decision: what decided the step, None if unknown; a coordinator that was restored from an older state may decide it again.
    """

    run_id: str
    step: int
    epoch: int
    data_index: int
    digest: bytes = b""
    generation: int = 0
    mid_epoch: bool = False
    instance: bytes = b""
    decision: Decision | None = None


class _Table(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True, strict=True)


class TensorEntry(_Table):
    """A tensor. file: name of its safetensors file. dtype: as written by safetensors. sha256: of its bytes, 64 hex digits."""

    file: _FileName
    dtype: Annotated[str, Field(max_length=16)]
    shape: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(strict=False, max_length=16)]
    sha256: _Digest


class FileEntry(_Table):
    """A file without tensors: configuration or tokenizer. bytes: its length. sha256: of its bytes, 64 hex digits."""

    bytes: Annotated[int, Field(ge=0)]
    sha256: _Digest


class DecisionEntry(_Table):
    """The decision of the last step: epoch and height of its round. statements: digest of the statements about it, 64 hex digits.

    history: digest of the run's decisions up to this step, 64 hex digits, zeros if unknown. Version 6 does not have it; the slots
    and void shares of that version are read but not used.
    """

    epoch: Annotated[int, Field(ge=0, lt=2**32)]
    height: Annotated[int, Field(ge=0, lt=2**32)]
    statements: _Digest
    slots: _Slots | None = None
    voided: _Slots | None = None
    history: _Digest = "0" * 64


class CheckpointManifest(_Table):
    """The content of `psyche.json`. The fields are those of `CheckpointFacts`, and the tensors and other files by name.

    Version 1 has no digest and no generation, versions up to 3 have no instance. They can still be read, but a member does not
    treat its own checkpoints of these versions as part of its run, unless their digest is signed. Version 5 has a public state,
    which its digest includes, versions 6 and 7 may have one, and have a decision; without both, version 4 is written.
    """

    version: Literal[1, 2, 3, 4, 5, 6, 7]
    run_id: Annotated[str, Field(min_length=1, max_length=64)]
    step: Annotated[int, Field(ge=0, lt=2**32)]
    epoch: Annotated[int, Field(ge=0, lt=2**32)]
    data_index: Annotated[int, Field(ge=0, lt=2**63)]
    digest: _Digest | None = None
    generation: Annotated[int, Field(ge=0, lt=2**32)] = 0
    mid_epoch: bool = False
    instance: _Digest | None = None
    decision: DecisionEntry | None = None
    tensors: dict[str, TensorEntry]
    files: dict[_FileName, FileEntry]

    @property
    def file_names(self) -> tuple[str, ...]:
        """Names of all files of the checkpoint except the manifest, ascending."""
        return tuple(sorted({*self.files, *(entry.file for entry in self.tensors.values())}))


def step_and_digest(manifest: CheckpointManifest) -> tuple[int, bytes]:
    """Return the step of a checkpoint, and the full digest of its model (32 bytes; empty if it is not in the manifest)."""
    return manifest.step, bytes.fromhex(manifest.digest or "")


def decision_in(manifest: CheckpointManifest) -> Decision | None:
    """Return what decided the last step of a checkpoint, None if that is not in the manifest."""
    entry = manifest.decision
    if entry is None:
        return None

    return Decision(
        manifest.step,
        entry.epoch,
        entry.height,
        bytes.fromhex(entry.statements),
        history=bytes.fromhex(entry.history),
    )


def write_manifest(directory: Path, facts: CheckpointFacts) -> CheckpointManifest:
    """Write and return the manifest for the files in a folder. Raises ModelError, and OSError for errors of the disk."""
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
    told = {**asdict(facts), "digest": facts.digest.hex() or None, "instance": facts.instance.hex() or None}
    version: Literal[4, 5, 7] = 5 if (directory / STATE_FILE).exists() else 4
    decision = facts.decision
    if decision is not None:
        version = 7
        told["decision"] = DecisionEntry(
            epoch=decision.epoch,
            height=decision.height,
            statements=decision.statements.hex(),
            history=decision.history.hex(),
        )
    manifest = CheckpointManifest(version=version, **told, tensors=tensors, files=files)
    left_out = {"decision"} if decision is None else None  # so that programs that know versions up to 5 can read it
    (directory / MANIFEST_FILE).write_text(manifest.model_dump_json(indent=1, exclude=left_out) + "\n", encoding="utf-8")
    return manifest


def read_manifest(directory: Path) -> CheckpointManifest | None:
    """Return the manifest in a folder, or None if there is none. Raises ModelError if it cannot be read."""
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
    """Read the content of a manifest. source: its name, for messages. Raises ModelError."""
    try:
        return CheckpointManifest.model_validate_json(text, strict=False)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "it"
        message = f"{source} is not a checkpoint manifest: {place}: {first['msg']}"
        raise ModelError(message) from error


class DamagedCheckpoint(ModelError):
    """The files of a checkpoint are not those that its manifest lists: bytes changed after it was saved.

    fact: what is wrong. The message adds what to do about a checkpoint that was downloaded.
    """

    def __init__(self, fact: str) -> None:
        super().__init__(f"{fact}; download the checkpoint again")
        self.fact: str = fact


def verify(directory: Path, manifest: CheckpointManifest) -> None:
    """Compare a folder with its manifest. Reads every listed byte.

    Raises DamagedCheckpoint for the first difference, and ModelError if a file cannot be read.
    """
    by_file: dict[str, dict[str, TensorEntry]] = {}
    for name, entry in manifest.tensors.items():
        by_file.setdefault(entry.file, {})[name] = entry
    try:
        for file_name, listed in by_file.items():
            _compare(directory / file_name, listed)
        for file_name, plain in manifest.files.items():
            path = directory / file_name
            if path.stat().st_size != plain.bytes or _digest_of(path, 0, plain.bytes) != plain.sha256:
                message = f"{path} differs from the file listed in {MANIFEST_FILE}"
                raise DamagedCheckpoint(message)
    except OSError as error:
        message = f"the checkpoint in {directory} is incomplete: {error.filename}: {error.strerror}"
        raise ModelError(message) from error


def _compare(path: Path, listed: Mapping[str, TensorEntry]) -> None:
    found = dict(_tensors(path))
    for name in listed.keys() | found.keys():
        if name not in listed or name not in found:
            where = "is not in its file" if name in listed else "is not listed"
            message = f"tensor {name} of {path} {where}"
            raise DamagedCheckpoint(message)
        if listed[name] != found[name]:
            message = f"tensor {name} of {path} differs from the one listed in {MANIFEST_FILE}"
            raise DamagedCheckpoint(message)


def _tensors(path: Path) -> Iterator[tuple[str, TensorEntry]]:
    """Yield the tensors of a safetensors file with their digests. Raises DamagedCheckpoint for a file in another format."""
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
                message = f"{path} is cut or damaged: tensor {name!r:.80} is outside the file"
                raise DamagedCheckpoint(message)


def _header(path: Path) -> tuple[int, dict[str, Any]]:
    """Return the position of the first tensor in the file, and the header. Raises DamagedCheckpoint."""
    try:
        with open(path, "rb", opener=regular) as file:
            length = int.from_bytes(file.read(8), "little")
            text = file.read(length) if length <= MAX_HEADER_BYTES else b""
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        message = f"{path} is not a safetensors file, or its beginning is damaged"
        raise DamagedCheckpoint(message) from error

    if not isinstance(header, dict):
        message = f"{path} is not a safetensors file: its header is not a table"
        raise DamagedCheckpoint(message)

    return 8 + length, header


def _digest_of(path: Path, first: int, count: int) -> str:
    digest = hashlib.sha256()
    with open(path, "rb", opener=regular) as file:
        file.seek(first)
        left = count
        while left:
            chunk = file.read(min(left, CHUNK_BYTES))
            if not chunk:
                break  # the file became shorter: the digest will differ
            digest.update(chunk)
            left -= len(chunk)
    return digest.hexdigest()


def total_bytes(manifest: CheckpointManifest) -> int:
    """Return the approximate size of a checkpoint in bytes: tensors by dtype and shape, and the other listed files."""
    widths = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2}
    values = sum(widths.get(entry.dtype, 1) * math.prod(entry.shape) for entry in manifest.tensors.values())
    return values + sum(entry.bytes for entry in manifest.files.values())
