"""The JSON-RPC calls that this plugin uses, with their answers as values.

The commitment is `confirmed` everywhere: a supermajority has voted for it, and waiting for finality would cost every round 12
seconds more. An answer in an undocumented form raises RpcError, so that a broken provider's answer is never mistaken for the
chain's state.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from solders.hash import Hash
from solders.pubkey import Pubkey
from solders.signature import Signature

from psyche_backend_solana.rpc.client import Rpc
from psyche_backend_solana.rpc.failures import Failure, RpcError, Verdict

COMMITMENT = "confirmed"

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class AccountRead:
    """An account at one slot."""

    slot: int
    lamports: int
    owner: Pubkey
    data: bytes


@dataclass(frozen=True, slots=True)
class Blockhash:
    """A recent blockhash. last_height: block height after which transactions with it are invalid."""

    hash: Hash
    last_height: int


@dataclass(frozen=True, slots=True)
class Simulated:
    """The result of a simulation. error: in the chain's form; None for success."""

    error: Any
    units: int
    logs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Status:
    """The status of a transaction. confirmed: whether a supermajority has voted for its block."""

    slot: int
    error: Any
    confirmed: bool


async def account(rpc: Rpc, address: Pubkey, *, timeout: float) -> AccountRead | None:
    """An account; None if it does not exist."""
    answer = await rpc.call("getAccountInfo", str(address), {"encoding": "base64", "commitment": COMMITMENT}, timeout=timeout)
    return _shaped(lambda: read_account(answer))


async def accounts(
    rpc: Rpc, addresses: Sequence[Pubkey], *, data_slice: tuple[int, int] | None = None, timeout: float
) -> list[AccountRead | None]:
    """Several accounts of one slot, at most 100. data_slice: offset and length of the requested bytes of each; None for all."""
    names = [str(address) for address in addresses]
    options: dict[str, Any] = {"encoding": "base64", "commitment": COMMITMENT}
    if data_slice is not None:
        options["dataSlice"] = {"offset": data_slice[0], "length": data_slice[1]}
    answer = await rpc.call("getMultipleAccounts", names, options, timeout=timeout)
    return _shaped(lambda: [read_account({"context": answer["context"], "value": value}) for value in answer["value"]])


async def program_accounts(
    rpc: Rpc, program: Pubkey, *, begins_with: bytes, size: int | None = None, timeout: float
) -> dict[Pubkey, AccountRead]:
    """Return the accounts of a program whose data begins with these bytes. size: required size of the data; None for any."""
    filters: list[Any] = [{"memcmp": {"offset": 0, "bytes": base64.b64encode(begins_with).decode(), "encoding": "base64"}}]
    if size is not None:
        filters.append({"dataSize": size})
    options = {"encoding": "base64", "commitment": COMMITMENT, "filters": filters, "withContext": True}
    answer = await rpc.call("getProgramAccounts", str(program), options, timeout=timeout)
    return _shaped(
        lambda: {
            Pubkey.from_string(entry["pubkey"]): _some(read_account({"context": answer["context"], "value": entry["account"]}))
            for entry in answer["value"]
        }
    )


async def blockhash(rpc: Rpc, *, timeout: float) -> Blockhash:
    """The newest blockhash."""
    answer = await rpc.call("getLatestBlockhash", {"commitment": COMMITMENT}, timeout=timeout)
    return _shaped(
        lambda: Blockhash(Hash.from_string(answer["value"]["blockhash"]), int(answer["value"]["lastValidBlockHeight"]))
    )


async def block_height(rpc: Rpc, *, timeout: float) -> int:
    """The current block height."""
    answer = await rpc.call("getBlockHeight", {"commitment": COMMITMENT}, timeout=timeout)
    return _shaped(lambda: int(answer))


async def send(rpc: Rpc, transaction: bytes, *, timeout: float) -> Signature:
    """Send a signed transaction, without preflight: it was simulated before it was signed."""
    answer = await rpc.call("sendTransaction", _encoded(transaction), send_options(), timeout=timeout)
    return _shaped(lambda: Signature.from_string(answer))


