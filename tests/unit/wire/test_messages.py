"""Envelopes and messages: round trip, signatures, refusal of everything else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche_core.errors import WireError
from psyche_core.types import BatchId
from psyche_core.wire.codec import decode, encode
from psyche_core.wire.messages import (
    MAX_ENVELOPE_BYTES,
    Finished,
    Message,
    ModelDigest,
    ModelOffer,
    ModelWanted,
    Opening,
    Result,
    commitment_hash,
    commitment_is_signed,
    result_hash,
    seal,
    sign_commitment,
    unseal,
)
from psyche_core.wire.signing import SecretKey

KEY = SecretKey(b"k" * 32)
OTHER = SecretKey(b"o" * 32)
RUN = b"r" * 32

small = st.integers(0, 2**32 - 1)
seeds = st.integers(0, 2**64 - 1)
sizes = st.integers(0, 2**40 - 1)
batches = st.tuples(st.integers(0, 2**62), st.integers(0, 1000)).map(lambda pair: BatchId(pair[0], pair[0] + pair[1]))
digests = st.binary(min_size=32, max_size=32)
messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(Finished, small, small, seeds),
    st.builds(ModelDigest, small, st.booleans(), digests, seeds),
    st.builds(ModelWanted, small, small, seeds),
    st.builds(ModelOffer, small, small, seeds, digests, sizes, digests, sizes),
    st.builds(
        Result,
        small,
        small,
        small,
        seeds,
        st.lists(batches, min_size=1, max_size=20).map(tuple),
        digests,
        sizes,
        digests,
        st.binary(min_size=64, max_size=64),
        st.sampled_from([b"", bytes(64), b"r" * 64]),
    ),
    st.builds(Opening, small, small, seeds, small, st.integers(0, 2**16 - 1), digests, sizes),
)


@given(messages)
def test_a_sealed_message_comes_out_with_its_origin(message: Message) -> None:
    assert unseal(seal(KEY, RUN, message), run=RUN) == (KEY.public, message)


@given(messages, st.data())
def test_a_changed_bit_is_noticed(message: Message, data: st.DataObject) -> None:
    sealed = bytearray(seal(KEY, RUN, message))
    position = data.draw(st.integers(0, len(sealed) * 8 - 1))
    sealed[position // 8] ^= 1 << position % 8
    with pytest.raises(WireError):
        unseal(bytes(sealed), run=RUN)


@given(st.binary(max_size=300))
def test_arbitrary_bytes_raise_nothing_but_wire_errors(data: bytes) -> None:
    with pytest.raises(WireError):
        unseal(data, run=RUN)


def test_a_message_for_another_run_is_refused() -> None:
    with pytest.raises(WireError, match="not valid for this run"):
        unseal(seal(KEY, bytes(32), Finished(0, 0, 0)), run=RUN)


def test_a_signature_of_somebody_else_is_refused() -> None:
    version, _, body, signature = decode(seal(KEY, RUN, Finished(0, 0, 0)), max_bytes=1000)
    with pytest.raises(WireError, match="signature"):
        unseal(encode([version, OTHER.public, body, signature]), run=RUN)


@pytest.mark.parametrize(
    "fields",
    [
        [2, 0],
        [2, -1, 0],
        [2, True, 0],
        [2, 2**32, 0],
        [9, 0, 0],
        [3, 0, 1, bytes(32)],
        [3, 0, True, bytes(31)],
        [1, 0, 0, 0, [], bytes(32), 1, bytes(32), bytes(64)],
        [1, 0, 0, 0, [[5, 4]], bytes(32), 1, bytes(32), bytes(64)],
        [1, 0, 0, 0, [[0, 1]] * 513, bytes(32), 1, bytes(32), bytes(64)],
        {"kind": 2},
        "finished",
    ],
)
def test_a_well_signed_message_of_a_wrong_shape_is_refused(fields: object) -> None:
    body = encode(fields)
    sealed = encode([1, KEY.public, body, KEY.sign("message", RUN, body)])
    with pytest.raises(WireError):
        unseal(sealed, run=RUN)


def test_an_oversized_envelope_is_refused_by_its_length() -> None:
    with pytest.raises(WireError, match=str(MAX_ENVELOPE_BYTES)):
        unseal(bytes(MAX_ENVELOPE_BYTES + 1), run=RUN)


def _commitment(**changes: object) -> bytes:
    fields: dict[str, object] = {
        "epoch": 1,
        "step": 2,
        "seed": 7,
        "share": (BatchId(0, 3), BatchId(9, 9)),
        "trainer": b"t" * 32,
        "payload_hash": b"p" * 32,
    }
    run = changes.pop("run", RUN)
    return commitment_hash(run, **(fields | changes))


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": 2},
        {"step": 3},
        {"share": (BatchId(0, 3),)},
        {"share": (BatchId(0, 3), BatchId(9, 10))},
        {"trainer": b"u" * 32},
        {"payload_hash": b"q" * 32},
        {"run": bytes(32)},
        {"seed": 8},
    ],
)
def test_a5_the_commitment_covers_everything_that_identifies_a_result(change: dict[str, object]) -> None:
    """Reference client 9.1-5 and 9.2-23: the hash left out shapes, sender and run."""
    assert _commitment() != _commitment(**change)


def test_a_commitment_signature_binds_the_trainer_and_the_run() -> None:
    commitment = _commitment()
    signature = sign_commitment(KEY, RUN, commitment)
    result = Result(1, 0, 2, 7, (BatchId(0, 3),), b"p" * 32, 10, commitment, signature)

    assert commitment_is_signed(result, run=RUN, p2p=KEY.public)
    assert not commitment_is_signed(result, run=RUN, p2p=OTHER.public)
    assert not commitment_is_signed(result, run=bytes(32), p2p=KEY.public)
    assert not commitment_is_signed(replace(result, commitment=bytes(32)), run=RUN, p2p=KEY.public)


def test_roots_of_deltas_are_covered_by_the_commitment_and_change_no_byte_where_there_are_none() -> None:
    assert result_hash(b"p" * 32, b"") == b"p" * 32
    assert len({result_hash(b"p" * 32, roots) for roots in (b"", bytes(64), b"r" * 64)}) == 3
    result = Result(1, 0, 2, 7, (BatchId(0, 3),), b"p" * 32, 10, b"c" * 32, b"s" * 64)
    body = decode(decode(seal(KEY, RUN, result), max_bytes=1000)[2], max_bytes=1000)
    assert len(body) == 10
    with_roots = decode(decode(seal(KEY, RUN, replace(result, roots=b"r" * 64)), max_bytes=1000)[2], max_bytes=1000)
    assert with_roots == [*body, b"r" * 64]
