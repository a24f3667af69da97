"""The coordinator program in an SVM in this process, commanded with the values that `psyche_core.coordinator.apply` takes.

The caller sets the clock. The chain forgets transactions, so the same one may be sent twice. Everybody may join, by an
authorization that is written into its account without a transaction. Whether a command is carried out is decided by the program.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from solders.account import Account
from solders.compute_budget import set_compute_unit_limit
from solders.hash import Hash
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.litesvm import FeatureSet, LiteSVM
from solders.pubkey import Pubkey
from solders.transaction import Transaction
from solders.transaction_metadata import FailedTransactionMetadata, TransactionMetadata

from plugins.backend_solana.tests.svm.refusals import coordinator_refusal
from psyche_backend_solana import programs
from psyche_backend_solana.layouts import coordinator as layout
from psyche_backend_solana.layouts.beacon import Beacon
from psyche_backend_solana.layouts.coordinator_accounts import ACCOUNT_BYTES, BEACON_OFFSET, HEADER_BYTES, CoordinatorAccount
from psyche_core.config.run_config import CoordinatorConfig, ModelConfig
from psyche_core.coordinator import canonical_image as image
from psyche_core.coordinator import commands
from psyche_core.coordinator.commands import Command
from psyche_core.coordinator.round.assignment import shares
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.types import NodeIdentity
from psyche_core.wire.messages import commitment_hash, sign_join
from psyche_core.wire.signing import SecretKey

PROGRAM_FILE = Path(programs.__file__).parent / "coordinator.so"
AUTHORIZER_ID = Pubkey.from_string("5CYB3VexRVB2HAJzmy5gF8fG61VPAZv6dZDHrFndTJVk")
MOST_UNITS = 1_400_000
"""Most compute units a transaction may ask for."""

Hashes = Sequence[tuple[int, bytes]]
"""Slots with their hashes, newest first."""

NOT_SIGNED = "NotSigned"
"""The Ed25519 program refused a signature, before the coordinator was asked anything."""

MEMORY_BYTES = 752
"""Bytes of the header, those before the beacon, in which the program keeps what it derived."""

REMEMBERED_SLOTS = 512
"""Entries of the sysvar with the hashes of slots."""

NO_PROOF = bytes(64)
"""A proof that is sent without the instruction that would verify it."""

_RICH = 10**12


@cache
def wallet(number: int) -> Keypair:
    """The wallet of the n-th member."""
    return Keypair.from_seed(hashlib.sha256(f"wallet {number}".encode()).digest())


@cache
def transport_key(number: int, generation: int = 0) -> SecretKey:
    """The transport key of the n-th member; another for each generation."""
    return SecretKey(hashlib.sha256(f"transport {number} {generation}".encode()).digest())


@cache
def member(number: int, generation: int = 0) -> NodeIdentity:
    """The identity of the n-th member."""
    return NodeIdentity(signer=bytes(wallet(number).pubkey()), p2p=transport_key(number, generation).public)


def proved(number: int, run: bytes, generation: int = 0) -> commands.Join:
    """The join of the n-th member. run: the instance, which is the account's address."""
    sender = member(number, generation)
    return commands.Join(sender, sign_join(transport_key(number, generation), run, sender.signer))


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a transaction. refusal: its name, None when it was carried out. units: compute units used."""

    refusal: str | None
    units: int
    logs: tuple[str, ...]


class CoordinatorSvm:
    """One run on a chain of its own.

    members: how many wallets there are. program: the shared object. features: of the chain, None for LiteSVM's own choice.
    """

    def __init__(
        self,
        run_id: str = "test-run",
        *,
        members: int = 16,
        program: Path = PROGRAM_FILE,
        features: FeatureSet | None = None,
    ) -> None:
        svm = LiteSVM() if features is None else LiteSVM().with_feature_set(features).with_builtins()
        self.svm = svm.with_sigverify(False).with_blockhash_check(False).with_transaction_history(0)
        self.svm.add_program(layout.PROGRAM_ID, program.read_bytes())
        self.run_id = run_id
        self.owner = Keypair.from_seed(hashlib.sha256(b"owner").digest())
        self.wallets = {bytes(wallet(number).pubkey()): wallet(number) for number in range(members)}
        for key in (self.owner, *self.wallets.values()):
            self.svm.airdrop(key.pubkey(), _RICH)
        self.account_key = Keypair.from_seed(hashlib.sha256(b"account").digest())
        account = self.account_key.pubkey()
        self.run = layout.Run(layout.instance_address(run_id)[0], account)
        self.authorization = Pubkey(hashlib.sha256(b"authorization").digest())
        self.put(self.authorization, open_authorization(self.owner.pubkey()), owner=AUTHORIZER_ID)
        self.put(account, bytes(ACCOUNT_BYTES))
        made = self.send([self.init()], self.owner, self.account_key)
        if made.refusal is not None:
            message = f"the run could not be made: {made.refusal} {made.logs}"
            raise RuntimeError(message)
        self._fresh = self.data()

    def init(self) -> Instruction:
        """The instruction that makes the run."""
        owner = self.owner.pubkey()
        return layout.init(
            self.run, payer=owner, run_id=self.run_id, main_authority=owner, join_authority=owner, client_version="1"
        )

    def put(self, address: Pubkey, data: bytes, *, owner: Pubkey = layout.PROGRAM_ID) -> None:
        """Write an account as no transaction could."""
        lamports = self.svm.minimum_balance_for_rent_exemption(len(data))
        self.svm.set_account(address, Account(lamports, data, owner))

    def data(self) -> bytes:
        """What the run's account holds."""
        return self.data_of(self.run.account)

    def data_of(self, address: Pubkey) -> bytes:
        """What an account holds; nothing where there is none."""
        found = self.svm.get_account(address)
        return b"" if found is None else bytes(found.data)

    def begin(
        self, state: CoordinatorState | None = None, *, memory: bytes = bytes(MEMORY_BYTES), beacon: Beacon | None = None
    ) -> None:
        """Put the run's account back to how `init` made it, with the image of a state in it when one is given.

        memory: what the program derived before, see `memory`. beacon: None for that of a run without a seed.
        """
        content = bytes(image.SIZE) if state is None else image.encode(state)
        staging = bytes(ACCOUNT_BYTES - HEADER_BYTES - image.SIZE)
        head = self._fresh[: BEACON_OFFSET - MEMORY_BYTES] + memory + (beacon or Beacon()).pack()
        self.put(self.run.account, head + content + staging)

    @property
    def instance(self) -> bytes:
        """What every signature of the run covers: the account's address."""
        return bytes(self.run.account)

    def fresh(self, config: CoordinatorConfig, model: ModelConfig) -> CoordinatorState:
        """The run before its first configuration."""
        return CoordinatorState(run_id=self.run_id, instance=self.instance, config=config, model=model)

    @property
    def memory(self) -> bytes:
        """What the program derived from the image and keeps, which is elections."""
        return self.data()[BEACON_OFFSET - MEMORY_BYTES : BEACON_OFFSET]

    @property
    def image(self) -> bytes:
        """The canonical image in the run's account."""
        return self.data()[HEADER_BYTES : HEADER_BYTES + image.SIZE]

    @property
    def account(self) -> CoordinatorAccount:
        """The run's account, read."""
        return CoordinatorAccount.parse(self.data())

    @property
    def beacon(self) -> Beacon:
        """What the next seed is made of."""
        return Beacon.parse(self.data()[BEACON_OFFSET:HEADER_BYTES])

    def at(self, now: int, slot: int, hashes: Hashes | None = None) -> int:
        """Put the clock there; the seed that a round would get.

        hashes: of earlier slots, newest first; None for `slot_hashes`.
        """
        clock = self.svm.get_clock()
        clock.unix_timestamp, clock.slot = now, slot
        self.svm.set_clock(clock)
        known = slot_hashes(slot) if hashes is None else hashes
        self.svm.set_slot_hashes([(before, Hash(content)) for before, content in known])
        return self.beacon.looked(slot, known).seed(now, slot)

    def send(self, instructions: Sequence[Instruction], *signers: Keypair, units: int | None = None) -> Answer:
        """Send one transaction, paid by the first signer. units: the limit to ask for, None for the chain's own."""
        budget = [] if units is None else [set_compute_unit_limit(units)]
        transaction = Transaction.new_signed_with_payer(
            [*budget, *instructions], signers[0].pubkey(), list(signers), Hash.default()
        )
        result = self.hand_in(transaction)
        if isinstance(result, FailedTransactionMetadata):
            meta = result.meta()
            return Answer(_refusal(result.err(), [*budget, *instructions]), meta.compute_units_consumed(), tuple(meta.logs()))

        return Answer(None, result.compute_units_consumed(), tuple(result.logs()))

    def hand_in(self, transaction: Transaction) -> TransactionMetadata | FailedTransactionMetadata:
        """Have the SVM execute a signed transaction. Whoever measures transactions overrides this."""
        return self.svm.send_transaction(transaction)

    def do(self, command: Command, state: CoordinatorState, *, units: int | None = MOST_UNITS) -> Answer:
        """Send a command. state: the one it is about, for what a proof of equivocation has to name."""
        owner = self.owner.pubkey()
        match command:
            case commands.Pause():
                return self.send([layout.set_paused(self.run, authority=owner, paused=True)], self.owner, units=units)
            case commands.Resume(from_checkpoint):
                resume = layout.set_paused(self.run, authority=owner, paused=False, from_checkpoint=from_checkpoint)
                return self.send([resume], self.owner, units=units)
            case commands.UpdateConfig():
                return self._update(command, units=units)
            case commands.SetFutureEpochRates():
                rates = layout.set_future_epoch_rates(
                    self.run,
                    authority=owner,
                    earning_total_shared=command.earning_total_shared,
                    slashing_per_client=command.slashing_per_client,
                )
                return self.send([rates], self.owner, units=units)
            case commands.Settle():
                freed = layout.settle(self.run, authority=owner, signer=command.signer)
                return self.send([freed], self.owner, units=units)
            case commands.Tick():
                return self.send([layout.tick(self.run, user=owner)], self.owner, units=units)
        key = self.wallets[command.sender.signer]
        return self.send(self._members(command, state, key.pubkey()), key, units=units)

    def _update(self, command: commands.UpdateConfig, *, units: int | None) -> Answer:
        wanted = layout.Update(config=command.config, model=command.model, progress=command.progress)
        answer = Answer(None, 0, ())
        for piece in layout.staged_update(self.run, wanted, authority=self.owner.pubkey()):
            answer = self.send([piece], self.owner, units=units)
        return answer

    def _members(self, command: Command, state: CoordinatorState, user: Pubkey) -> list[Instruction]:
        match command:
            case commands.Join():
                return self._join(command, user)
            case commands.Withdraw():
                return [layout.withdraw(self.run, user=user)]
            case commands.WarmupWitness():
                ready = layout.warmup_witness(
                    self.run, user=user, epoch=command.epoch, index=command.index, model_digest=command.model_digest
                )
                return [ready]
            case commands.Witness():
                return [layout.witness(self.run, command.statement, user=user)]
            case commands.VerifierCommit():
                return [layout.verifier_commit(self.run, command, user=user)]
            case commands.EpochDigest(_, epoch, index, digest):
                return [layout.epoch_digest(self.run, user=user, epoch=epoch, index=index, digest=digest)]
            case commands.HealthCheck():
                return [layout.health_check(self.run, user=user, slots=command.slots)]
            case commands.Checkpoint():
                return [layout.checkpoint(self.run, command.location, user=user)]
            case commands.Equivocation():
                return [*self._verified(command, state), layout.equivocation(self.run, command, user=user)]
        message = f"expected a command, got {command!r}"
        raise TypeError(message)

    def _join(self, command: commands.Join, user: Pubkey) -> list[Instruction]:
        """The join behind the check of its proof; NO_PROOF comes without a check."""
        p2p, proof = command.sender.p2p, command.proof
        join = layout.join(self.run, user=user, authorization=self.authorization, p2p=p2p, proof=proof)
        return [join] if proof == NO_PROOF else [layout.join_verified(self.run, user=user, p2p=p2p, proof=proof), join]

    def _verified(self, command: commands.Equivocation, state: CoordinatorState) -> list[Instruction]:
        """The instruction in front of a proof; none where the state has no commitment to verify."""
        signed = commitments(state, command)
        if signed is None:
            return []
        p2p = state.epoch.clients[command.index].id.p2p
        return [layout.commitments_verified(self.run, p2p=p2p, signed=signed)]


