"""Reads buckets through the library obstore: S3, and Google Cloud Storage with credentials. The only module that uses obstore.

obstore's own retries are disabled; ours continue from the last byte received. Each answer has size and ETag of the object; values
that differ from the listing mean that it has changed. A run's configuration is written by somebody else, so it never contains
credentials, at most the name of a key file. For the same reason Google's endpoint comes from the key file, not from the run:
otherwise a run could have a bearer token sent to an address of its choice.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from psyche_core.errors import DataError
from psyche_data_http.fetch.client import CONNECT_SECONDS, CONNECTIONS, STALL_SECONDS
from psyche_data_http.file_source import AccessRefused, FileSource, RemoteFile, changed
from psyche_data_http.retries import LastFailure, TransientError, retry_until_success
from psyche_data_http.sources.bucket_files import MAX_OBJECTS, folder_prefix, is_token_file, place_in_order, refuse_none

if TYPE_CHECKING:
    from obstore.store import GCSStore, S3Store

MISSING_EXTRA = "reading this bucket needs obstore; get it with: pip install 'psyche-core[gcs]'"
MAX_CREDENTIALS_BYTES = 64 << 10

_LASTING = re.compile(r"status code: (4(?!08|16|25|29)\d\d)\b")
"""Matches permanent failures among obstore's errors that have no class of their own; 416 is checked separately."""

_AWS_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)


class BucketSource(FileSource):
    """The token files of a bucket. connect: makes obstore's store. name: the bucket as shown in messages, such as s3://bucket."""

    def __init__(
        self,
        connect: Callable[[], GCSStore | S3Store],
        name: str,
        directory: str,
        *,
        stall_seconds: float = STALL_SECONDS,
        connections: int = CONNECTIONS,
    ) -> None:
        self._connect = connect
        self._name = name
        self._directory = directory
        self._stall_seconds = stall_seconds
        self._slots = anyio.Semaphore(connections)
        self._store: Any = None

    async def files(self, last_failure: LastFailure) -> list[RemoteFile]:
        """List the bucket, and check that its objects can be read."""
        self._store = self._connect()
        found = await retry_until_success(self._list, last_failure)
        where = f"{self._name}/{folder_prefix(self._directory)}"
        refuse_none((file.url for file in found), where=where)
        await retry_until_success(lambda: self._look(found[0]), last_failure)
        return found

    async def receive(self, file: RemoteFile, start: int, wanted: int, received: bytearray) -> None:
        """See FileSource."""
        import obstore

        try:
            async with self._attempt(file.name):
                with anyio.fail_after(self._stall_seconds):
                    answer = await obstore.get_async(self._store, self._path(file), options={"range": (start, start + wanted)})
                self._check(file, answer.meta)
                if answer.range != (start, start + wanted):
                    message = (
                        f"{file.name} sent the range {answer.range}; asked for {(start, start + wanted)}; use another server"
                    )
                    raise DataError(message)

                await self._take(answer.stream(min_chunk_size=0).__aiter__(), wanted, received)
        except TransientError:
            await self._look(file)  # because failures caused by a changed or shortened object look temporary
            raise

    async def _take(self, chunks: AsyncIterator[Any], wanted: int, received: bytearray) -> None:
        end = len(received) + wanted
        while len(received) < end:
            with anyio.fail_after(self._stall_seconds):
                chunk = await anext(chunks, None)
            if chunk is None:
                message = f"{self._name} ended {end - len(received)} bytes early"
                raise TransientError(message)
            received += memoryview(chunk)[: end - len(received)]

    async def _list(self) -> list[RemoteFile]:
        import obstore

        found: dict[str, RemoteFile] = {}
        async with self._attempt(self._name):
            pages = obstore.list(self._store, folder_prefix(self._directory) or None).__aiter__()
            while len(found) <= MAX_OBJECTS:
                with anyio.fail_after(self._stall_seconds):
                    page = await anext(pages, None)
                if page is None:
                    break
                for meta in page:
                    if is_token_file(meta["path"]):
                        found[meta["path"]] = self._file(meta)

        return [found[name] for name in sorted(found, key=place_in_order)]

    async def _look(self, file: RemoteFile) -> None:
        """Raise DataError when the object has changed or may not be read."""
        import obstore

        async with self._attempt(file.name):
            with anyio.fail_after(self._stall_seconds):
                self._check(file, await obstore.head_async(self._store, self._path(file)))

    def _file(self, meta: Any) -> RemoteFile:
        etag = meta["e_tag"]
        return RemoteFile(f"{self._name}/{meta['path']}", meta["size"], None if etag is None else _bare(etag))

    def _path(self, file: RemoteFile) -> str:
        return file.url.removeprefix(f"{self._name}/")

    def _check(self, file: RemoteFile, meta: Any) -> None:
        if meta["size"] != file.size:
            raise changed(file, f"it had {file.size} bytes, now {meta['size']}")
        if file.etag is not None and meta["e_tag"] is not None and _bare(meta["e_tag"]) != file.etag:
            raise changed(file, f"its ETag was {file.etag}, now {_bare(meta['e_tag'])}")

    @asynccontextmanager
    async def _attempt(self, name: str) -> AsyncIterator[None]:
        """Take one of our connection slots, and convert obstore's errors to ours."""
        from obstore import exceptions

        async with self._slots:
            try:
                yield
            except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
                message = f"{name} refuses access"
                raise AccessRefused(message) from error
            except FileNotFoundError as error:
                message = f"{name} does not exist; if it did before, it was deleted while it was in use: restore it"
                raise DataError(message) from error
            except TimeoutError as error:
                message = f"{name} sent nothing for {self._stall_seconds:g} s"
                raise TransientError(message) from error
            except exceptions.BaseError as error:
                raise _passing_or_not(name, error) from error


