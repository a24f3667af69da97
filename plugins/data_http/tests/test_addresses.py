"""Redirects, secrets in addresses, and what is shown of them."""

import logging

import pytest

from plugins.data_http.tests.conftest import MakeHttpData, RowsOf, WebServer
from psyche_core.errors import DataError
from psyche_core.interfaces.data import DataProvider
from psyche_core.types import BatchId
from psyche_data_http.addresses import shown

ROWS = [bytes([number]) * 8 for number in range(40)]


async def read(data: DataProvider, first: int, last: int, *, timeout: float = 10.0) -> bytes:
    return (await data.read([BatchId(first, last)], timeout=timeout)).tokens


def test_secrets_are_not_shown() -> None:
    assert shown("https://user:password@host:8443/a/b.bin?signature=secret#secret") == "https://host:8443/a/b.bin"


async def test_https_with_a_certificate_that_is_trusted(secure_web: WebServer, rows_of: RowsOf, http_data: MakeHttpData) -> None:
    async with http_data([rows_of(secure_web)]) as data:
        assert await read(data, 0, 39) == b"".join(ROWS)


async def test_a_certificate_that_is_not_trusted_is_refused(
    secure_web: WebServer, rows_of: RowsOf, http_data: MakeHttpData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(TimeoutError, match="CERTIFICATE_VERIFY_FAILED"):
        async with http_data([rows_of(secure_web)], open_seconds=0.3):
            pass

    assert secure_web.requests == []


async def test_redirects_are_followed(web: WebServer, other_web: WebServer, rows_of: RowsOf, http_data: MakeHttpData) -> None:
    web.redirects["/moved.bin"] = rows_of(other_web)
    async with http_data([web.url("moved.bin")]) as data:
        assert await read(data, 5, 6) == ROWS[5] + ROWS[6]


async def test_a_redirect_from_https_to_http_is_refused(
    secure_web: WebServer, other_web: WebServer, rows_of: RowsOf, http_data: MakeHttpData
) -> None:
    secure_web.redirects["/moved.bin"] = rows_of(other_web)
    with pytest.raises(DataError, match=r"moved\.bin leads from https to http"):
        async with http_data([secure_web.url("moved.bin")]):
            pass

    assert other_web.requests == []


async def test_a_redirect_to_no_web_address_is_refused(web: WebServer, http_data: MakeHttpData) -> None:
    web.redirects["/moved.bin"] = "ftp://127.0.0.1/x"
    with pytest.raises(DataError, match="neither http nor https"):
        async with http_data([web.url("moved.bin")]):
            pass


async def test_redirects_in_a_circle_are_refused(web: WebServer, http_data: MakeHttpData) -> None:
    web.redirects["/moved.bin"] = web.url("moved.bin")
    with pytest.raises(DataError, match="cannot be read: Exceeded maximum"):
        async with http_data([web.url("moved.bin")]):
            pass


@pytest.mark.parametrize("fault", ["404", "503", "gzip", "other size", "cut"])
async def test_secrets_are_in_no_message_and_no_log(
    web: WebServer, other_web: WebServer, rows_of: RowsOf, http_data: MakeHttpData, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    """User name, password and query, also those of an address that a redirect leads to."""
    target = rows_of(other_web) + "?signature=verysecret"
    web.redirects["/moved.bin"] = target.replace("http://", "http://name:verysecret@")
    address = web.url("moved.bin").replace("http://", "http://name:verysecret@") + "?token=verysecret"
    web.redirects["/moved.bin?token=verysecret"] = web.redirects["/moved.bin"]
    with caplog.at_level(logging.DEBUG):
        async with http_data([address]) as data:
            other_web.always = fault
            with pytest.raises((DataError, TimeoutError)) as caught:
                await read(data, 0, 39, timeout=0.3)

    error: BaseException | None = caught.value
    while error is not None:
        assert "verysecret" not in str(error)
        error = error.__cause__
    assert "HTTP Request: GET http://127.0.0.1" in caplog.text, "httpx logs, but not the secret"
    assert "verysecret" not in caplog.text


async def test_secrets_of_a_redirect_without_a_host_are_in_no_log(
    web: WebServer, rows: str, http_data: MakeHttpData, caplog: pytest.LogCaptureFixture
) -> None:
    web.redirects["/moved.bin"] = "/rows.bin?signature=verysecret"
    with caplog.at_level(logging.DEBUG):
        async with http_data([web.url("moved.bin")]) as data:
            assert await read(data, 0, 0) == ROWS[0]

    assert "moved.bin" in caplog.text
    assert "verysecret" not in caplog.text


async def test_credentials_in_an_address_are_sent(web: WebServer, rows: str, http_data: MakeHttpData) -> None:
    async with http_data([rows.replace("http://", "http://name:password@")]) as data:
        assert await read(data, 0, 0) == ROWS[0]

    assert web.authorizations == {"Basic bmFtZTpwYXNzd29yZA=="}
