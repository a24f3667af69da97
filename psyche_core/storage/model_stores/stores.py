"""Where a run's models are stored for later members: a Hub repository, a folder that all members can read, or a bucket.

A bucket is in a cloud, a folder given by URL, or in a store of a plugin of the kind `store`.

A store uploads a complete checkpoint folder and returns the location that the client reports to the coordinator
(`model.LLM.checkpoint`). Every step has its own place (a commit, a prefix, a folder), so that a reader never sees an unfinished
checkpoint of another step. The manifest is written last: a checkpoint without one is not complete. Old checkpoints are deleted
only after the new one is complete, and only if requested. Libraries are imported when a store is used. The client decides when to
store.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Iterable
from pathlib import Path

import anyio
import anyio.from_thread
import anyio.to_thread

from psyche_core.config.run_config import Choice
from psyche_core.errors import StoreError
from psyche_core.interfaces.store import ModelStore
from psyche_core.storage.checkpoint_names import MANIFEST_FILE, checkpoint_path, checkpoints
from psyche_core.storage.folders import whole_folder
from psyche_core.storage.model_stores.interface import OpenStore, RetentionPolicy
from psyche_core.storage.object_store import open_bucket

logger: logging.Logger = logging.getLogger("psyche.storage")

HUB_EXTRA = "storing on the Hub needs huggingface_hub: pip install 'psyche-core[train]'"
MAX_NAME_BYTES = 64
"""Maximum length in bytes of a string of a location in a run configuration."""


class HubStore:
    """A repository of the Hub, with one commit per step. Old steps stay in the repository's history.

    repo: `owner/name`. token: None to use the stored login. endpoint: URL of another Hub, None for the default.
    """

    def __init__(self, repo: str, *, token: str | None = None, endpoint: str | None = None) -> None:
        self._repo = repo
        self._token = token
        self._endpoint = endpoint

    async def put(self, directory: Path, *, run_id: str, step: int) -> Choice:
        """Make one commit with the folder's files and return its location. Raises StoreError.

        The commit also deletes weight files of older steps that the folder does not have.
        """
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
        except Exception as error:  # huggingface_hub raises its own exceptions, those of its HTTP client and those of the system
            message = f"the Hub did not accept it in {self._repo}: {_first_line(error)}"
            raise StoreError(message) from error

        return Choice("Hub", {"repo_id": self._repo, "revision": str(commit.oid)})


class BucketStore:
    """A bucket of Google Cloud Storage, of S3 (`s3://name`), a folder by URL (`file:///…`), or a plugin's; one prefix per step.

    bucket: its name or URL. prefix: folder in the bucket, None for its top. keep: which steps are kept; the default keeps three.
    open_store: opens it; where a URL may be a plugin's, `plugins.model_stores` has one.
    """

    def __init__(
        self,
        bucket: str,
        *,
        prefix: str | None = None,
        keep: RetentionPolicy | None = None,
        open_store: OpenStore = open_bucket,
    ) -> None:
        self._bucket = bucket
        self._prefix = (prefix or "").strip("/")
        self._keep = keep or RetentionPolicy()
        self._open = open_store

    async def put(self, directory: Path, *, run_id: str, step: int) -> Choice:
        """Store all files under `PREFIX/RUN-stepN`, the manifest last, and return the location.

        If the task is cancelled, this ends before the next part of a file; the manifest is then missing. Raises StoreError, and
        what opening the bucket raises.
        """
        return await anyio.to_thread.run_sync(lambda: self._put(directory, run_id=run_id, step=step))

    def _put(self, directory: Path, *, run_id: str, step: int) -> Choice:
        folder = "/".join(part for part in (self._prefix, checkpoint_path(Path(), run_id, step).name) if part)
        _check_length("the bucket's name", self._bucket)
        _check_length("the prefix with the step's folder", folder)
        with contextlib.closing(self._open(self._bucket)) as store:
            paths = sorted(path for path in directory.iterdir() if path.is_file())
            for path in sorted(paths, key=lambda path: path.name == MANIFEST_FILE):
                store.put_file(f"{folder}/{path.name}", path, proceed=anyio.from_thread.check_cancelled)
            self._expect_listed(store, f"{folder}/", paths)
            if self._keep.delete:
                try:
                    self._delete_old(store, run_id)
                except StoreError as error:  # not fatal: the new model is stored
                    logger.warning("old models of run %s were not deleted: %s", run_id, error)
        return Choice("Gcs", {"bucket": self._bucket, "prefix": folder})

    def _expect_listed(self, store: ModelStore, folder: str, paths: Iterable[Path]) -> None:
        """Raise StoreError if not all files are listed: the run is about to refer to this place. Who may not list is believed."""
        try:
            listed = set(store.names(folder))
        except StoreError as error:  # rights to write and none to list
            logger.debug("what was stored in %s cannot be listed: %s", self._bucket, error)
            return
        absent = sorted({f"{folder}{path.name}" for path in paths} - listed)
        if absent:
            message = f"{self._bucket} took {absent[0]} and does not list it, so nobody could load the model; use another place"
            raise StoreError(message)

    def _delete_old(self, store: ModelStore, run_id: str) -> None:
        """Delete all steps of this run except the newest ones. Raises StoreError."""
        stem = checkpoint_path(Path(), run_id, 0).name.removesuffix("0")
        start = f"{self._prefix}/" if self._prefix else ""
        names = store.names(start)
        steps = {int(number) for name in names if (number := _step_of(name.removeprefix(start), stem)) is not None}
        for step in sorted(steps)[: -self._keep.steps]:
            store.delete([name for name in names if name.startswith(f"{start}{stem}{step}/")])


class FolderStore:
    """A folder that all members can read, such as a network drive.

    location: as written in the run configuration. base: folder at which a relative location starts. keep: which steps are kept.
    """

    def __init__(self, location: str, *, base: Path, keep: RetentionPolicy | None = None) -> None:
        self._location = location.rstrip("/")
        self._base = base
        self._keep = keep or RetentionPolicy()

    async def put(self, directory: Path, *, run_id: str, step: int) -> Choice:
        """Copy the folder to `LOCATION/RUN-stepN` and return the location. Raises StoreError."""
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
        except OSError as error:
            message = f"cannot copy it to {target}: {error.strerror or error}"
            raise StoreError(message) from error

        try:
            for old in checkpoints(target.parent, run_id)[: -self._keep.steps] if self._keep.delete else ():
                shutil.rmtree(old)
        except OSError as error:
            logger.warning("old models of run %s were not deleted: %s", run_id, error)


def _step_of(name: str, stem: str) -> str | None:
    """Return the step N in `RUN-stepN/file` as text, or None for other names. stem: `RUN-step`."""
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
