"""The messages between clients, and the signed envelope around them.

All messages use the same envelope. The sender signs it with its p2p key, together with a domain tag and the run's instance, so
any member may forward a message. Fields have fixed positions in lists instead of names; the first element is the version. A
result's commitment (F7) covers run, epoch, step, the round's seed, the whole share, the trainer and the SHA-256 of the *complete*
payload. It has its own signature, so two commitments prove equivocation without the envelopes. A wrong type, length or range
raises WireError.

Every message names a seed (u64): that of its round, or of its epoch where it belongs to no round. Epoch and height are not
enough. The epoch after an abandoned warmup has the same number, and a restored coordinator plays a round again. Transports know
a message by its bytes, so without the seed the second request for a model would equal the first, and would not be delivered.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from psyche_core.errors import WireError
from psyche_core.types import BatchId
from psyche_core.wire.codec import decode, encode
from psyche_core.wire.signing import SecretKey, framed, verify

VERSION = 3
MAX_ENVELOPE_BYTES = 16 * 1024
MAX_SHARE_INTERVALS = 512
_ENVELOPE = "message"
_COMMITMENT = "commitment"
_JOIN = "join"


@dataclass(frozen=True, slots=True)
class Result:
    """A trainer announces the result of its share of a round.

    seed: of the round. payload_hash: SHA-256 of the payload, under which peers fetch it as a blob. payload_bytes: its length.
    commitment: 32 bytes, see `commitment_hash`. signature: the trainer's signature of the commitment, 64 bytes. roots: of the
    trainer's delta with this round's contribution and of the one without, 64 bytes (protocol section 7); in runs without
    verification nothing.
    """

    epoch: int
    height: int
    step: int
    seed: int
    share: tuple[BatchId, ...]
    payload_hash: bytes
    payload_bytes: int
    commitment: bytes
    signature: bytes
    roots: bytes = b""

    @property
    def committed_hash(self) -> bytes:
        """What the commitment covers of the result: see `result_hash`."""
        return result_hash(self.payload_hash, self.roots)


@dataclass(frozen=True, slots=True)
class Finished:
    """The sender has trained round `height` and holds all payloads of round `height - 1` (protocol section 3).

    seed: of round `height`.
    """

    epoch: int
    height: int
    seed: int


@dataclass(frozen=True, slots=True)
class ModelDigest:
    """The full digest (32 bytes) of the sender's float32 master weights.

    ended: True for the digest after an epoch's last apply, False for the digest before its first round. seed: u64, of the epoch's
    last round, or of the epoch itself before the first round. A coordinator that was restored from an older state draws other
    seeds, so members do not confuse earlier digests with present ones.
    """

    epoch: int
    ended: bool
    digest: bytes
    seed: int


@dataclass(frozen=True, slots=True)
class ModelWanted:
    """The sender needs the master weights after the accepted results of `step` (0: before any step), protocol section 5.

    seed: of the epoch.
    """

    epoch: int
    step: int
    seed: int


@dataclass(frozen=True, slots=True)
class ModelOffer:
    """The sender's master weights after `step` match a manifest, and it serves the manifest and its pieces as blobs.

    seed: of the epoch. manifest_hash: SHA-256 of the manifest (psyche_core.p2p.manifest), under which peers fetch it.
    manifest_bytes: its length. description_hash, description_bytes: the same for the description of how the model is built
    (psyche_core.p2p.description), for clients that have no such files; 32 zero bytes and 0 if the sender serves no description.
    """

    epoch: int
    step: int
    seed: int
    manifest_hash: bytes
    manifest_bytes: int
    description_hash: bytes = bytes(32)
    description_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Opening:
    """The sender shows its part in a stage of a challenge, and serves it as a blob (protocol section 7).

    height, seed: of the round with which the stage began. about, trainer: round and slot of the challenged share. payload_hash,
    payload_bytes: SHA-256 and length of the part: signs of a delta with hashes of its chunks, or opened chunks with proofs.
    """

    epoch: int
    height: int
    seed: int
    about: int
    trainer: int
    payload_hash: bytes
    payload_bytes: int


Message = Result | Finished | ModelDigest | ModelWanted | ModelOffer | Opening


def result_hash(payload_hash: bytes, roots: bytes) -> bytes:
    """Return what a commitment covers of a result, 32 bytes: the hash of the payload, and the deltas' roots if there are any.

    One hash in both cases, so that a proof of equivocation has the same form, and a chain need not know roots.
    """
    return payload_hash if not roots else hashlib.sha256(b"psyche/result/1" + payload_hash + roots).digest()


@lru_cache(maxsize=2048)  # needed when a result is announced, and again when it is checked
def commitment_hash(
    run: bytes, *, epoch: int, step: int, seed: int, share: tuple[BatchId, ...], trainer: bytes, payload_hash: bytes
) -> bytes:
    """Return the 32-byte commitment of a result (protocol F7).

    run: the run's instance. seed: of the round (u64). trainer: the signer of the trainer's identity (32 bytes). payload_hash:
    SHA-256 of the payload, or `result_hash`. The seed is included because a coordinator that was restored from an older state
    starts other rounds with the same epoch and step. A commitment from a discarded round must not count for the round that
    replaces it.
    """
    fields = ["psyche/commitment/2", run, epoch, step, seed, [[b.first, b.last] for b in share], trainer, payload_hash]
    return hashlib.sha256(encode(fields)).digest()


def sign_commitment(key: SecretKey, run: bytes, commitment: bytes) -> bytes:
    """Return the 64-byte signature of a commitment by the trainer's p2p key. run: the run's instance, here and below."""
    return key.sign(_COMMITMENT, run, commitment)


def commitment_message(run: bytes, commitment: bytes) -> bytes:
    """Return the bytes that `sign_commitment` signs, for code that verifies signatures in another way (a chain)."""
    return framed(_COMMITMENT, run, commitment)


def is_commitment_of(p2p: bytes, commitment: bytes, signature: bytes, *, run: bytes) -> bool:
    """Whether the signature of a commitment is valid for this p2p key. False for malformed keys and signatures."""
    return verify(p2p, signature, domain=_COMMITMENT, run=run, body=commitment)


def commitment_is_signed(result: Result, *, run: bytes, p2p: bytes) -> bool:
    """Whether the signature in a result is valid for its commitment. p2p: the trainer's p2p key."""
    return is_commitment_of(p2p, result.commitment, result.signature, run=run)


