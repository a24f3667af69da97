"""Where a run's models are stored for later members: a Hub repository, a bucket, or a folder that all members can read.

A store takes a whole checkpoint folder and returns the location that the coordinator is told (`model.LLM.checkpoint`). Every step
has its own place (a commit, a prefix, a folder), so that a reader never sees another one being written. The manifest is written
last: a checkpoint without one is not finished. Old ones are deleted only when the new one is there, and only if requested.
Libraries are imported when a store is used. Who stores and when is up to the client.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.to_thread

from psyche_core.config.run_config import Choice
from psyche_core.errors import StoreError
from psyche_core.storage.folders import whole_folder
from psyche_core.storage.object_store import ObjectStore, open_bucket
from psyche_core.training.checkpoints.checkpoint import checkpoint_path, checkpoints
from psyche_core.training.checkpoints.manifest import MANIFEST_FILE

HUB_EXTRA = "storing on the Hub needs huggingface_hub: pip install 'psyche-core[train]'"
MAX_NAME_BYTES = 64
"""Longest string of a location in a run configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """Which stored steps stay. steps: the newest so many; delete: whether older ones are deleted at all."""

    steps: int = 3
    delete: bool = False


class HubStore:
    """A repository of the Hub: one commit a step. repo: `owner/name`; token: None for the one that is logged in.

    endpoint: of another Hub; None for the usual one. Old steps stay in the repository's history.
    """

    def __init__(self, repo: str, *, token: str | None = None, endpoint: str | None = None) -> None:
        self._repo = repo
        self._token = token
        self._endpoint = endpoint

    async def put(self, directory: Path, *, run_id: str, step: int) -> Choice:
        """One commit with the folder's files; files of older steps that it does not have are deleted in it. Raises StoreError."""
        return await anyio.to_thread.run_sync(lambda: self._put(directory, run_id=run_id, step=step))

    def _put(self, directory: Path, *, run_id: str, step: int) -> Choice:
        try:
            from huggingface_hub import HfApi
        except ModuleNotFoundError as error:
            raise StoreError(HUB_EXTRA) from error

        api = HfApi(endpoint=self._endpoint, token=self._token)
        try:
            api.create_repo(self._repo, exist_ok=True, private=None)
            commit = api.upload_folder(
                repo_id=self._repo,
                folder_path=directory,
                commit_message=f"step {step}",
                commit_description=f"Run {run_id}, stored by a member of the run.",
                delete_patterns=["*.safetensors", "*.safetensors.index.json"],
            )
        except Exception as error:  # huggingface_hub raises the families of its own, of its HTTP client and of the system
            message = f"the Hub did not take it into {self._repo}: {_first_line(error)}"
            raise StoreError(message) from error

        return Choice("Hub", {"repo_id": self._repo, "revision": str(commit.oid)})


class BucketStore:
    """A bucket of Google Cloud Storage, or of S3 (`s3://name`), or a folder by URL (`file:///…`): one prefix a step."""

    def __init__(self, bucket: str, *, prefix: str | None = None, keep: Keep | None = None) -> None:
        self._bucket = bucket
        self._prefix = (prefix or "").strip("/")
        self._keep = keep or Keep()

    async def put(self, directory: Path, *, run_id: str, step: int) -> Choice:
        """All files under `PREFIX/RUN-stepN`, the manifest last. Raises StoreError."""
        return await anyio.to_thread.run_sync(lambda: self._put(directory, run_id=run_id, step=step))

    def _put(self, directory: Path, *, run_id: str, step: int) -> Choice:
        folder = "/".join(part for part in (self._prefix, checkpoint_path(Path(), run_id, step).name) if part)
        _check_length("the bucket's name", self._bucket)
        _check_length("the prefix with the step's folder", folder)
        store = open_bucket(self._bucket)
        paths = sorted(path for path in directory.iterdir() if path.is_file())
        for path in sorted(paths, key=lambda path: path.name == MANIFEST_FILE):
            store.put_file(f"{folder}/{path.name}", path)
        if self._keep.delete:
            self._delete_old(store, run_id)
        return Choice("Gcs", {"bucket": self._bucket, "prefix": folder})

    def _delete_old(self, store: ObjectStore, run_id: str) -> None:
        """Delete older steps of this run but the newest few. What cannot be deleted stays: the new one is stored all the same."""
        stem = checkpoint_path(Path(), run_id, 0).name.removesuffix("0")
        start = f"{self._prefix}/" if self._prefix else ""
        names = store.names(start)
        steps = {int(number) for name in names if (number := _step_of(name.removeprefix(start), stem)) is not None}
        for step in sorted(steps)[: -self._keep.steps]:
            store.delete([name for name in names if name.startswith(f"{start}{stem}{step}/")])


class FolderStore:
    """A folder that all members can read, such as a network drive. location: as it stands in the run configuration.

    base: folder that a relative location starts from.
    """

    def __init__(self, location: str, *, base: Path, keep: Keep | None = None) -> None:
        self._location = location.rstrip("/")
        self._base = base
        self._keep = keep or Keep()

    async def put(self, directory: Path, *, run_id: str, step: int) -> Choice:
        """A copy as `LOCATION/RUN-stepN`. Raises StoreError."""
        name = checkpoint_path(Path(), run_id, step).name
        location = f"{self._location}/{name}"
        _check_length("the folder with the step's own", location)
        await anyio.to_thread.run_sync(lambda: self._copy(directory, self._base / location, run_id))
        return Choice("Hub", {"repo_id": location})

    def _copy(self, directory: Path, target: Path, run_id: str) -> None:
        try:
            with whole_folder(target) as partial:
                for path in directory.iterdir():
                    shutil.copyfile(path, partial / path.name)
            if self._keep.delete:
                for old in checkpoints(target.parent, run_id)[: -self._keep.steps]:
                    shutil.rmtree(old)
        except OSError as error:
            message = f"cannot copy it to {target}: {error.strerror or error}"
            raise StoreError(message) from error


def _step_of(name: str, stem: str) -> str | None:
    """The step in `RUN-stepN/file`."""
    folder, slash, _ = name.partition("/")
    number = folder.removeprefix(stem)
    return number if slash and folder.startswith(stem) and number.isdecimal() else None


def _check_length(what: str, text: str) -> None:
    size = len(text.encode())
    if size > MAX_NAME_BYTES:
        message = (
            f"{what}, {text!r}, has {size} bytes, and a run configuration carries at most {MAX_NAME_BYTES}; use shorter names"
        )
        raise StoreError(message)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
