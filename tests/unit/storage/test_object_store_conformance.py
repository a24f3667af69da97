"""psyche-core's own stores keep the contract of a plugin's: a shared folder by URL, and a bucket of a real S3 server."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from psyche_core.hookspecs import ModelStoreContext, ModelStoreRegistration
from psyche_core.storage.object_store import ObjectStore, open_bucket
from psyche_core.testing.store import StoreConformance


def opened(context: ModelStoreContext) -> ObjectStore:
    return open_bucket(context.url)


class TestFolder(StoreConformance):
    registration = ModelStoreRegistration(name="file", summary="a folder", create=opened)
    hooks = "tests.unit.storage.own_hooks"

    def url(self, folder: Path) -> str:
        return (folder / "place").as_uri()


@pytest.fixture(scope="module")
def s3_server() -> Iterator[None]:
    """A real S3 server in this process."""
    server_module = pytest.importorskip("moto.server")
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as environment:
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": "somebody",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
        }.items():
            environment.setenv(name, value)
        yield
    server.stop()


@pytest.mark.usefixtures("s3_server")
class TestBucket(StoreConformance):
    registration = ModelStoreRegistration(name="s3", summary="a bucket", create=opened)
    hooks = "tests.unit.storage.own_hooks"

    def url(self, folder: Path) -> str:
        name = f"models-{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}"
        assert httpx.put(f"{os.environ['AWS_ENDPOINT_URL']}/{name}").status_code in (200, 409)
        return f"s3://{name}"
