from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche_backend_tcp.connections import puzzle
from psyche_backend_tcp.connections.puzzle import (
    COOKIE_SECONDS,
    MOST_BITS,
    Cookies,
    Proof,
    decode_challenge,
    decode_proof,
    encode_challenge,
    encode_proof,
    prove,
)
from psyche_core.errors import WireError
from psyche_core.wire.signing import SecretKey

KEY, OTHER = SecretKey(b"k" * 32), SecretKey(b"o" * 32)
PROOFS = st.builds(
    Proof,
    st.binary(min_size=33, max_size=33),
    st.integers(0, 2**64 - 1),
    st.binary(min_size=32, max_size=32),
    st.binary(min_size=64, max_size=64),
)


@given(PROOFS)
def test_proofs_come_out_as_they_went_in(proof: Proof) -> None:
    assert decode_proof(encode_proof(proof)) == proof


@given(st.binary(max_size=200))
def test_any_other_bytes_are_refused(data: bytes) -> None:
    for decode in (decode_proof, decode_challenge):
        with pytest.raises(WireError):
            decode(data)


def test_a_solved_and_signed_cookie_says_how_much_work_it_was_and_whose() -> None:
    proof = prove(Cookies().issue(9, 5.0), KEY)
    assert (proof.bits, proof.signed, proof.public) == (9, True, KEY.public)
    digest = hashlib.sha256(proof.cookie + proof.counter.to_bytes(8, "big")).digest()
    assert int.from_bytes(digest, "big") < 2 ** (256 - 9)
    assert not replace(proof, public=OTHER.public).signed
    unsolved = next(n for n in range(100) if not puzzle.solves(proof.cookie, n))
    assert replace(proof, counter=unsolved).bits == 0


def test_a_cookie_lets_one_connection_in_and_lapses() -> None:
    cookies = Cookies()
    cookie = cookies.issue(1, 100.0)
    assert cookies.use(cookie, 100.0 + COOKIE_SECONDS)
    assert not cookies.use(cookie, 100.0)
    assert not cookies.use(cookies.issue(1, 100.0), 100.1 + COOKIE_SECONDS)


@given(st.integers(0, 33 * 8 - 1))
def test_a_cookie_with_one_bit_changed_or_of_another_server_is_none(bit: int) -> None:
    cookies = Cookies()
    cookie = cookies.issue(8, 0.0)
    changed = (int.from_bytes(cookie, "big") ^ 1 << bit).to_bytes(33, "big")
    assert not cookies.use(changed, 0.0)
    assert not Cookies().use(cookie, 0.0)
    assert cookies.use(cookie, 0.0)


def test_used_cookies_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(puzzle, "REMEMBERED_COOKIES", 10)
    cookies = Cookies()
    used = [cookies.issue(0, 0.0) for _ in range(30)]
    assert all(cookies.use(cookie, 0.0) for cookie in used)
    assert len(cookies._used) == 10
    assert not any(cookies.use(cookie, 0.0) for cookie in used[-10:])


def test_a_client_solves_nothing_too_hard() -> None:
    assert decode_challenge(encode_challenge(bytes([MOST_BITS]) + bytes(32)))[0] == MOST_BITS
    with pytest.raises(WireError, match="23 bits, we solve at most 22"):
        decode_challenge(encode_challenge(bytes([MOST_BITS + 1]) + bytes(32)))