def sign_join(key: SecretKey, run: bytes, signer: bytes) -> bytes:
    """Return the 64-byte signature by which a transport key confirms that it belongs to `signer` (32 bytes) in this run."""
    return key.sign(_JOIN, run, signer)


def join_message(run: bytes, signer: bytes) -> bytes:
    """Return the bytes that `sign_join` signs, for code that verifies signatures in another way (a chain)."""
    return framed(_JOIN, run, signer)


@lru_cache(maxsize=512)  # a member joins again after each reconnection
def is_join_of(p2p: bytes, signer: bytes, proof: bytes, *, run: bytes) -> bool:
    """Whether `proof` is a signature by this transport key for `signer`. False for malformed keys and signatures."""
    return verify(p2p, proof, domain=_JOIN, run=run, body=signer)


def seal(key: SecretKey, run: bytes, message: Message) -> bytes:
    """Return the signed envelope of a message: the CBOR list [version, origin, body, signature]."""
    match message:
        case Result():
            body: list[Any] = [
                1,
                message.epoch,
                message.height,
                message.step,
                message.seed,
                [[batch.first, batch.last] for batch in message.share],
                message.payload_hash,
                message.payload_bytes,
                message.commitment,
                message.signature,
                *([message.roots] if message.roots else []),
            ]
        case Finished():
            body = [2, message.epoch, message.height, message.seed]
        case ModelDigest():
            body = [3, message.epoch, message.ended, message.digest, message.seed]
        case ModelWanted():
            body = [4, message.epoch, message.step, message.seed]
        case ModelOffer():
            manifest = [message.manifest_hash, message.manifest_bytes]
            body = [5, message.epoch, message.step, message.seed, *manifest, message.description_hash, message.description_bytes]
        case Opening():
            part = [message.payload_hash, message.payload_bytes]
            body = [6, message.epoch, message.height, message.seed, message.about, message.trainer, *part]

    encoded = encode(body)
    return encode([VERSION, key.public, encoded, key.sign(_ENVELOPE, run, encoded)])


