"""A bucket, through obstore: Google Cloud Storage by its name, everything else by URL (`s3://name`, `file:///folder`).

Credentials and endpoints are taken from the same places as by the cloud providers' own tools (GOOGLE_APPLICATION_CREDENTIALS,
AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, …); without credentials, a bucket is read anonymously. Large files are sent in parts. Every
error becomes a StoreError with one sentence. All functions block: call them in a worker thread. A bucket follows the contract of
a plugin's store, `psyche_core.interfaces.ModelStore`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from psyche_core.errors import NoSuchBucket, StoreError
from psyche_core.interfaces.store import PART_BYTES, ModelStore, Proceed, go_on

EXTRA = "buckets need obstore: pip install 'psyche-core[gcs]'"
_CREDENTIALS = {
    "gs": (
        "GOOGLE_APPLICATION_CREDENTIALS",
        "GOOGLE_SERVICE_ACCOUNT",
        "GOOGLE_SERVICE_ACCOUNT_KEY",
        "GOOGLE_SERVICE_ACCOUNT_PATH",
    ),
    "s3": ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"),
}


class ObjectStore(ModelStore):
    """One bucket. store: the store object of obstore. name: for messages."""

    def __init__(self, store: Any, *, name: str) -> None:
        self._store = store
        self._name = name

    def names(self, prefix: str) -> list[str]:
        """Return the names of all objects under a prefix (`a/b/`), ascending. Raises StoreError, NoSuchBucket."""
        obstore = _obstore()
        try:
            folder = prefix.rpartition("/")[0]  # obstore accepts only whole path components as a prefix
            found = [str(entry["path"]) for page in obstore.list(self._store, prefix=folder or None) for entry in page]
        except Exception as error:  # obstore raises its own exceptions and those of the system
            if "404 Not Found" in str(error):  # not a missing prefix: that gives an empty list
                message = f"there is no bucket {self._name}; check its name"
                raise NoSuchBucket(message) from error
            raise self._failed(f"list {prefix or 'it'}", error) from error

        return sorted(name for name in found if name.startswith(prefix))

    def put_file(self, name: str, path: Path, *, proceed: Proceed = go_on) -> None:
        """Store a file as the object `name`, which appears complete or not at all. Raises StoreError."""
        obstore = _obstore()
        asked = _Asked(proceed)
        try:
            if path.stat().st_size <= PART_BYTES:
                asked()
                obstore.put(self._store, name, path.read_bytes())
            else:
                obstore.put(self._store, name, _parts(path, asked), chunk_size=PART_BYTES, max_concurrency=1)
        except Exception as error:  # as above
            if error is asked.raised:
                raise
            raise self._failed(f"write {name}", error) from error

    def get_file(self, name: str, path: Path, *, max_bytes: int, proceed: Proceed = go_on) -> None:
        """Write an object into a file, chunk by chunk. If the file exists, continue at its end. Raises StoreError.

        A file that is longer than the object is deleted, and this raises StoreError, so that the next attempt starts again.
        This does not check that the existing bytes belong to the object: the caller must verify the complete file. obstore
        reconnects if a connection breaks.
        """
        obstore = _obstore()
        asked = _Asked(proceed)
        try:
            size = obstore.head(self._store, name)["size"]
            if size > max_bytes:
                message = f"{name} in the bucket {self._name} has {size} bytes, over the limit of {max_bytes}"
                raise StoreError(message)
            start = path.stat().st_size if path.exists() else 0
            if start > size:
                path.unlink()
                message = (
                    f"{name} in the bucket {self._name} has {size} bytes, fewer than an earlier attempt downloaded; try again"
                )
                raise StoreError(message)

            with path.open("ab") as file:
                if start == size:
                    return  # the server would reject an empty range

                asked()
                result = obstore.get(self._store, name, options={"range": (start, size)})
                for chunk in result.stream(min_chunk_size=PART_BYTES):
                    file.write(chunk)
                    asked()
        except StoreError:
            raise
        except Exception as error:  # as above
            if error is asked.raised:
                raise
            raise self._failed(f"read {name}", error) from error

    def get(self, name: str, *, max_bytes: int) -> bytes | None:
        """Return the content of a small object, or None if there is none. Raises StoreError, also if it is too large."""
        obstore = _obstore()
        try:
            result = obstore.get(self._store, name)
            if result.meta["size"] > max_bytes:
                message = f"{name} in {self._name} has {result.meta['size']} bytes, over the limit of {max_bytes}"
                raise StoreError(message)
            return bytes(result.bytes())
        except (FileNotFoundError, obstore.exceptions.NotFoundError):
            return None
        except StoreError:
            raise
        except Exception as error:  # as above
            raise self._failed(f"read {name}", error) from error

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects; a missing object is not an error. Raises StoreError."""
        obstore = _obstore()
        try:
            try:
                obstore.delete(self._store, list(names))
            except (FileNotFoundError, obstore.exceptions.NotFoundError):  # from a folder, which may then skip the other names
                for name in names:
                    with contextlib.suppress(FileNotFoundError, obstore.exceptions.NotFoundError):
                        obstore.delete(self._store, [name])
        except Exception as error:  # as above
            raise self._failed(f"delete {len(names)} objects", error) from error

    def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def _failed(self, what: str, error: Exception) -> StoreError:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        hint = ""
        if any(word in str(error) for word in ("401", "403", "Unauth", "Permission", "Forbidden")):
            hint = (
                "; set GOOGLE_APPLICATION_CREDENTIALS (or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY) to an account "
                "with permission"
            )
        return StoreError(f"cannot {what} in the bucket {self._name}: {reason}{hint}")


class _Asked:
    """A `Proceed` that remembers the exception it raised, to distinguish it from exceptions of obstore."""

    def __init__(self, proceed: Proceed) -> None:
        self._proceed = proceed
        self.raised: BaseException | None = None

    def __call__(self) -> None:
        try:
            self._proceed()
        except BaseException as error:
            self.raised = error
            raise


def _parts(path: Path, proceed: Proceed) -> Iterator[bytes]:
    with path.open("rb") as file:
        while part := file.read(PART_BYTES):
            proceed()
            yield part


def open_bucket(bucket: str) -> ObjectStore:
    """Return the bucket with this name or URL. Raises StoreError for an unusable name. A missing bucket fails at first use."""
    obstore = _obstore()
    url = bucket if "://" in bucket else f"gs://{bucket}"
    scheme = url.partition("://")[0]
    options: dict[str, Any] = {}
    if scheme in _CREDENTIALS and not any(os.environ.get(name) for name in _CREDENTIALS[scheme]):
        options["skip_signature"] = True
    if os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://") and scheme == "s3":
        options["client_options"] = {"allow_http": True}
    try:
        if scheme == "file":
            Path(url.removeprefix("file://")).mkdir(parents=True, exist_ok=True)
        store = obstore.store.from_url(url, **options)
    except Exception as error:  # obstore raises its own exceptions for bad names, and those of the system for folders
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        message = f"{bucket!r} cannot be used as a bucket: {reason}"
        raise StoreError(message) from error

    return ObjectStore(store, name=bucket)


def _obstore() -> Any:
    try:
        import obstore
        import obstore.exceptions
        import obstore.store
    except ModuleNotFoundError as error:
        raise StoreError(EXTRA) from error

    return obstore
