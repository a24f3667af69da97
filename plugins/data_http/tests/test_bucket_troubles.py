"""Buckets that fail: cut reads, silence, listings that are none, and credentials."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path

import pytest

from plugins.data_http.tests.bucket_emulators import S3Bucket, data_of
from plugins.data_http.tests.conftest import WebServer
from psyche_core.errors import DataError
from psyche_data_http.file_source import AccessRefused, FileSource, RemoteFile, read_range
from psyche_data_http.retries import LastFailure, deadline
from psyche_data_http.sources import factory, google_bucket, obstore_bucket
from psyche_data_http.sources.obstore_bucket import s3_bucket

pytest.importorskip("obstore", reason="buckets with credentials need obstore: pip install 'psyche-core[gcs]'")


# ------------------------------------------------------------------------------------------ trouble on the way to a bucket
class CuttingProxy:
    """Passes connections on to another port; each answer ends after `cuts` bytes, taken one per connection, then never."""

    def __init__(self, port: int, cuts: Iterable[int]) -> None:
        self.target = port
        self.cuts = list(cuts)
        self.connections = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            self.connections += 1
            cut = self.cuts.pop(0) if self.cuts else None
            server = socket.create_connection(("127.0.0.1", self.target))
            threading.Thread(target=self.copy, args=(client, server, None), daemon=True).start()
            threading.Thread(target=self.copy, args=(server, client, cut), daemon=True).start()

    def copy(self, source: socket.socket, target: socket.socket, left: int | None) -> None:
        with closing(source), closing(target):
            while left is None or left > 0:
                try:
                    chunk = source.recv(4096 if left is None else min(4096, left))
                    if not chunk:
                        return
                    target.sendall(chunk)
                except OSError:
                    return
                left = None if left is None else left - len(chunk)
            for side in (source, target):
                with suppress(OSError):  # whoever is there may have gone first
                    side.shutdown(socket.SHUT_RDWR)


async def test_a_cut_read_of_a_bucket_goes_on_where_it_stopped(s3: S3Bucket) -> None:
    content = bytes(range(256)) * 4096
    s3.put("a.bin", content)
    size = len(content)
    proxy = CuttingProxy(int(s3.address.rpartition(":")[2]), cuts=[size // 2, 200, 0, size // 3])
    store = s3_bucket(
        s3.name, "", endpoint=f"http://127.0.0.1:{proxy.port}", region="us-east-1", anonymous=True, stall_seconds=5.0
    )
    with closing(proxy.listener):
        async with deadline(30.0) as last_failure:
            store._store = store._connect()
            received = await read_range(store, RemoteFile(f"s3://{s3.name}/a.bin", size), 0, size, last_failure)

    assert bytes(received) == content
    assert proxy.connections > 1
    assert last_failure.message


async def test_a_bucket_that_falls_silent_is_a_timeout_with_the_reason(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        store = s3_bucket("tokens", "", endpoint=address, region="us-east-1", anonymous=True, stall_seconds=0.1)
        with pytest.raises(TimeoutError, match=r"s3://tokens sent nothing for 0\.1 s"):
            async with deadline(0.5) as last_failure:
                await store.files(last_failure)


async def test_nobody_at_a_buckets_address_is_a_timeout_with_the_reason() -> None:
    store = s3_bucket("tokens", "", endpoint="http://127.0.0.1:1", region="us-east-1", anonymous=True)
    with pytest.raises(TimeoutError, match=r"s3://tokens: "):
        async with deadline(0.3) as last_failure:
            await store.files(last_failure)


@pytest.mark.parametrize(
    "content", [b"<html>", b"[]", b'{"items": [{"name": "a.bin"}]}', b'{"items": [{"name": 1, "size": "-1"}]}']
)
async def test_what_is_no_listing_is_a_clear_error(other_web: WebServer, content: bytes) -> None:
    (other_web.folder / "storage/v1/b/tokens").mkdir(parents=True)
    (other_web.folder / "storage/v1/b/tokens/o").write_bytes(content)
    with pytest.raises(DataError, match="did not answer with a list of objects; check bucket_name and endpoint"):
        async with data_of({"Gcp": {"bucket_name": "tokens", "endpoint": other_web.url("").rstrip("/")}}):
            pass


async def test_a_listing_without_end_is_refused(other_web: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(google_bucket, "MAX_PAGES", 5)
    (other_web.folder / "storage/v1/b/tokens").mkdir(parents=True)
    (other_web.folder / "storage/v1/b/tokens/o").write_bytes(b'{"items": [], "nextPageToken": "more"}')
    with pytest.raises(DataError, match="lists more than 5 pages"):
        async with data_of({"Gcp": {"bucket_name": "tokens", "endpoint": other_web.url("").rstrip("/")}}):
            pass


async def test_a_listing_too_large_is_refused(other_web: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(google_bucket, "MAX_PAGE_BYTES", 100)
    (other_web.folder / "storage/v1/b/tokens").mkdir(parents=True)
    (other_web.folder / "storage/v1/b/tokens/o").write_bytes(b" " * 101)
    with pytest.raises(DataError, match="is longer than 100 bytes"):
        async with data_of({"Gcp": {"bucket_name": "tokens", "endpoint": other_web.url("").rstrip("/")}}):
            pass


def test_credentials_are_looked_for_where_they_are_configured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert obstore_bucket.google_credentials(tmp_path, None) is None
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/etc/key.json")
    assert str(obstore_bucket.google_credentials(tmp_path, None)) == "/etc/key.json"
    assert obstore_bucket.google_credentials(tmp_path, "own.json") == tmp_path / "own.json"
    assert not obstore_bucket.has_aws_credentials()


async def test_a_store_that_refuses_is_followed_by_the_next() -> None:
    class Refusing(FileSource):
        async def files(self, last_failure: LastFailure) -> list[RemoteFile]:
            raise AccessRefused("b refuses access (403); make it public")

        async def receive(self, file: RemoteFile, start: int, wanted: int, received: bytearray) -> None:
            raise NotImplementedError

    class Open(Refusing):
        async def files(self, last_failure: LastFailure) -> list[RemoteFile]:
            return [RemoteFile("s3://b/a.bin", 8)]

    last_failure = LastFailure()
    assert await factory.FallbackSource([Refusing(), Open()], hint="knock").files(last_failure) == [RemoteFile("s3://b/a.bin", 8)]
    with pytest.raises(AccessRefused, match=r"^b refuses access \(403\); knock$"):
        await factory.FallbackSource([Refusing(), Refusing()], hint="knock").files(last_failure)
