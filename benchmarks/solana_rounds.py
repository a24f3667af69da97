"""A run on the real program in an SVM in this process, played epoch by epoch: what each transaction of honest members takes.

The instructions are those that a client sends, with the figures of a statement. Nobody verifies, and every statement arrives in
time. `benchmarks.solana` has the worst cases.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from solders.transaction import Transaction
from solders.transaction_metadata import FailedTransactionMetadata, TransactionMetadata

from plugins.backend_solana.tests.svm.coordinator_svm import MOST_UNITS, Answer, CoordinatorSvm, member, proved
from plugins.backend_solana.tests.svm.largest import NOW, SLOT, Largest
from psyche_backend_solana.sending.member_commands import instructions_of, wants_tick
from psyche_core.coordinator import apply, commands
from psyche_core.coordinator import canonical_image as image
from psyche_core.coordinator.checkpoints import checkpointer_slot
from psyche_core.coordinator.round.assignment import shares
from psyche_core.coordinator.round.committee import witness_slots
from psyche_core.coordinator.state import CoordinatorState, Epoch
from psyche_core.types import RunState, WitnessMetadata

ROUND_SECONDS = 30
"""Seconds of the chain's clock between the beginning of a round and its first statement."""
SLOTS_PER_SECOND = 2.5
_DIGEST = b"d" * 32


@dataclass(frozen=True, slots=True)
class Sent:
    """A transaction that was carried out.

    kind: the command's name. units: compute units, those for the unit limit included. size: in bytes. lamports: what its
    payer paid. seconds: processor time of this process while the SVM executed it.
    """

    kind: str
    units: int
    size: int
    lamports: int
    seconds: float


class MeteredSvm(CoordinatorSvm):
    """A chain that measures the last transaction: its size, what it cost its payer, and the SVM's processor time."""

    size = 0
    lamports = 0
    seconds = 0.0

    def hand_in(self, transaction: Transaction) -> TransactionMetadata | FailedTransactionMetadata:
        """Execute it, timed."""
        payer = transaction.message.account_keys[0]
        had = self.svm.get_balance(payer) or 0
        began = time.process_time()
        result = self.svm.send_transaction(transaction)
        self.seconds = time.process_time() - began
        self.lamports = had - (self.svm.get_balance(payer) or 0)
        self.size = len(bytes(transaction))
        return result


