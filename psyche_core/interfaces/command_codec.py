"""The commands of clients as plain lists that `psyche_core.wire.codec` encodes: for backends that carry bytes.

A list says what is wanted and not who wants it: the backend knows the sender from whatever authenticates it, and gives it to
`decode_command`. The owner's commands have no encoding here on purpose. Wrong types, lengths and ranges raise WireError before a
value is built. A backend whose server does not speak Python may have an encoding of its own.
"""

from __future__ import annotations

import math
from typing import Any

from psyche_core.config.run_config import Choice
from psyche_core.coordinator.commands import (
    Checkpoint,
    EpochDigest,
    Equivocation,
    HealthCheck,
    SignedResult,
    VerifierCommit,
    WarmupWitness,
    Withdraw,
    Witness,
)
from psyche_core.errors import WireError
from psyche_core.interfaces.backend import ClientCommand
from psyche_core.types import (
    MAX_CLIENTS,
    MAX_SCORE_NAME_BYTES,
    MAX_SCORES,
    MAX_WORDS_BYTES,
    EvaluationScore,
    NodeIdentity,
    WitnessMetadata,
    WitnessStatement,
)


def encode_command(command: ClientCommand) -> list[Any]:
    """A client's command as a plain list, without its sender. Raises ValueError for an invalid checkpoint location."""
    match command:
        case Withdraw():
            return [1]
        case WarmupWitness(_, epoch, index, model_digest):
            return [2, epoch, index, model_digest]
        case Witness(_, s, metadata):
            statement = [s.epoch, s.height, s.index, s.participants, s.broadcast_bloom, s.merkle_root, s.model_digest]
            if s.words:  # without verification a statement has the bytes that it had before
                statement.append(s.words)
            return [3, statement, None if metadata is None else encode_figures(metadata)]
        case HealthCheck(_, slots):
            return [4, list(slots)]
        case Checkpoint(_, location, step):
            place = None if location is None else Choice.parse(location).to_toml()
            return [5, place] if step is None else [5, place, step]
        case Equivocation(_, epoch, height, index, first, second):
            halves = [[half.payload_hash, half.signature] for half in (first, second)]
            return [6, epoch, height, index, *halves]
        case EpochDigest(_, epoch, index, digest):
            return [7, epoch, index, digest]
        case VerifierCommit(_, epoch, seed, height, trainer, commitment):
            return [8, epoch, seed, height, trainer, commitment]


def decode_command(plain: list[Any], sender: NodeIdentity) -> ClientCommand:
    """A client's command with its authenticated sender. Raises WireError, also for an unknown kind."""
    match plain:
        case [1]:
            return Withdraw(sender)
        case [2, int() as epoch, int() as index, bytes() as digest] if _are_u32(epoch, index) and len(digest) == 32:
            return WarmupWitness(sender, epoch, index, digest)
        case [3, list() as statement, metadata]:
            return Witness(sender, _statement(statement), None if metadata is None else _metadata(metadata))
        case [4, list() as slots] if len(slots) <= MAX_CLIENTS and all(_is_u32(slot) and slot < MAX_CLIENTS for slot in slots):
            return HealthCheck(sender, tuple(slots))
        case [5, location, *said] if len(said) <= 1 and all(_is_u32(step) for step in said):
            try:
                return Checkpoint(sender, None if location is None else Choice.parse(location), *said)
            except ValueError as error:
                message = f"a checkpoint location {error}"
                raise WireError(message) from error
        case [6, int() as epoch, int() as height, int() as index, list() as first, list() as second] if _are_u32(
            epoch, height, index
        ):
            return Equivocation(sender, epoch, height, index, _signed_result(first), _signed_result(second))
        case [7, int() as epoch, int() as index, bytes() as digest] if _are_u32(epoch, index) and len(digest) == 32:
            return EpochDigest(sender, epoch, index, digest)
        case [8, int() as epoch, int() as seed, int() as height, int() as trainer, commitment] if (
            _are_u32(epoch, height, trainer) and _is_u64(seed) and _is_commitment(commitment)
        ):
            return VerifierCommit(sender, epoch, seed, height, trainer, commitment)
        case _:
            message = "not a command clients may give, or one with fields of a wrong type or range"
            raise WireError(message)


def _statement(plain: list[Any]) -> WitnessStatement:
    match plain:
        case [
            int() as epoch,
            int() as height,
            int() as index,
            bytes() as seen,
            bytes() as bloom,
            bytes() as root,
            bytes() as digest,
            *words,
        ] if _are_u32(epoch, height, index) and [len(seen), len(bloom), len(root), len(digest)] == [32, 320, 32, 32]:
            return WitnessStatement(epoch, height, index, seen, bloom, root, digest, _words(words))
        case _:
            message = "a witness statement has fields of a wrong type or length"
            raise WireError(message)


def _words(plain: list[Any]) -> bytes:
    match plain:
        case []:
            return b""
        case [bytes() as words] if 1 <= len(words) <= MAX_WORDS_BYTES:
            return words
        case _:
            message = f"words about challenges have 1 to {MAX_WORDS_BYTES} bytes, or are left out"
            raise WireError(message)


def _signed_result(plain: list[Any]) -> SignedResult:
    match plain:
        case [bytes() as payload_hash, bytes() as signature] if (len(payload_hash), len(signature)) == (32, 64):
            return SignedResult(payload_hash, signature)
        case _:
            message = "a signed result is a hash of 32 bytes and a signature of 64"
            raise WireError(message)


def encode_figures(figures: WitnessMetadata) -> list[Any]:
    """A witness's figures as a plain list: step, tokens per second, bytes per second, loss, and scores if there are any."""
    plain = [figures.step, *map(float, (figures.tokens_per_sec, figures.bandwidth_per_sec, figures.loss))]
    scores = [[score.task, score.metric, float(score.value), score.documents, score.step] for score in figures.scores]
    return [*plain, scores] if scores else plain


def _metadata(plain: Any) -> WitnessMetadata:
    match plain:
        case [int() as step, float() as tokens, float() as bandwidth, float() as loss, *rest] if _is_u32(step) and all(
            map(math.isfinite, (tokens, bandwidth, loss))
        ):
            return WitnessMetadata(step, tokens, bandwidth, loss, _scores(rest))
        case _:
            message = "a witness's figures have a wrong type"
            raise WireError(message)


def _scores(plain: list[Any]) -> tuple[EvaluationScore, ...]:
    match plain:
        case []:
            return ()
        case [[_, *_] as listed] if len(listed) <= MAX_SCORES:
            return tuple(map(_score, listed))
        case _:
            message = f"expected 1 to {MAX_SCORES} scores of benchmarks, or none"
            raise WireError(message)


def _score(plain: Any) -> EvaluationScore:
    match plain:
        case [str() as task, str() as metric, float() as value, int() as documents, int() as step] if (
            math.isfinite(value)
            and _is_u32(documents)
            and _is_u32(step)
            and all(1 <= len(name.encode()) <= MAX_SCORE_NAME_BYTES for name in (task, metric))
        ):
            return EvaluationScore(task, metric, value, documents, step)
        case _:
            message = f"a score is two names of 1 to {MAX_SCORE_NAME_BYTES} bytes, a finite number, documents and step"
            raise WireError(message)


def _is_u32(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**32


def _is_u64(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**64


def _is_commitment(value: Any) -> bool:
    return value is None or (type(value) is bytes and len(value) == 32)


def _are_u32(*values: Any) -> bool:
    return all(map(_is_u32, values))
