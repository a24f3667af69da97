"""Every check that a store must pass, against a real WebDAV server."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from dav_server import PASSWORD, USER, DavServer, dav_server
from psyche_store_webdav.hooks import psyche_register_model_stores
from psyche_store_webdav.settings import DavSettings
from pydantic import SecretStr

from psyche_core.testing.registration import RegistrationConformance
from psyche_core.testing.store import StoreConformance


@pytest.fixture(scope="module", autouse=True)
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A server for all tests; each has a collection of its own."""
    with dav_server(tmp_path_factory.mktemp("served"), needs_password=True) as TestWebDav.server:
        yield


class TestWebDav(StoreConformance):
    registration = psyche_register_model_stores()[0]
    hooks = "psyche_store_webdav.hooks"
    heavy = ("httpx",)
    server: ClassVar[DavServer]

    def url(self, folder: Path) -> str:
        return f"dav://{self.server.host}/our%20models/{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}"

    def settings(self, folder: Path) -> DavSettings:
        return DavSettings(dav_host=self.server.host, dav_user=USER, dav_password=SecretStr(PASSWORD))


class TestDav(RegistrationConformance):
    kind, name = "store", "dav"
    heavy = (*RegistrationConformance.heavy, "httpx")


class TestDavs(RegistrationConformance):
    kind, name = "store", "davs"
    heavy = (*RegistrationConformance.heavy, "httpx")
