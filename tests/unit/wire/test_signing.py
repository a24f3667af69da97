"""Ed25519 identities: domain separation, strict verification, key files."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche_core.errors import IdentityError
from psyche_core.wire.signing import SecretKey, verify

ORDER = 2**252 + 27742317777372353535851937790883648493
FIELD = 2**255 - 19
SMALL_ORDER_POINTS = [
    "0100000000000000000000000000000000000000000000000000000000000000",  # the identity
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",  # order 2
    "0000000000000000000000000000000000000000000000000000000000000000",  # order 4
    "0000000000000000000000000000000000000000000000000000000000000080",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",  # order 8
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
]
names = st.text(max_size=32).filter(lambda text: len(text.encode()) <= 255)


def test_rfc_8032_public_key() -> None:
    seed = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")

    assert SecretKey(seed).public.hex() == "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"


@given(st.binary(min_size=32, max_size=32), names, st.binary(max_size=32), st.binary(max_size=64))
def test_a_signature_is_good_for_what_was_signed(seed: bytes, domain: str, run: bytes, body: bytes) -> None:
    key = SecretKey(seed)
    signature = key.sign(domain, run, body)

    assert len(signature) == 64
    assert verify(key.public, signature, domain=domain, run=run, body=body)


signed = st.tuples(names, st.binary(max_size=32), st.binary(max_size=16))


@given(signed, signed)
def test_a_signature_is_good_for_nothing_else(first: tuple[str, bytes, bytes], second: tuple[str, bytes, bytes]) -> None:
    key = SecretKey(bytes(32))
    signature = key.sign(*first)
    domain, run, body = second

    assert verify(key.public, signature, domain=domain, run=run, body=body) is (first == second)


@pytest.mark.parametrize(
    "other", [("ab", b"", b"\0cd"), ("a", b"b\0", b"cd"), ("a", b"", b"b\0cd"), ("", b"ab", b"\0cd"), ("a\1b", b"", b"cd")]
)
def test_bytes_cannot_move_between_domain_run_and_body(other: tuple[str, bytes, bytes]) -> None:
    key = SecretKey(bytes(32))
    signature = key.sign("a", b"b", b"\0cd")
    assert verify(key.public, signature, domain="a", run=b"b", body=b"\0cd")

    domain, run, body = other
    assert not verify(key.public, signature, domain=domain, run=run, body=body)


@given(st.binary(min_size=64, max_size=64).map(bytearray), st.integers(0, 511))
def test_any_flipped_bit_spoils_a_signature(body: bytearray, bit: int) -> None:
    key = SecretKey(bytes(32))
    signature = bytearray(key.sign("d", b"r", bytes(body)))
    signature[bit // 8] ^= 1 << bit % 8
    assert not verify(key.public, bytes(signature), domain="d", run=b"r", body=bytes(body))

    signature[bit // 8] ^= 1 << bit % 8
    body[bit // 8] ^= 1 << bit % 8
    assert not verify(key.public, bytes(signature), domain="d", run=b"r", body=bytes(body))


def test_another_key_is_refused() -> None:
    signature = SecretKey(bytes(32)).sign("d", b"r", b"x")

    assert not verify(SecretKey(b"\1" * 32).public, signature, domain="d", run=b"r", body=b"x")


@pytest.mark.parametrize("point", SMALL_ORDER_POINTS)
@given(body=st.binary(max_size=16))
def test_keys_of_small_order_sign_nothing(point: str, body: bytes) -> None:
    """With the identity as key, R = identity and S = 0 satisfies the equation for every message: a universal forgery."""
    public = bytes.fromhex(point)
    for commitment in (bytes.fromhex(SMALL_ORDER_POINTS[0]), public, bytes(32)):
        assert not verify(public, commitment + bytes(32), domain="d", run=b"r", body=body)


def test_a_second_signature_cannot_be_made_from_the_first() -> None:
    key = SecretKey(bytes(32))
    signature = key.sign("d", b"r", b"x")
    scalar = int.from_bytes(signature[32:], "little") + ORDER

    assert not verify(key.public, signature[:32] + scalar.to_bytes(32, "little"), domain="d", run=b"r", body=b"x")


def test_a_key_that_is_not_reduced_is_refused() -> None:
    point = (FIELD + 1).to_bytes(32, "little")

    assert not verify(point, point + bytes(32), domain="d", run=b"r", body=b"x")


@given(st.binary(max_size=70), st.binary(max_size=70))
def test_malformed_keys_and_signatures_are_false_never_an_exception(public: bytes, signature: bytes) -> None:
    assert verify(public, signature, domain="d", run=b"r", body=b"") is False


@pytest.mark.parametrize("nonsense", [None, 3, "x" * 32, [1], b""])
def test_values_that_are_not_bytes_are_false(nonsense: Any) -> None:
    key = SecretKey(bytes(32))
    assert verify(nonsense, key.sign("d", b"r", b""), domain="d", run=b"r", body=b"") is False
    assert verify(key.public, nonsense, domain="d", run=b"r", body=b"") is False


def test_the_secret_is_not_printed() -> None:
    key = SecretKey(bytes(range(32)))

    assert key.seed == bytes(range(32))
    assert key.seed.hex() not in repr(key)
    assert key.public.hex() in repr(key)
    assert SecretKey.generate().public != SecretKey.generate().public


@pytest.mark.parametrize("length", [0, 31, 33, 64])
def test_a_seed_is_32_bytes(length: int) -> None:
    with pytest.raises(IdentityError, match=f"32 raw bytes, got {length}"):
        SecretKey(bytes(length))


def test_a_key_file_is_private_and_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "identity"
    key = SecretKey.generate()
    key.save(path)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert SecretKey.load(path).public == key.public
    with pytest.raises(IdentityError, match=r"cannot write the identity key .*: File exists"):
        SecretKey.generate().save(path)
    assert SecretKey.load(path).public == key.public


def test_a_key_file_may_be_hex(tmp_path: Path) -> None:
    path = tmp_path / "identity"
    path.write_text(bytes(range(32)).hex() + "\n")
    path.chmod(0o600)

    assert SecretKey.load(path).seed == bytes(range(32))


@pytest.mark.parametrize("content", [b"", b"x" * 31, b"zz" * 32, b"\xff" * 64, b"00" * 31])
def test_a_malformed_key_file_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "identity"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(IdentityError, match=r"must hold 32 raw bytes or 64 hex digits, got \d+ bytes; make another"):
        SecretKey.load(path)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o610])
def test_a_key_that_others_can_read_is_refused_with_what_mends_it(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "our key"
    SecretKey.generate().save(path)
    path.chmod(mode)
    with pytest.raises(IdentityError, match=rf"other users of this machine \(mode {mode:o}\); .*`chmod 600 '{path}'`"):
        SecretKey.load(path)
    path.chmod(0o400)
    SecretKey.load(path)


def test_a_key_that_another_user_lends_us_is_that_users_business(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As ssh has it: a secret that the system mounts for us may well be readable by a group."""
    path = tmp_path / "identity"
    SecretKey(b"k" * 32).save(path)
    path.chmod(0o640)
    owner = path.stat().st_uid
    monkeypatch.setattr("os.getuid", lambda: owner + 1)
    assert SecretKey.load(path).seed == b"k" * 32


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ["a named pipe", "a device", "a folder"])
def test_what_is_no_regular_file_is_not_waited_for(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "identity"
    if kind == "a named pipe":
        os.mkfifo(path, 0o600)
    elif kind == "a folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(IdentityError, match=f"the identity key .* is {kind}, expected a regular file; make one with"):
        SecretKey.load(path)


def test_a_huge_key_file_is_read_in_bounds(tmp_path: Path) -> None:
    path = tmp_path / "identity"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    path.chmod(0o600)
    with pytest.raises(IdentityError, match="got 4096 bytes or more"):
        SecretKey.load(path)


def test_a_missing_key_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(IdentityError, match=r"cannot read the identity key .*: No such file or directory"):
        SecretKey.load(tmp_path / "none")


def test_a_key_of_zeros_is_refused(tmp_path: Path) -> None:
    """A file that was allocated and never filled: everybody could sign with it."""
    for number, content in enumerate((bytes(32), b"0" * 64)):
        path = tmp_path / f"{number}.key"
        path.write_bytes(content)
        path.chmod(0o600)
        with pytest.raises(IdentityError, match=f"the identity key {path} consists of zeros.*openssl rand 32"):
            SecretKey.load(path)
    with pytest.raises(IdentityError, match="the identity key in the variable X consists of zeros"):
        SecretKey.parse("00" * 32, source="the variable X")
