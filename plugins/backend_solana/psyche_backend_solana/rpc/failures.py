"""Classifies failed calls and transactions, and decides what to do next. No I/O.

The decision depends on the HTTP status, the JSON-RPC code and the form of a transaction's error, never on a message's text,
which providers change. An unknown failure is tried at another provider. An error that a program returned is an answer and not a
failure of the network.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from psyche_core.text_safety import printable


class Verdict(Enum):
    """What to do next."""

    AGAIN = "try again, here or elsewhere"
    ELSEWHERE = "this endpoint cannot; another may"
    REBUILD = "sign again with a fresh blockhash"
    KNOWN = "the transaction was accepted before"
    BUDGET = "more compute units are needed"
    REFUSED = "a program refused it"
    FATAL = "every endpoint would fail"


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason of a failure. sentence: for the user. custom: a program's error number. instruction: index of the failed one.

    program: address of the program whose number it is, where the logs name it. The instruction's program may have called it.
    """

    verdict: Verdict
    sentence: str
    custom: int | None = None
    instruction: int | None = None
    program: str | None = None


class RpcError(Exception):
    """A call that failed permanently, with its Failure."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.sentence)
        self.failure = failure


_AGAIN_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
_PREFLIGHT_FAILURE = -32002
_FAILED = re.compile(r"Program ([1-9A-HJ-NP-Za-km-z]{32,44}) failed: custom program error: 0x([0-9a-f]{1,8})")
_BY_CODE: Mapping[int, Verdict] = {
    -32700: Verdict.FATAL,  # parse error
    -32600: Verdict.FATAL,  # invalid request
    -32602: Verdict.FATAL,  # invalid parameters
    -32003: Verdict.FATAL,  # signature verification failed
    -32013: Verdict.FATAL,  # signature of a wrong length
    -32006: Verdict.REFUSED,  # a precompile found a signature wrong
    -32603: Verdict.AGAIN,  # internal error
    -32001: Verdict.ELSEWHERE,  # block cleaned up
    -32004: Verdict.AGAIN,  # block not available
    -32005: Verdict.ELSEWHERE,  # node is behind
    -32007: Verdict.AGAIN,  # slot skipped
    -32008: Verdict.ELSEWHERE,  # no snapshot
    -32009: Verdict.AGAIN,  # slot skipped, or missing in long-term storage
    -32012: Verdict.AGAIN,  # scan error
    -32014: Verdict.AGAIN,  # block status not available yet
    -32016: Verdict.AGAIN,  # minimum context slot not reached
    -32429: Verdict.AGAIN,  # rate limit, as some providers write it
    429: Verdict.AGAIN,
}

_AGAIN_TRANSACTION = frozenset(
    {
        "AccountInUse",
        "AccountBorrowOutstanding",
        "ClusterMaintenance",
        "WouldExceedMaxBlockCostLimit",
        "WouldExceedMaxAccountCostLimit",
        "WouldExceedMaxVoteCostLimit",
        "WouldExceedAccountDataBlockLimit",
        "WouldExceedAccountDataTotalLimit",
        "TooManyAccountLocks",
        "ResanitizationNeeded",
        "ProgramExecutionTemporarilyRestricted",
        "ProgramCacheHitMaxLimit",
        "UnbalancedTransaction",
    }
)
_BUDGET = frozenset({"ComputationalBudgetExceeded", "ProgramFailedToComplete"})
_NO_MONEY = frozenset({"AccountNotFound", "InsufficientFundsForFee", "InsufficientFundsForRent"})


def of_status(status: int, *, endpoint: str) -> Failure:
    """The failure for an HTTP status that is not a success."""
    if status in _AGAIN_STATUSES:
        return Failure(Verdict.AGAIN, f"{endpoint} answered with HTTP status {status}")

    return Failure(Verdict.ELSEWHERE, f"{endpoint} answered with HTTP status {status}; check its URL and key")


def of_connection(reason: str, *, endpoint: str) -> Failure:
    """The failure for a connection that was refused, lost or silent."""
    return Failure(Verdict.AGAIN, f"cannot reach {endpoint}: {reason}")


def of_answer(code: int, message: str, data: object, *, endpoint: str) -> Failure:
    """The failure for a JSON-RPC error."""
    if code == _PREFLIGHT_FAILURE and isinstance(data, Mapping) and data.get("err") is not None:
        return of_transaction(data["err"])

    verdict = _BY_CODE.get(code, Verdict.ELSEWHERE)
    return Failure(verdict, f"{endpoint} answered with error {code}: {printable(message, at_most=200)}")


def of_transaction(error: object, logs: Iterable[str] = ()) -> Failure:
    """The failure for a transaction's error, as simulation, preflight and signature statuses return it. logs: of the programs."""
    match error:
        case {"InstructionError": [int(place), inner]}:
            failure = _of_instruction(place, inner)
            return failure if failure.custom is None else replace(failure, program=_failed_program(logs, failure.custom))
        case str(name):
            return _of_name(name)
        case {**rest} if len(rest) == 1:
            (only,) = rest
            return _of_name(str(only), detail=f" {rest[only]}")

    return Failure(Verdict.REFUSED, f"the transaction failed: {error!r:.200}")


def _of_name(name: str, *, detail: str = "") -> Failure:
    name, detail = printable(name, at_most=200), printable(detail, at_most=200)  # a provider's text
    if name == "BlockhashNotFound":
        return Failure(Verdict.REBUILD, "the blockhash is no longer, or not yet, known")
    if name == "AlreadyProcessed":
        return Failure(Verdict.KNOWN, "the transaction was accepted before")
    if name in _AGAIN_TRANSACTION:
        return Failure(Verdict.AGAIN, f"the chain is busy: {name}{detail}")
    if name in _NO_MONEY:
        return Failure(Verdict.FATAL, f"the wallet cannot pay ({name}{detail}); send it some SOL for fees and rent")

    return Failure(Verdict.REFUSED, f"the chain refused the transaction: {name}{detail}")


def _of_instruction(place: int, inner: Any) -> Failure:
    match inner:
        case {"Custom": int(number)}:
            sentence = f"instruction {place} was refused with Custom({number})"
            return Failure(Verdict.REFUSED, sentence, custom=number, instruction=place)
        case str(name) if name in _BUDGET:
            return Failure(Verdict.BUDGET, f"instruction {place} ran out of compute units ({name})", instruction=place)

    name = printable(inner if isinstance(inner, str) else _inner_name(inner), at_most=200)
    return Failure(Verdict.REFUSED, f"instruction {place} failed: {name}", instruction=place)


def _failed_program(logs: Iterable[str], number: int) -> str | None:
    """The program that failed with a number first, so before those that called it; None if the logs do not say."""
    for line in logs:
        found = _FAILED.fullmatch(line)
        if found is not None and int(found[2], 16) == number:
            return found[1]

    return None


def _inner_name(inner: object) -> str:
    if isinstance(inner, Mapping) and len(inner) == 1:
        return str(next(iter(inner)))
    if isinstance(inner, Sequence):
        return ", ".join(str(part) for part in inner)

    return repr(inner)
