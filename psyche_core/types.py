"""Frozen values that cross interfaces: identities, batches, phases, witness statements.

Everything here is immutable, hashable where it can be a key, and free of I/O, torch and numpy, so that the coordinator, the
client machine, plugins and the simulator can all use it. Numeric values of the enumerations are those of the reference
implementation and part of the wire format: never renumber them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum

MAX_CLIENTS = 256
"""Most clients in one epoch; also the number of bits in `WitnessStatement.participants`."""

MAX_SAMPLES = 2**63 - 1
"""Sample indices are below this."""

MAX_WITNESSES = 32
"""Most witnesses elected, and statements stored, in one round."""

MAX_WORDS_BYTES = 192
"""Most bytes of `WitnessStatement.words`: three words of four bits about each of 128 challenges."""


class RunState(IntEnum):
    """The coordinator's phases, with the numbers of the reference implementation."""

    Uninitialized = 0
    WaitingForMembers = 1
    Warmup = 2
    RoundTrain = 3
    RoundWitness = 4
    Cooldown = 5
    Finished = 6
    Paused = 7

    @property
    def halted(self) -> bool:
        """True in the phases that last until somebody acts: uninitialized, finished, paused."""
        return self in (RunState.Uninitialized, RunState.Finished, RunState.Paused)

    @property
    def active(self) -> bool:
        """True during an epoch's rounds and its cooldown."""
        return self in (RunState.RoundTrain, RunState.RoundWitness, RunState.Cooldown)


class ClientState(IntEnum):
    """Health of one slot of the epoch."""

    Healthy = 0
    Dropped = 1
    Withdrawn = 2
    Ejected = 3


class Committee(IntEnum):
    """Roles drawn from the round's seed."""

    TieBreaker = 0
    Verifier = 1
    Trainer = 2


@dataclass(frozen=True, slots=True, order=True)
class NodeIdentity:
    """The identity of a client: the key that signs for the backend, and the key of its transport endpoint.

    Both are raw 32-byte Ed25519 public keys. On the TCP backend they are the same key; on Solana `signer` is the wallet.
    """

    signer: bytes
    p2p: bytes

    def __post_init__(self) -> None:
        for name in ("signer", "p2p"):
            value = getattr(self, name)
            if not isinstance(value, bytes) or len(value) != 32:
                message = f"{name} must be 32 bytes (an Ed25519 public key), got {value!r}"
                raise ValueError(message)

    @property
    def short(self) -> str:
        """First four bytes of the signer in hex, for display only. It is not unique, so never use it as a key."""
        return self.signer[:4].hex()

    def __str__(self) -> str:
        return self.short


_BATCH_TEXT = re.compile(r"^B?\[?\s*(\d+)\s*(?:,\s*(\d+)\s*)?\]?$")


@dataclass(frozen=True, slots=True, order=True)
class BatchId:
    """A closed interval of sample indices, `first..last` inclusive. Samples are sequences of `max_seq_len` tokens.

    Indices are below 2**63 - 1, so that `len` can return the number of samples in any interval.
    """

    first: int
    last: int

    def __post_init__(self) -> None:
        if not 0 <= self.first <= self.last < MAX_SAMPLES:
            message = f"a batch is a closed interval 0 <= first <= last < 2**63 - 1, got [{self.first}, {self.last}]"
            raise ValueError(message)

    def __len__(self) -> int:
        return self.last - self.first + 1

    def __str__(self) -> str:
        return f"B[{self.first}, {self.last}]"

    @classmethod
    def parse(cls, text: str) -> BatchId:
        """Parse the format that `str` writes, and the short form `B5` that the reference implementation writes."""
        match = _BATCH_TEXT.match(text.strip())
        if match is None:
            message = f"expected a batch like 'B[0, 3]' or 'B5', got {text!r}"
            raise ValueError(message)
        first = int(match.group(1))
        last = int(match.group(2)) if match.group(2) is not None else first
        return cls(first, last)


def total_samples(batches: tuple[BatchId, ...]) -> int:
    """Number of samples in several intervals."""
    return sum(len(batch) for batch in batches)


@dataclass(frozen=True, slots=True)
class WitnessStatement:
    """The statement of an elected witness of round `height` about the results of round `height - 1` (protocol F6).

    Attributes:
        epoch: the round in which it is sent.
        height: the round in which it is sent.
        index: the witness's own slot in the epoch.
        participants: 32 bytes, bit `slot % 8` of byte `slot // 8` is set if that slot's result was received and verified.
        broadcast_bloom: 320 bytes (2560 bits, 8 keys derived from the seed of round `height`) over the accepted commitments.
        merkle_root: root over the accepted commitments sorted by (batch, hash); 32 zero bytes if there are none.
        model_digest: full digest of the master weights during the round, after its updates were applied (protocol section 5).
        words: what the witness says about opened challenges, see `psyche_core.verification.words`; nothing where none are due.
    """

    epoch: int
    height: int
    index: int
    participants: bytes
    broadcast_bloom: bytes
    merkle_root: bytes
    model_digest: bytes
    words: bytes = b""


MAX_SCORES = 2
"""Most scores in the figures of one statement: on a chain these have 256 bytes."""

MAX_SCORE_NAME_BYTES = 32
"""Most bytes of UTF-8 of the name of a benchmark, or of what it measures, in a statement's figures."""


@dataclass(frozen=True, slots=True)
class EvaluationScore:
    """Score of a benchmark that a witness measured. Unverified.

    task, metric: names, such as `arc_easy` and `acc_norm`, 1 to MAX_SCORE_NAME_BYTES each. documents: number that was measured, 0
    if unknown. step: the last one in the weights that measured the last document.
    """

    task: str
    metric: str
    value: float
    documents: int
    step: int


@dataclass(frozen=True, slots=True)
class WitnessMetadata:
    """Unverified figures that a witness attaches to its statement for dashboards. The sender rejects non-finite values.

    step; tokens_per_sec (tokens/s of the witness's own training); bandwidth_per_sec (bytes/s received); loss (nats per token).
    scores: of benchmarks, at most MAX_SCORES.
    """

    step: int
    tokens_per_sec: float
    bandwidth_per_sec: float
    loss: float
    scores: tuple[EvaluationScore, ...] = ()


def bitmap(slots: tuple[int, ...] | list[int] | set[int] | frozenset[int]) -> bytes:
    """The 32-byte participants bitmap with the given slots set."""
    bits = bytearray(MAX_CLIENTS // 8)
    for slot in slots:
        if not 0 <= slot < MAX_CLIENTS:
            message = f"a slot is 0..{MAX_CLIENTS - 1}, got {slot}"
            raise ValueError(message)
        bits[slot // 8] |= 1 << (slot % 8)
    return bytes(bits)


@dataclass(frozen=True, slots=True)
class Decision:
    """What decided the last step in a model: a checkpoint keeps it, so that a later state can be compared with it.

    step: that step. epoch, height: of its round. statements: digest of the statements about that round, 32 bytes. history: digest
    of the run's decisions up to this step (`CoordinatorState.history`), 32 bytes, zero if unknown.
    """

    step: int
    epoch: int
    height: int
    statements: bytes
    history: bytes = bytes(32)
