from __future__ import annotations

import secrets
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psyche_backend_tcp.addresses import format_address, parse_address
from psyche_backend_tcp.login import COORDINATOR, DATA, Hello, LoginRefused, check_login, decode_hello, encode_hello, encode_login
from psyche_core.errors import UserError
from psyche_core.wire.codec import encode
from psyche_core.wire.signing import SecretKey

KEY = SecretKey(b"k" * 32)


def make_hello(**changes: object) -> Hello:
    hello = Hello(COORDINATOR, "run", "127.0.0.1:20000", secrets.token_bytes(32), {"sequence_length": 8})
    return replace(hello, **changes)  # type: ignore[arg-type]  # fields by name


def refusal(payload: bytes, hello: Hello) -> str:
    with pytest.raises(LoginRefused) as refused:
        check_login(payload, hello)
    return refused.value.code


def test_login_proves_the_key() -> None:
    hello = make_hello()
    assert decode_hello(encode_hello(hello), service=COORDINATOR) == hello
    assert check_login(encode_login(hello, KEY, run_id="run"), hello) == KEY.public


@pytest.mark.parametrize(
    "changes", [{"challenge": bytes(32)}, {"service": DATA}, {"address": "127.0.0.1:20001"}], ids=["replay", "service", "server"]
)
def test_signature_for_something_else_is_refused(changes: dict[str, object]) -> None:
    hello = make_hello()
    assert refusal(encode_login(hello, KEY, run_id="run"), replace(hello, **changes)) == "BadSignature"  # type: ignore[arg-type]  # fields by name


def test_signature_of_another_key_is_refused() -> None:
    hello = make_hello()
    signature = SecretKey.generate().sign("tcp-login", "run", encode([hello.challenge, hello.service, hello.address, KEY.public]))
    assert refusal(encode(["psyche", 1, "run", KEY.public, signature]), hello) == "BadSignature"


def test_wrong_run_names_both() -> None:
    hello = make_hello()
    with pytest.raises(LoginRefused, match="WrongRun: this server coordinates the run 'run', you asked for 'other'"):
        check_login(encode_login(hello, KEY, run_id="other"), hello)


def test_other_version_is_told_apart() -> None:
    assert refusal(encode(["psyche", 2, "whatever comes then"]), make_hello()) == "WrongVersion"
    with pytest.raises(LoginRefused, match="WrongVersion"):
        decode_hello(encode(["psyche", 2]), service=COORDINATOR)


def test_wrong_service_is_told() -> None:
    with pytest.raises(LoginRefused, match="this is a coordinator server, expected a data server; check the port"):
        decode_hello(encode_hello(make_hello()), service=DATA)


@settings(deadline=None)
@given(
    st.binary(max_size=200) | st.lists(st.text(max_size=3) | st.binary(max_size=32) | st.integers(0, 4), max_size=6).map(encode)
)
def test_anything_else_is_refused(payload: bytes) -> None:
    with pytest.raises(LoginRefused):
        check_login(payload, make_hello())
    with pytest.raises(LoginRefused):
        decode_hello(payload, service=COORDINATOR)


@pytest.mark.parametrize("text", ["127.0.0.1:20000", "example.org:1", "[::1]:65535"])
def test_addresses_are_read_back(text: str) -> None:
    assert format_address(*parse_address(text)) == text


@pytest.mark.parametrize(
    "text", ["", "localhost", ":80", "host:", "host:0", "host:65536", "host:x", "::1:80", "host:-1", "host:²"]
)
def test_bad_addresses_are_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"expected a server address like 127\.0\.0\.1:20000"):
        parse_address(text)