def unseal(data: bytes, *, run: bytes) -> tuple[bytes, Message]:
    """Verify an envelope and return its origin (p2p key, 32 bytes) and its message. Raises only WireError."""
    envelope = decode(data, max_bytes=MAX_ENVELOPE_BYTES, max_depth=2)
    if not isinstance(envelope, list) or len(envelope) != 4:
        message = "an envelope is a list of version, origin, body and signature"
        raise WireError(message)

    version, origin, body, signature = envelope
    if type(version) is not int or version != VERSION:  # `!=` alone accepts True and 1.0: other bytes, same signature
        message = f"message version {version!r:.40} is not {VERSION}"
        raise WireError(message)

    _bytes(origin, 32)
    _bytes(signature, 64)
    if not isinstance(body, bytes):
        message = "an envelope's body is a byte string"
        raise WireError(message)

    if not verify(origin, signature, domain=_ENVELOPE, run=run, body=body):
        message = f"the signature of a message from {origin[:4].hex()} is not valid for this run"
        raise WireError(message)

    return origin, _message(decode(body, max_bytes=MAX_ENVELOPE_BYTES, max_depth=4))


def _message(fields: Any) -> Message:
    if isinstance(fields, list) and fields and type(fields[0]) is not int:  # a pattern `1` matches True and 1.0 too
        message = f"a message's kind is an integer, got {fields[0]!r:.40}"
        raise WireError(message)

    match fields:
        case [1, epoch, height, step, seed, [*share], payload_hash, payload_bytes, commitment, signature, *roots] if (
            len(roots) <= 1
        ):
            if not 1 <= len(share) <= MAX_SHARE_INTERVALS:
                message = f"a share has 1..{MAX_SHARE_INTERVALS} intervals, got {len(share)}"
                raise WireError(message)

            return Result(
                _number(epoch, 32),
                _number(height, 32),
                _number(step, 32),
                _number(seed, 64),
                tuple(_batch(item) for item in share),
                _bytes(payload_hash, 32),
                _number(payload_bytes, 40),
                _bytes(commitment, 32),
                _bytes(signature, 64),
                _bytes(roots[0], 64) if roots else b"",
            )
        case [2, epoch, height, seed]:
            return Finished(_number(epoch, 32), _number(height, 32), _number(seed, 64))
        case [3, epoch, bool(ended), digest, seed]:
            return ModelDigest(_number(epoch, 32), ended, _bytes(digest, 32), _number(seed, 64))
        case [4, epoch, step, seed]:
            return ModelWanted(_number(epoch, 32), _number(step, 32), _number(seed, 64))
        case [5, epoch, step, seed, manifest_hash, manifest_bytes, description_hash, description_bytes]:
            return ModelOffer(
                _number(epoch, 32),
                _number(step, 32),
                _number(seed, 64),
                _bytes(manifest_hash, 32),
                _number(manifest_bytes, 40),
                _bytes(description_hash, 32),
                _number(description_bytes, 40),
            )
        case [6, epoch, height, seed, about, trainer, payload_hash, payload_bytes]:
            return Opening(
                _number(epoch, 32),
                _number(height, 32),
                _number(seed, 64),
                _number(about, 32),
                _number(trainer, 16),
                _bytes(payload_hash, 32),
                _number(payload_bytes, 40),
            )
        case _:
            message = "unknown message kind or wrong number of fields"
            raise WireError(message)


def _number(value: Any, bits: int) -> int:
    if type(value) is not int or not 0 <= value < 1 << bits:
        message = f"expected an unsigned {bits}-bit number, got {value!r:.40}"
        raise WireError(message)

    return value


def _bytes(value: Any, length: int) -> bytes:
    if not isinstance(value, bytes) or len(value) != length:
        message = f"expected {length} bytes, got {value!r:.40}"
        raise WireError(message)

    return value


def _batch(value: Any) -> BatchId:
    if not isinstance(value, list) or len(value) != 2:
        message = "an interval is a list of first and last"
        raise WireError(message)

    try:
        return BatchId(_number(value[0], 64), _number(value[1], 64))
    except ValueError as error:
        raise WireError(str(error)) from error