class PlayedRun:
    """A run of so many clients that begins without any.

    rounds: of an epoch in which members train; the drain round follows them. checked: whether each transaction is compared with
    `psyche_core.coordinator`; without it, only a refusal is noticed, and the state is read after each round.
    """

    def __init__(self, clients: int, *, rounds: int, checked: bool = True) -> None:
        self.chain = MeteredSvm(members=clients)
        self.clients = clients
        self._checked = checked
        self._largest = Largest(torn=False, percent=0, instance=self.chain.instance)
        state = self._largest.state
        times = {"max_round_train_time": 2 * ROUND_SECONDS, "warmup_time": 600, "cooldown_time": 600, "epoch_time": 2**31}
        counts = {"init_min_clients": clients, "min_clients": 1, "rounds_per_epoch": rounds}
        self.state: CoordinatorState = replace(
            state,
            config=state.config.model_copy(update={**times, **counts}),
            run_state=RunState.WaitingForMembers,
            epoch=Epoch(),
            pending=(),
            accounts=state.accounts[:clients],
            since=NOW,
            minimum_since=None,
        )
        self.chain.begin(self.state)
        self.now, self._slot = NOW, SLOT
        self.wait(0)

    def gather(self) -> list[Sent]:
        """Everybody joins, with a proof of the transport key."""
        with self._read_after():
            return [self.do(proved(number, self.chain.instance)) for number in range(self.clients)]

    def warm_up(self) -> list[Sent]:
        """The epoch begins, and everybody has the model."""
        self.wait(10)
        began = self.do(commands.Tick())
        self._read()
        epoch, slots = self.state.progress.epoch, self._members()
        with self._read_after():
            return [began, *(self.do(commands.WarmupWitness(member(who), epoch, slot, _DIGEST)) for slot, who in slots)]

    def play_round(self) -> list[Sent]:
        """All statements of the current round."""
        self.begin_round()
        before = self.state.epoch.rounds[-1]
        with self._read_after():
            sent = [self.do(command) for command in self.statements()]
        if self.state.run_state is RunState.RoundTrain and self.state.epoch.rounds[-1].height != before.height + 1:
            message = f"round {before.height} did not end"
            raise AssertionError(message)
        return sent

    def begin_round(self) -> None:
        """Let the time pass in which members train."""
        self.wait(ROUND_SECONDS)

    def end_epoch(self) -> list[Sent]:
        """The cooldown: digests of all, a checkpoint, and a tick."""
        epoch, slots = self.state.progress.epoch, self._members()
        with self._read_after():
            sent = [self.do(commands.EpochDigest(member(who), epoch, slot, _DIGEST)) for slot, who in slots]
        saver = checkpointer_slot(self.state)
        if self.state.run_state is RunState.Cooldown and saver is not None:
            location = {"Hub": {"repo_id": "owner/model", "revision": "main"}}
            sent.append(self.do(commands.Checkpoint(member(dict(slots)[saver]), location)))
            self._read()
        if self.state.run_state is RunState.Cooldown:
            self.wait(600)
            sent.append(self.do(commands.Tick()))
            self._read()
        if self.state.run_state is not RunState.WaitingForMembers:
            message = f"the epoch did not end: {self.state.run_state}"
            raise AssertionError(message)
        return sent

    @property
    def in_rounds(self) -> bool:
        """Whether the epoch has a round to play."""
        return self.state.run_state in (RunState.RoundTrain, RunState.RoundWitness)

    def statements(self) -> Iterator[commands.Witness]:
        """Those of the current round."""
        state, rounds = self.state, self.state.epoch.rounds
        current = rounds[-1]
        seen = list(shares(state, rounds[-2])) if current.height else []
        figures = WitnessMetadata(step=current.step, tokens_per_sec=1234.5, bandwidth_per_sec=1e6, loss=2.5)
        numbers = dict(self._members())
        for slot in witness_slots(state, current):
            statement = self._largest.statement(slot, current, seen=seen)
            yield commands.Witness(member(numbers[slot]), replace(statement, epoch=state.progress.epoch), figures)

    def _members(self) -> list[tuple[int, int]]:
        """Slot and number of each member of the epoch."""
        numbers = {member(number): number for number in range(self.clients)}
        return [(slot, numbers[client.id]) for slot, client in enumerate(self.state.epoch.clients)]

    def wait(self, seconds: int) -> None:
        """Let the chain's clock run."""
        self.now += seconds
        self._slot += int(SLOTS_PER_SECOND * seconds)
        self.chain.at(self.now, self._slot)

    @contextmanager
    def _read_after(self) -> Iterator[None]:
        yield
        self._read()

    def _read(self) -> None:
        """Take the state from the chain; where transactions are checked it is already the same."""
        if not self._checked:
            self.state = image.decode(self.chain.image)

    def do(self, command: commands.Command) -> Sent:
        """Send one command. Raises AssertionError if the chain refuses it, or does something else than the coordinator."""
        chain, now, after = self.chain, self.now, self.state
        if self._checked:
            after, _ = apply(self.state, command, now, chain.at(now, self._slot))
        answer = self._answer(command)
        if answer.refusal is not None or (self._checked and chain.image != image.encode(after)):
            message = f"the chain did something else at {type(command).__name__}: {answer.refusal} {answer.logs[-3:]}"
            raise AssertionError(message)
        self.state = after
        return Sent(type(command).__name__, answer.units, chain.size, chain.lamports, chain.seconds)

    def _answer(self, command: commands.Command) -> Answer:
        if isinstance(command, commands.Join | commands.Tick):
            return self.chain.do(command, self.state)
        assert isinstance(command, commands.Witness | commands.WarmupWitness | commands.EpochDigest | commands.Checkpoint)
        assert not (self._checked and wants_tick(self.state, command, self.now)), "a client would send a tick as well"
        key = self.chain.wallets[command.sender.signer]
        return self.chain.send(instructions_of(self.chain.run, command, state=self.state), key, units=MOST_UNITS)
