"""davs:// against a real server with a certificate of a private CA, and with certificates that must not be accepted."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from certificates import Authority
from dav_server import PASSWORD, USER, DavServer, dav_server
from psyche_store_webdav.hooks import check, psyche_register_model_stores
from psyche_store_webdav.settings import DavSettings
from psyche_store_webdav.store import WebDav
from pydantic import SecretStr

from psyche_core.errors import StoreError, UserError
from psyche_core.hookspecs import ModelStoreContext
from psyche_core.interfaces.store import go_on
from psyche_core.plugins import PluginRegistry
from psyche_core.plugins.model_stores import StoreOpener
from psyche_core.testing.store import StoreConformance


@pytest.fixture(scope="module", autouse=True)
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A server for all tests of the contract; each has a collection of its own."""
    TestWebDavOverTls.authority = authority = Authority(tmp_path_factory.mktemp("ca"))
    folder = tmp_path_factory.mktemp("served")
    with dav_server(folder, needs_password=True, certificate=authority.certificate()) as TestWebDavOverTls.server:
        yield


class TestWebDavOverTls(StoreConformance):
    registration = psyche_register_model_stores()[1]
    hooks = "psyche_store_webdav.hooks"
    heavy = ("httpx",)
    server: ClassVar[DavServer]
    authority: ClassVar[Authority]

    def url(self, folder: Path) -> str:
        return f"davs://{self.server.host}/our%20models/{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}"

    def settings(self, folder: Path) -> DavSettings:
        return DavSettings(
            dav_host=self.server.host, dav_user=USER, dav_password=SecretStr(PASSWORD), dav_ca_file=self.authority.file
        )


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "served").mkdir()
    return tmp_path / "served"


def every_call(tmp_path: Path) -> list[Callable[[Any], object]]:
    source = tmp_path / "source"
    source.write_bytes(b"x")
    return [
        lambda store: store.names(""),
        lambda store: store.get("a", max_bytes=9),
        lambda store: store.put_file("a", source, proceed=go_on),
        lambda store: store.get_file("a", tmp_path / "target", max_bytes=9, proceed=go_on),
        lambda store: store.delete(["a"]),
    ]


def test_a_private_ca_is_named_by_variable_or_option_and_the_option_wins(
    authority: Authority, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Authority(tmp_path / "other", "another CA")
    with dav_server(folder, certificate=authority.certificate()) as server:

        def names(**given: Any) -> list[str]:
            return StoreOpener(PluginRegistry.discover(), given)(f"davs://{server.host}/models").names("")

        monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
        assert names() == []
        with pytest.raises(StoreError, match="its certificate is not accepted"):
            names(dav_ca_file=other.file)
        monkeypatch.setenv("SSL_CERT_FILE", str(other.file))
        with pytest.raises(StoreError, match="its certificate is not accepted"):
            names()
        assert names(dav_ca_file=authority.file) == []
        monkeypatch.setenv("PSYCHE_DAV_CA_FILE", str(authority.file))
        assert names() == []


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({}, r"unable to get local issuer certificate; if the server's CA is a private one, .* with --dav-ca-file"),
        ({"address": "127.0.0.2"}, r"IP address mismatch, .* '127\.0\.0\.1'; write the URL with a name that the certificate has"),
        ({"expired": True}, r"certificate has expired; whoever runs the server must renew it, if the clock of this machine"),
    ],
    ids=["CA", "name", "date"],
)
def test_a_certificate_that_is_not_accepted_is_a_sentence(
    authority: Authority, folder: Path, tmp_path: Path, wrong: dict[str, Any], why: str
) -> None:
    """Before anything is sent."""
    settings = DavSettings(dav_ca_file=authority.file) if wrong else DavSettings()
    with dav_server(folder, certificate=authority.certificate(**wrong)) as server:
        store = WebDav(f"davs://{server.host}/models", settings)
        for call in every_call(tmp_path):
            with pytest.raises(StoreError, match=rf"at https://127\.0\.0\.1:\d+/models: its certificate is not accepted: {why}"):
                call(store)
        store.close()
    assert server.asked == []
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize("by", ["--dav-ca-file", "SSL_CERT_FILE"])
@pytest.mark.parametrize(
    ("text", "why"), [(None, "No such file or directory"), ("no PEM", "it holds no certificate")], ids=["missing", "text"]
)
def test_a_file_without_a_ca_is_told_before_anything_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str, text: str | None, why: str
) -> None:
    file = tmp_path / "ca.pem"
    if text is not None:
        file.write_text(text)
    if by == "SSL_CERT_FILE":
        monkeypatch.setenv(by, str(file))
    settings = DavSettings(dav_ca_file=file if by == "--dav-ca-file" else None)
    with pytest.raises(UserError) as caught:
        check(ModelStoreContext(url="davs://dav.example/models", settings=settings))
    assert str(caught.value) == f"{by} {file} cannot be used: {why}; name a file with the CA's certificates as PEM"


def test_a_server_that_does_not_know_of_its_tls_is_a_sentence(authority: Authority, folder: Path, tmp_path: Path) -> None:
    """As behind a proxy that does not tell it."""
    source = tmp_path / "source"
    source.write_bytes(b"x")
    with dav_server(folder, certificate=authority.certificate(), scheme="http") as server:
        store = WebDav(f"davs://{server.host}", DavSettings(dav_ca_file=authority.file))
        with pytest.raises(StoreError, match=r"the server answered 502 .*; if a proxy is before it, tell the server that it is"):
            store.put_file("a", source, proceed=go_on)
        store.close()
    assert list(folder.iterdir()) == []