async def resend(rpc: Rpc, transaction: bytes, *, timeout: float) -> int:
    """Send the same transaction to all endpoints; return how many accepted it."""
    return await rpc.ask_each("sendTransaction", _encoded(transaction), send_options(), timeout=timeout)


def send_options() -> dict[str, Any]:
    """Options of `sendTransaction`. maxRetries 0: we resend ourselves, because we know when to stop."""
    return {"encoding": "base64", "skipPreflight": True, "preflightCommitment": COMMITMENT, "maxRetries": 0}


async def simulate(rpc: Rpc, transaction: bytes, *, timeout: float) -> Simulated:
    """Simulate a transaction. Signatures and blockhash are not checked."""
    options = {"encoding": "base64", "commitment": COMMITMENT, "sigVerify": False, "replaceRecentBlockhash": True}
    answer = await rpc.call("simulateTransaction", _encoded(transaction), options, timeout=timeout)
    return _shaped(
        lambda: Simulated(
            answer["value"]["err"],
            int(answer["value"].get("unitsConsumed") or 0),
            tuple(map(str, answer["value"].get("logs") or ())),
        )
    )


async def statuses(rpc: Rpc, signatures: Sequence[Signature], *, timeout: float) -> list[Status | None]:
    """The status of transactions; None for unknown ones."""
    names = [str(signature) for signature in signatures]
    answer = await rpc.call("getSignatureStatuses", names, {"searchTransactionHistory": False}, timeout=timeout)
    return _shaped(lambda: [_status(value) for value in answer["value"]])


async def slot(rpc: Rpc, *, timeout: float) -> int:
    """The newest slot."""
    answer = await rpc.call("getSlot", {"commitment": COMMITMENT}, timeout=timeout)
    return _shaped(lambda: int(answer))


async def genesis_hash(rpc: Rpc, *, timeout: float) -> str:
    """The hash of the chain's first block, which differs between clusters."""
    answer = await rpc.call("getGenesisHash", timeout=timeout)
    return _shaped(lambda: str(Hash.from_string(answer)))


async def balance(rpc: Rpc, address: Pubkey, *, timeout: float) -> int:
    """Lamports of an account."""
    answer = await rpc.call("getBalance", str(address), {"commitment": COMMITMENT}, timeout=timeout)
    return _shaped(lambda: int(answer["value"]))


async def rent_exempt(rpc: Rpc, size: int, *, timeout: float) -> int:
    """Lamports that an account of `size` bytes must hold."""
    answer = await rpc.call("getMinimumBalanceForRentExemption", size, timeout=timeout)
    return _shaped(lambda: int(answer))


def read_account(answer: Any) -> AccountRead | None:
    """Parse an account from a call's answer or a subscription's notification.

    Raises KeyError, TypeError or ValueError for another form.
    """
    value = answer["value"]
    if value is None:
        return None

    owner = Pubkey.from_string(value["owner"])
    return AccountRead(int(answer["context"]["slot"]), int(value["lamports"]), owner, _decoded(value["data"]))


def _status(value: Any) -> Status | None:
    if value is None:
        return None

    return Status(int(value["slot"]), value.get("err"), value.get("confirmationStatus") in ("confirmed", "finalized"))


def _decoded(pair: Any) -> bytes:
    content, encoding = pair
    if encoding != "base64":
        message = f"expected base64, got {encoding!r:.40}"
        raise ValueError(message)

    return base64.b64decode(content, validate=True)


def _encoded(transaction: bytes) -> str:
    return base64.b64encode(transaction).decode()


def _some(read: AccountRead | None) -> AccountRead:
    if read is None:
        message = "expected an account"
        raise ValueError(message)

    return read


def _shaped(read: Callable[[], _Answer]) -> _Answer:
    try:
        return read()
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, binascii.Error) as error:
        sentence = f"an RPC endpoint's answer has an unexpected shape ({type(error).__name__}: {error})"
        raise RpcError(Failure(Verdict.ELSEWHERE, sentence)) from error
