from __future__ import annotations

import secrets
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psyche_backend_tcp.connections.addresses import format_address, parse_address
from psyche_backend_tcp.connections.login import (
    COORDINATOR,
    DATA,
    Hello,
    Login,
    LoginRefused,
    check_login,
    check_welcome,
    decode_hello,
    encode_hello,
    encode_login,
    sign_welcome,
)
from psyche_core.errors import UserError
from psyche_core.wire.codec import decode, encode
from psyche_core.wire.signing import SecretKey

KEY, SERVER = SecretKey(b"k" * 32), SecretKey(b"s" * 32)


def make_hello(**changes: object) -> Hello:
    hello = Hello(COORDINATOR, "run", secrets.token_bytes(32), {"sequence_length": 8})
    return replace(hello, **changes)  # type: ignore[arg-type]  # fields by name


def make_login(key: SecretKey = KEY) -> Login:
    return Login(key.public, secrets.token_bytes(32), b"d" * 32)


def refusal(payload: bytes, hello: Hello, *, server_key: bytes = SERVER.public) -> str:
    with pytest.raises(LoginRefused) as refused:
        check_login(payload, hello, server_key=server_key)
    return refused.value.code


def test_login_proves_both_keys() -> None:
    hello, login = make_hello(), make_login()
    assert decode_hello(encode_hello(hello), service=COORDINATOR) == hello
    payload = encode_login(hello, login, KEY, run_id="run", server_key=SERVER.public)
    assert check_login(payload, hello, server_key=SERVER.public) == login
    check_welcome(sign_welcome(hello, login, SERVER), hello, login, server_key=SERVER.public)


@pytest.mark.parametrize("changes", [{"nonce": bytes(32)}, {"service": DATA}], ids=["replay", "service"])
def test_signature_for_something_else_is_refused(changes: dict[str, object]) -> None:
    hello = make_hello()
    payload = encode_login(hello, make_login(), KEY, run_id="run", server_key=SERVER.public)
    assert refusal(payload, replace(hello, **changes)) == "BadSignature"  # type: ignore[arg-type]  # fields by name


def test_b25_signature_made_for_somebody_in_between_is_refused() -> None:
    """The client signs the TLS key of whom it talks to; passed on, that is not the real server's (reference defect 25)."""
    hello, impostor = make_hello(), SecretKey.generate()
    payload = encode_login(hello, make_login(), KEY, run_id="run", server_key=impostor.public)
    assert refusal(payload, hello) == "BadSignature"


@pytest.mark.parametrize("field", ["nonce", "known", "public"])
def test_every_field_of_the_login_is_signed(field: str) -> None:
    hello, login = make_hello(), make_login()
    parts = decode(encode_login(hello, login, KEY, run_id="run", server_key=SERVER.public), max_bytes=4096)
    place = {"public": 3, "nonce": 4, "known": 5}[field]
    parts[place] = bytes(31) + b"x"
    assert refusal(encode(parts), hello) == "BadSignature"


def test_welcome_of_another_connection_role_or_key_is_refused() -> None:
    hello, login = make_hello(), make_login(SERVER)
    clients_own = decode(encode_login(hello, login, SERVER, run_id="run", server_key=SERVER.public), max_bytes=4096)[6]
    for signature in (
        sign_welcome(make_hello(), login, SERVER),
        sign_welcome(hello, make_login(SERVER), SERVER),
        sign_welcome(hello, login, KEY),
        clients_own,
        b"",
    ):
        with pytest.raises(LoginRefused, match="BadServer"):
            check_welcome(signature, hello, login, server_key=SERVER.public)


def test_signature_of_another_key_is_refused() -> None:
    hello = make_hello()
    payload = encode_login(hello, make_login(), SecretKey.generate(), run_id="run", server_key=SERVER.public)
    assert refusal(payload, hello) == "BadSignature"


def test_wrong_run_names_both() -> None:
    hello = make_hello()
    payload = encode_login(hello, make_login(), KEY, run_id="other", server_key=SERVER.public)
    with pytest.raises(LoginRefused, match="WrongRun: this server coordinates the run 'run', you asked for 'other'"):
        check_login(payload, hello, server_key=SERVER.public)


def test_other_version_is_told_apart() -> None:
    assert refusal(encode(["psyche", 1, "whatever comes then"]), make_hello()) == "VersionMismatch"
    with pytest.raises(LoginRefused, match="VersionMismatch"):
        decode_hello(encode(["psyche", 99]), service=COORDINATOR)


def test_wrong_service_is_told() -> None:
    with pytest.raises(LoginRefused, match="this is a coordinator server, expected a data server; check the port"):
        decode_hello(encode_hello(make_hello()), service=DATA)


@settings(deadline=None)
@given(
    st.binary(max_size=200) | st.lists(st.text(max_size=3) | st.binary(max_size=32) | st.integers(0, 4), max_size=6).map(encode)
)
def test_anything_else_is_refused(payload: bytes) -> None:
    with pytest.raises(LoginRefused):
        check_login(payload, make_hello(), server_key=SERVER.public)
    with pytest.raises(LoginRefused):
        decode_hello(payload, service=COORDINATOR)


PIN = "#" + "8f" * 32


@pytest.mark.parametrize("text", ["127.0.0.1:20000", "[::1]:65535", "example.org:1" + PIN, "[2001:db8::1]:9" + PIN])
def test_addresses_are_read_back(text: str) -> None:
    address = parse_address(text)
    assert format_address(address.host, address.port, address.key) == text


def test_a_server_elsewhere_without_a_key_is_refused_unless_said_so() -> None:
    for host in ("example.org", "10.0.0.1", "[2001:db8::1]", "0.0.0.0", "127.0.0.1.example.org"):
        with pytest.raises(UserError, match="must prove who it is"):
            parse_address(f"{host}:20000")
        assert parse_address(f"{host}:20000#insecure").key is None
    for host in ("127.0.0.1", "127.9.9.9", "[::1]", "localhost"):
        assert parse_address(f"{host}:20000").key is None
    assert parse_address("127.0.0.1:20000" + PIN).key == b"\x8f" * 32, "a key that is given is always checked"


@pytest.mark.parametrize("key", ["", "8f", "8f" * 33, "zz" * 32, "Insecure"])
def test_a_bad_key_is_refused(key: str) -> None:
    with pytest.raises(UserError, match="after the # of a server address comes"):
        parse_address(f"127.0.0.1:20000#{key}")


@pytest.mark.parametrize("text", ["", "localhost", ":80", "host:", "host:x", "::1:80", "host:-1", "host:²", PIN])
def test_bad_addresses_are_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"expected a server address like 127\.0\.0\.1:20000"):
        parse_address(text)


@pytest.mark.parametrize("port", ["0", "65536", "70000", "9" * 5000])
def test_a_port_out_of_range_is_told_the_range(port: str) -> None:
    with pytest.raises(UserError, match=rf"^the port of a server address is a number from 1 to 65535, got {port[:20]} in "):
        parse_address(f"127.0.0.1:{port}")