def s3_bucket(
    bucket: str,
    directory: str,
    *,
    endpoint: str | None,
    region: str | None,
    anonymous: bool,
    stall_seconds: float = STALL_SECONDS,
) -> BucketSource:
    """Return a bucket of S3 or a compatible service. Without `anonymous`, it uses the credentials of the environment."""

    def connect() -> S3Store:
        store = _obstore_module().S3Store
        config = {
            "region": region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1",
            "skip_signature": anonymous,
        }
        if endpoint is not None:
            config["endpoint"] = endpoint
        return store(bucket, config=config, **_options(stall_seconds, plain=bool(endpoint and endpoint.startswith("http:"))))  # type: ignore[no-any-return]  # loaded late

    return BucketSource(connect, f"s3://{bucket}", directory, stall_seconds=stall_seconds)


def private_google_bucket(
    bucket: str, directory: str, credentials: Path | None, *, stall_seconds: float = STALL_SECONDS
) -> BucketSource:
    """Return a private Google bucket, read with a key file (service account or user); None uses the machine's own account."""

    def connect() -> GCSStore:
        config: dict[str, Any] = {}
        plain = False
        if credentials is not None:
            key = _key_file(credentials)
            plain = str(key.get("gcs_base_url", "")).startswith("http:")
            if key.get("type") == "authorized_user":
                config["application_credentials"] = str(credentials)
            else:
                config["service_account_key"] = json.dumps(key)
        return _obstore_module().GCSStore(bucket, config=config, **_options(stall_seconds, plain=plain))  # type: ignore[no-any-return]  # loaded late

    return BucketSource(connect, f"gs://{bucket}", directory, stall_seconds=stall_seconds)


def google_credentials(base: Path, name: str | None) -> Path | None:
    """Return the key file that the run or GOOGLE_APPLICATION_CREDENTIALS names; None if neither does."""
    name = name or os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    return base / name if name else None


def has_aws_credentials() -> bool:
    """Whether the environment has credentials for S3."""
    return any(os.environ.get(name) for name in _AWS_CREDENTIALS)


def _obstore_module() -> Any:
    try:
        import obstore.store
    except ModuleNotFoundError as error:
        raise DataError(MISSING_EXTRA) from error

    return obstore.store


def _options(stall_seconds: float, *, plain: bool) -> dict[str, Any]:
    from datetime import timedelta

    client = {
        "allow_http": plain,
        "connect_timeout": timedelta(seconds=min(CONNECT_SECONDS, stall_seconds)),
        "timeout": timedelta(hours=24),  # for a whole answer; only silence has a short timeout
    }
    return {"client_options": client, "retry_config": {"max_retries": 0}}


def _key_file(path: Path) -> dict[str, Any]:
    """Return the content of a key file. It never appears in a message."""
    try:
        with path.open("rb") as stream:
            key = json.loads(stream.read(MAX_CREDENTIALS_BYTES))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not JSON"
        message = f"cannot read the Google credentials {path}: {reason}; name a service account's key file"
        raise DataError(message) from None

    if not isinstance(key, dict):
        message = f"the Google credentials {path} are not a JSON object; name a service account's key file"
        raise DataError(message)

    return key


def _passing_or_not(name: str, error: Exception) -> Exception:
    """Convert an error of obstore to ours. Only its first line says what happened; the rest is for obstore's developers."""
    first = str(error).partition("\n")[0]
    lasting = _LASTING.search(first)
    if lasting:
        return DataError(
            f"{name} cannot be read (the server answered {lasting.group(1)}); check bucket, folder, region and endpoint"
        )

    return TransientError(f"{name}: {first.rpartition(' - ')[2]}")


def _bare(etag: str) -> str:
    """Return the ETag without its quotes, which listings omit."""
    return etag.strip('"')
