"""Sends instructions as a transaction, and follows it until the chain has accepted or rejected it.

The steps: simulate, sign, send without preflight, send the same bytes to every endpoint every RESEND_SECONDS, ask for the
status. When the blockhash has expired, the transaction is signed again with a new one. Before that the status of the old one is
read once more, so that nothing happens twice without our knowledge. If the program rejects a duplicate, its error is returned.
The first simulation finds most errors, so a rejected command costs no fee. Without an answer by the deadline TimeoutError is
raised; the outcome is then unknown, and the caller may send the same again.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass

import anyio
from solders.hash import Hash
from solders.instruction import Instruction
from solders.message import Message, to_bytes_versioned
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import Transaction

from psyche_backend_solana.programs.in_use import Programs
from psyche_backend_solana.rpc import methods
from psyche_backend_solana.rpc.client import Rpc, RpcUnavailable
from psyche_backend_solana.rpc.failures import Failure, RpcError, Verdict, of_transaction
from psyche_backend_solana.sending import compute_budget as budget
from psyche_backend_solana.sending import refusals
from psyche_backend_solana.wallet import Signer
from psyche_core.errors import BackendError, CommandRefused

logger: logging.Logger = logging.getLogger("psyche.backend.solana")

POLL_SECONDS = 0.4
"""Seconds between two status requests for a transaction: about one slot."""
FIRST_POLL_SECONDS = 0.05
"""First pause in seconds; it doubles from here. It is short because a local chain answers at once."""
RESEND_SECONDS = 2.0
CALL_SECONDS = 15.0
MAX_PACKET_BYTES = 1232


class OutOfUnits(BackendError):
    """These instructions need more compute units than one transaction can have."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A transaction that succeeded."""

    signature: Signature
    slot: int


def signed_size(instructions: Sequence[Instruction], payer: Pubkey) -> int:
    """Size in bytes of the signed transaction with these instructions; at most MAX_PACKET_BYTES can be sent."""
    message = Message.new_with_blockhash([*budget.prices(budget.MAX_UNITS, 1), *instructions], payer, Hash.default())
    return len(bytes(Transaction.new_unsigned(message)))