def commitments(state: CoordinatorState, command: commands.Equivocation) -> tuple[tuple[bytes, bytes], ...] | None:
    """Commitment and signature of both results of a proof, None when the state knows no such share."""
    judged = state.round_at(command.height)
    if judged is None or command.index >= len(state.epoch.clients):
        return None
    share = shares(state, judged).get(command.index)
    if share is None:
        return None
    return tuple(
        (
            commitment_hash(
                state.instance,
                epoch=command.epoch,
                step=judged.step,
                seed=judged.seed,
                share=share,
                trainer=state.epoch.clients[command.index].id.signer,
                payload_hash=result.payload_hash,
            ),
            result.signature,
        )
        for result in (command.first, command.second)
    )


def nothing_due(command: Command, before: CoordinatorState, after: CoordinatorState) -> str | None:
    """The refusal of a tick that changes nothing, which a chain does not carry out for a fee; `apply` takes it."""
    return "NothingDue" if isinstance(command, commands.Tick) and before == after else None


@cache
def slot_hash(slot: int) -> bytes | None:
    """The hash of a slot, None for one that was skipped: every fifth or so."""
    digest = hashlib.sha256(f"slot {slot}".encode()).digest()
    return digest if digest[0] % 5 else None


def slot_hashes(slot: int, remembered: int = REMEMBERED_SLOTS) -> Hashes:
    """What the chain remembers in this slot, newest first: so many slots that were not skipped, if there were as many."""
    found: list[tuple[int, bytes]] = []
    before = slot
    while before > 0 and len(found) < remembered:
        before -= 1
        content = slot_hash(before)
        if content is not None:
            found.append((before, content))
    return found


def open_authorization(
    grantor: Pubkey, *, scope: bytes = layout.JOIN_SCOPE, active: bool = True, grantee: bytes = bytes(32)
) -> bytes:
    """An authorizer's account for a grantee, zero for everybody."""
    head = b"PsycheAu" + (1).to_bytes(4, "little") + bytes([255, active, len(scope), 0])
    return head + bytes(grantor) + grantee + scope.ljust(32, b"\0") + bytes(80)


def _refusal(error: object, instructions: Sequence[Instruction]) -> str:
    """The name of what a transaction failed with."""
    code = getattr(getattr(error, "err", None), "code", None)
    index = getattr(error, "index", None)
    if index is not None and instructions[index].program_id == layout.ED25519_PROGRAM:
        return NOT_SIGNED
    return str(error) if code is None else coordinator_refusal(code)
