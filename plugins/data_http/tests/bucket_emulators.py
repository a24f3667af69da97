"""Buckets in real storage emulators from PyPI: fake-gcs-server and moto."""

from __future__ import annotations

import subprocess
from typing import Any

import anyio
import httpx

from psyche_core.hookspecs import DataContext
from psyche_data_http.provider import HttpData
from psyche_data_http.settings import HttpSettings

ROWS = [bytes([number]) * 8 for number in range(40)]
START_SECONDS = 60.0


def started(command: list[str], address: str) -> subprocess.Popen[bytes]:
    """The process, once it answers."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    async def answering() -> None:
        with anyio.fail_after(START_SECONDS):
            while True:
                assert process.poll() is None, f"{command} ended"
                try:
                    httpx.get(address, trust_env=False)
                    return
                except httpx.TransportError:
                    await anyio.sleep(0.05)

    try:
        anyio.run(answering)
    except BaseException:
        process.kill()
        raise
    return process


def stopped(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(20)


class Bucket:
    """A bucket of an emulator, to put things into. address: where the emulator is; name: the bucket's."""

    def __init__(self, address: str, name: str) -> None:
        self.address = address
        self.name = name

    def put(self, key: str, content: bytes, *, public: bool = True) -> None:
        raise NotImplementedError

    def delete(self, key: str) -> None:
        raise NotImplementedError

    def location(self, **settings: object) -> dict[str, Any]:
        raise NotImplementedError

    def put_rows(self, folder: str = "") -> None:
        """ROWS in three files; in the order of plain names, the last two would change places."""
        self.put(f"{folder}b-late.bin", b"".join(ROWS[30:]))
        self.put(f"{folder}b/early.bin", b"".join(ROWS[10:30]))
        self.put(f"{folder}a file.bin", b"".join(ROWS[:10]))


S3_HEADERS = {"Authorization": "AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/s3/aws4_request, SignedHeaders=h, Signature=x"}


class S3Bucket(Bucket):
    def put(self, key: str, content: bytes, *, public: bool = True) -> None:
        headers = S3_HEADERS | {"x-amz-acl": "public-read" if public else "private"}
        httpx.put(f"{self.address}/{self.name}/{key}", headers=headers, content=content).raise_for_status()

    def delete(self, key: str) -> None:
        httpx.delete(f"{self.address}/{self.name}/{key}", headers=S3_HEADERS).raise_for_status()

    def location(self, **settings: object) -> dict[str, Any]:
        return {"S3": {"bucket_name": self.name, "endpoint": self.address, "region": "us-east-1", **settings}}


def data_of(location: dict[str, Any], *, sequence_length: int = 4, token_size: str = "TwoBytes", **context: Any) -> HttpData:
    settings = HttpSettings.model_validate({"location": location, "token_size_in_bytes": token_size})
    return HttpData.from_context(DataContext(settings=settings, sequence_length=sequence_length, **context))