class Sender:
    """Sends for one wallet. signers: others that must sign if their keys appear. price: millionths of a lamport per unit."""

    def __init__(self, rpc: Rpc, signer: Signer, *, price: int = 0, programs: Programs | None = None) -> None:
        self._rpc = rpc
        self._signer = signer
        self._price = price
        self._programs = programs or Programs()
        self._numbers = budget.distinct_numbers()

    @property
    def payer(self) -> Pubkey:
        """The wallet that signs and pays."""
        return self._signer.pubkey

    async def send(self, *instructions: Instruction, signers: Sequence[Signer] = (), timeout: float) -> Sent:
        """Execute all instructions, or none, in one transaction.

        Raises CommandRefused with the program's name for its error, BackendError for a failure that a retry would repeat,
        TimeoutError if the outcome is unknown after `timeout` seconds, ValueError if they do not fit into a transaction.
        """
        size = signed_size(instructions, self.payer)
        if size > MAX_PACKET_BYTES:
            message = f"a transaction has at most {MAX_PACKET_BYTES} bytes, these instructions need {size}; send them in parts"
            raise ValueError(message)

        try:
            with anyio.fail_after(timeout):
                return await self._until_answered(instructions, (self._signer, *signers))
        except RpcUnavailable as error:
            raise TimeoutError(str(error)) from error
        except RpcError as error:
            raise self._explained(error.failure, instructions) from error

    async def _until_answered(self, instructions: Sequence[Instruction], signers: Sequence[Signer]) -> Sent:
        ran_out = 0
        while True:
            fresh = await methods.blockhash(self._rpc, timeout=CALL_SECONDS)
            units = await self._needed(instructions, fresh, ran_out)
            transaction = await self._signed(instructions, signers, fresh, units)
            try:
                return await self._confirmed(transaction, fresh)
            except RpcError as error:
                match error.failure.verdict:
                    case Verdict.REBUILD:
                        logger.info("a transaction was not accepted before its blockhash expired; signing again")
                    case Verdict.AGAIN:
                        await anyio.sleep(POLL_SECONDS)
                    case Verdict.BUDGET if ran_out < 3:
                        ran_out += 1
                    case _:
                        raise

    async def _needed(self, instructions: Sequence[Instruction], fresh: methods.Blockhash, ran_out: int) -> int:
        """Compute units, by simulation. Raises RpcError if it fails."""
        message = self._message(instructions, budget.MAX_UNITS, fresh)
        while True:
            simulated = await methods.simulate(self._rpc, bytes(Transaction.new_unsigned(message)), timeout=CALL_SECONDS)
            if simulated.error is None:
                return budget.unit_limit(simulated.units, distinct=next(self._numbers), attempt=ran_out)

            failure = of_transaction(simulated.error, simulated.logs)
            if failure.verdict is not Verdict.AGAIN:
                raise RpcError(failure)
            await anyio.sleep(POLL_SECONDS)

    def _message(self, instructions: Sequence[Instruction], units: int, fresh: methods.Blockhash) -> Message:
        fees = budget.prices(units, self._price)
        return Message.new_with_blockhash([*fees, *instructions], self.payer, fresh.hash)

    async def _signed(
        self, instructions: Sequence[Instruction], signers: Sequence[Signer], fresh: methods.Blockhash, units: int
    ) -> Transaction:
        message = self._message(instructions, units, fresh)
        content = to_bytes_versioned(message)
        by_key = {signer.pubkey: signer for signer in signers}
        needed = message.account_keys[: message.header.num_required_signatures]
        missing = [str(key) for key in needed if key not in by_key]
        if missing:
            message_text = f"these instructions need signatures of {', '.join(missing)}, too"
            raise ValueError(message_text)

        return Transaction.populate(message, [await by_key[key].sign(content) for key in needed])

    async def _confirmed(self, transaction: Transaction, fresh: methods.Blockhash) -> Sent:
        """Send and wait. Raises RpcError: with REBUILD if it can no longer be accepted, else with the chain's error."""
        content, signature = bytes(transaction), transaction.signatures[0]
        await self._hand_in(content)
        last_sent, pause = anyio.current_time(), FIRST_POLL_SECONDS
        while True:
            await anyio.sleep(pause)
            pause = min(2 * pause, POLL_SECONDS)
            sent = await self._answer(signature)
            if sent is not None:
                return sent
            if anyio.current_time() - last_sent < RESEND_SECONDS:
                continue

            if await methods.block_height(self._rpc, timeout=CALL_SECONDS) > fresh.last_height:
                sent = await self._answer(signature)  # the last possible block may have accepted it
                if sent is not None:
                    return sent
                raise RpcError(Failure(Verdict.REBUILD, "the blockhash has expired"))
            await methods.resend(self._rpc, content, timeout=CALL_SECONDS)
            last_sent = anyio.current_time()

    async def _hand_in(self, content: bytes) -> None:
        try:
            await methods.send(self._rpc, content, timeout=CALL_SECONDS)
        except RpcError as error:
            if error.failure.verdict is not Verdict.KNOWN:  # a call that was retried may have arrived the first time
                raise

    async def _answer(self, signature: Signature) -> Sent | None:
        """The status of a transaction; None while it is unknown. Raises RpcError if it failed."""
        (status,) = await methods.statuses(self._rpc, [signature], timeout=CALL_SECONDS)
        if status is None or not status.confirmed:
            return None
        if status.error is not None:
            raise RpcError(of_transaction(status.error))

        return Sent(signature, status.slot)

    def _explained(self, failure: Failure, instructions: Sequence[Instruction]) -> BackendError:
        if failure.verdict is Verdict.BUDGET:
            return OutOfUnits(f"it needs more than the {budget.MAX_UNITS:,} compute units of a transaction")
        if failure.custom is not None and failure.instruction is not None:
            place = failure.instruction - len(budget.prices(0, self._price))
            program = instructions[place].program_id if 0 <= place < len(instructions) else None
            if failure.program is not None:
                with contextlib.suppress(ValueError):  # a provider's text
                    program = Pubkey.from_string(failure.program)
            name, sentence = refusals.meaning(program, failure.custom, programs=self._programs)
            return CommandRefused(name, sentence)
        if failure.verdict is Verdict.REFUSED:
            return CommandRefused("TransactionFailed", failure.sentence)

        return BackendError(failure.sentence)
