"""A chain whose programs are psyche_core's own rules, behind real JSON-RPC and websocket sockets.

For tests of the client's side: accounts, signatures, blockhashes and refusals are as on a chain, the coordinator is
`psyche_core.coordinator.apply`. No virtual machine, so a transaction costs a millisecond and time moves only when a test says so.
The programs themselves are tested elsewhere, on LiteSVM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from model_chain_rpc import RpcProvider

import hashlib
import struct
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
import anyio.abc
from solders.pubkey import Pubkey
from solders.transaction import VersionedTransaction

from plugins.backend_solana.tests.svm.refusals import COORDINATOR_CODES
from psyche_backend_solana.following.chain_clock import CLOCK_SYSVAR
from psyche_backend_solana.layouts import authorizer
from psyche_backend_solana.layouts.beacon import Beacon
from psyche_backend_solana.layouts.coordinator import JOIN_SCOPE, Number, Part
from psyche_backend_solana.layouts.coordinator_accounts import (
    ACCOUNT_BYTES,
    ACCOUNT_MAGIC,
    ACCOUNT_VERSION,
    BEACON_OFFSET,
    HEADER_BYTES,
    INSTANCE_MAGIC,
    CoordinatorAccount,
    RunInstance,
)
from psyche_backend_solana.programs.addresses import AUTHORIZER, COORDINATOR, SYSTEM
from psyche_core.coordinator import apply
from psyche_core.coordinator import canonical_image as image
from psyche_core.coordinator.canonical_image.layout import CHECKPOINT, CONFIG, MODEL, STATEMENT
from psyche_core.coordinator.commands import (
    Checkpoint,
    Command,
    EpochDigest,
    EpochStarted,
    Event,
    HealthCheck,
    Join,
    Pause,
    Resume,
    RoundStarted,
    SetFutureEpochRates,
    Tick,
    UpdateConfig,
    VerifierCommit,
    WarmupWitness,
    Withdraw,
    Witness,
)
from psyche_core.coordinator.state import CoordinatorState, Progress
from psyche_core.errors import CoordinatorError
from psyche_core.types import NodeIdentity

COMPUTE_BUDGET = Pubkey.from_string("ComputeBudget111111111111111111111111111111")
UNITS = 40_000
FEE = 5000
HASH_SLOTS = 150
SLOT_HASHES = 512


@dataclass(frozen=True)
class Kept:
    lamports: int
    owner: Pubkey
    data: bytes = b""


class Failed(Exception):
    def __init__(self, error: Any) -> None:
        super().__init__(str(error))
        self.error = error


def custom(name: str) -> Failed:
    return Failed({"Custom": COORDINATOR_CODES[name]})


@dataclass
class Landed:
    signature: str
    slot: int
    error: Any
    raw: bytes
    keys: list[Pubkey]


@dataclass
class ModelChain:
    """The ledger. unix: its clock, which only tests move."""

    unix: int
    slot: int = 1
    accounts: dict[Pubkey, Kept] = field(default_factory=dict)
    landed: list[Landed] = field(default_factory=list)
    refused: int = 0
    swallow: int = 0
    """So many transactions are accepted and never processed."""
    units: int = UNITS
    changed: anyio.Event = field(default_factory=anyio.Event)
    providers: list[RpcProvider] = field(default_factory=list)

    def blockhash(self, slot: int | None = None) -> str:
        return str(Pubkey(hashlib.sha256(f"block {(self.slot if slot is None else slot) // 4}".encode()).digest()))

    def next_slot(self, slots: int = 1) -> None:
        self.slot += slots

    def fund(self, address: Pubkey, lamports: int = 10**12) -> None:
        self.accounts[address] = Kept(lamports, SYSTEM)

    def known_blockhashes(self) -> set[str]:
        return {self.blockhash(slot) for slot in range(max(0, self.slot - HASH_SLOTS), self.slot + 1)}

    # ------------------------------------------------------------ transactions

    def send(self, raw: bytes) -> str:
        transaction = VersionedTransaction.from_bytes(raw)
        transaction.verify_and_hash_message()
        signature = str(transaction.signatures[0])
        if self.swallow:
            self.swallow -= 1
            return signature
        if any(record.signature == signature for record in self.landed):
            return signature
        if str(transaction.message.recent_blockhash) not in self.known_blockhashes():
            return signature

        self.slot += 1
        error = self._run(transaction, keep=True)
        self.landed.append(Landed(signature, self.slot, error, raw, list(transaction.message.account_keys)))
        self.changed.set()
        self.changed = anyio.Event()
        return signature

    def simulate(self, raw: bytes) -> Any:
        return self._run(VersionedTransaction.from_bytes(raw), keep=False)

    def _run(self, transaction: VersionedTransaction, *, keep: bool) -> Any:
        message = transaction.message
        keys = list(message.account_keys)
        before = dict(self.accounts)
        payer = self.accounts.get(keys[0])
        if payer is None or payer.lamports < FEE:
            return "AccountNotFound"

        paid = replace(payer, lamports=payer.lamports - FEE)
        self.accounts[keys[0]] = paid
        signers = set(keys[: message.header.num_required_signatures])
        for place, instruction in enumerate(message.instructions):
            program_id = keys[instruction.program_id_index]
            named = [keys[at] for at in bytes(instruction.accounts)]
            try:
                self._execute(program_id, bytes(instruction.data), named, signers)
            except Failed as failed:
                self.accounts = {**before, keys[0]: paid} if keep else before
                return {"InstructionError": [place, failed.error]}
        if not keep:
            self.accounts = before
        return None

    def _execute(self, program_id: Pubkey, data: bytes, named: list[Pubkey], signers: set[Pubkey]) -> None:
        if program_id == COMPUTE_BUDGET or str(program_id).startswith("Ed25519"):
            return
        if program_id == SYSTEM:
            self._system(data, named)
        elif program_id == AUTHORIZER:
            self._authorize(data, named, signers)
        elif program_id == COORDINATOR:
            self._coordinate(data, named, signers)
        else:
            raise Failed("InvalidProgramId")

    def _system(self, data: bytes, named: list[Pubkey]) -> None:
        assert data[:4] == bytes(4), "only create_account is needed"
        lamports, size = struct.unpack_from("<QQ", data, 4)
        if named[1] in self.accounts:
            raise Failed({"Custom": 0})
        self._pay(named[0], lamports)
        self.accounts[named[1]] = Kept(lamports, Pubkey(data[20:52]), bytes(size))

    def _pay(self, payer: Pubkey, lamports: int) -> None:
        kept = self.accounts[payer]
        if kept.lamports < lamports:
            raise Failed({"Custom": 1})
        self.accounts[payer] = replace(kept, lamports=kept.lamports - lamports)

    def _authorize(self, data: bytes, named: list[Pubkey], signers: set[Pubkey]) -> None:
        body = data[1:]
        match data[0]:
            case 0:
                payer, grantor, at = named[:3]
                if at in self.accounts:
                    raise custom("AlreadyExists")
                scope = body[33 : 33 + body[32]]
                self._pay(payer, 10**6)
                content = b"PsycheAu" + struct.pack("<IBBBB", 1, 255, 0, len(scope), 0) + bytes(grantor) + body[:32]
                self.accounts[at] = Kept(10**6, AUTHORIZER, (content + scope).ljust(192, b"\0"))
            case 1:
                kept = self.accounts[named[1]]
                if kept.data[16:48] != bytes(named[0]) or named[0] not in signers:
                    raise custom("NotAuthority")
                self.accounts[named[1]] = replace(kept, data=kept.data[:13] + body[:1] + kept.data[14:])
            case 2:
                kept = self.accounts[named[2]]
                if kept.data[48:80] != bytes(named[1]):
                    raise custom("NotAuthority")
                old = b"" if body[0] else kept.data[192:]
                new = b"".join(
                    key for key in (body[2 + 32 * at : 34 + 32 * at] for at in range(body[1])) if key not in _keys(old)
                )
                count = struct.pack("<I", len(old + new) // 32)
                self.accounts[named[2]] = replace(kept, data=kept.data[:112] + count + kept.data[116:192] + old + new)
            case 3:
                if self.accounts[named[2]].data[13]:
                    raise Failed({"Custom": 100})
                del self.accounts[named[2]]

    # ------------------------------------------------------------ the coordinator program

    def _coordinate(self, data: bytes, named: list[Pubkey], signers: set[Pubkey]) -> None:
        number, body = Number(data[0]), data[1:]
        if number is Number.init:
            self._init(body, named)
        elif number is Number.free:
            account = self.account(named[3])
            if account.state is not None and not account.state.run_state.halted:
                raise custom("UpdateConfigNotHalted")
            del self.accounts[named[2]], self.accounts[named[3]]
        elif number in (Number.stage, Number.update, Number.set_future_epoch_rates, Number.set_paused):
            instance = RunInstance.parse(self.accounts[named[1]].data)
            if instance.main_authority != named[0] or named[0] not in signers:
                raise custom("NotAuthority")
            self._own(number, body, instance)
        elif number is Number.join:
            instance = RunInstance.parse(self.accounts[named[2]].data)
            self._check_authorization(named[1], instance, named[0])
            self._apply(named[3], Join(NodeIdentity(bytes(named[0]), body[:32]), body[32:96]))
        else:
            self._apply(named[1], self._members_command(number, body, named[0], self.account(named[1])))

    def _init(self, body: bytes, named: list[Pubkey]) -> None:
        payer, instance, account = named[:3]
        if instance in self.accounts:
            raise custom("AlreadyExists")
        kept = self.accounts[account]
        if kept.owner != COORDINATOR or len(kept.data) != ACCOUNT_BYTES:
            raise custom("WrongSize")
        run_id = body[1 : 1 + body[0]]
        main, join, version = body[33:65], body[65:97], body[97:193]
        content = INSTANCE_MAGIC + struct.pack("<IB3x", 1, 255) + main + join + bytes(account) + run_id.ljust(32, b"\0")
        self._pay(payer, 10**6)
        self.accounts[instance] = Kept(10**6, COORDINATOR, content.ljust(256, b"\0"))
        header = ACCOUNT_MAGIC + struct.pack("<IIQ", ACCOUNT_VERSION, len(run_id), 0) + bytes(instance) + version
        self.accounts[account] = replace(kept, data=header.ljust(ACCOUNT_BYTES, b"\0"))

    def _own(self, number: Number, body: bytes, instance: RunInstance) -> None:
        at = instance.account
        data = self.accounts[at].data
        if number is Number.stage:
            start = HEADER_BYTES + image.SIZE + int.from_bytes(body[:2], "little")
            self._store(at, data[:start] + body[2:] + data[start + len(body) - 2 :])
        elif number is Number.set_paused:
            self._apply(at, Pause() if body[0] == 1 else Resume(from_checkpoint=body[0] == 2))
        elif number is Number.set_future_epoch_rates:
            mask, earning, slashing = struct.unpack("<BQQ", body)
            self._apply(at, SetFutureEpochRates(earning if mask & 1 else None, slashing if mask & 2 else None))
        else:
            staged = data[HEADER_BYTES + image.SIZE :]
            self._update(at, Part(body[0]), staged if body[0] & Part.staged else body[1:], instance)

    def _update(self, at: Pubkey, mask: Part, rest: bytes, instance: RunInstance) -> None:
        config = model = progress = None
        header = self.accounts[at].data[:HEADER_BYTES]
        if Part.config in mask:
            config, rest = CONFIG.read(rest, 0), rest[CONFIG.size :]
        if Part.model in mask:
            tables = int.from_bytes(rest[138:140], "little")
            start = next(part.offset for part in MODEL.parts if part.name == "tables")
            packed = rest[:138].ljust(start, b"\0") + struct.pack("<II", tables, 0) + rest[140 : 140 + tables]
            model, rest = MODEL.read(packed.ljust(MODEL.size, b"\0"), 0), rest[140 + tables :]
        if Part.progress in mask:
            step, data_index, epoch = struct.unpack_from("<QQI", rest)
            progress, rest = Progress(epoch, step, data_index), rest[20:]
        if Part.metadata in mask:
            header, rest = header[:152] + rest[:360] + header[512:], rest[360:]
        if Part.client_version in mask:
            header, rest = header[:56] + rest[:96] + header[152:], rest[96:]

        state = self.account(at).state
        if state is None:
            if config is None or model is None:
                raise custom("ConfigSanityCheckFailed")
            state = CoordinatorState(instance.run_id, config, model, bytes(at))
        if config or model or progress:
            state, _ = self._after(state, UpdateConfig(config, model, progress))
        self._store(at, header + image.encode(state) + self.accounts[at].data[HEADER_BYTES + image.SIZE :])

    def _members_command(self, number: Number, body: bytes, user: Pubkey, account: CoordinatorAccount) -> Command:
        state = account.state
        assert state is not None
        known = (*state.pending, *(client.id for client in state.epoch.clients))
        signer = bytes(user)
        sender = next((member for member in known if member.signer == signer), NodeIdentity(signer, bytes(32)))
        match number:
            case Number.withdraw:
                return Withdraw(sender)
            case Number.tick:
                return Tick()
            case Number.witness:
                said = STATEMENT.part("words").offset
                count, words = body[said], body[said + 1 : said + 1 + body[said]]
                padded = body[:said] + count.to_bytes(4, "little") + bytes(4) + words
                return Witness(sender, STATEMENT.read(padded.ljust(STATEMENT.size, b"\0"), 0))
            case Number.verifier_commit:
                epoch, seed, height, trainer = struct.unpack_from("<IQIH", body)
                return VerifierCommit(sender, epoch, seed, height, trainer, body[19:51] if body[18] else None)
            case Number.warmup_witness:
                epoch, index = struct.unpack_from("<IH", body)
                return WarmupWitness(sender, epoch, index, body[6:38])
            case Number.health_check:
                return HealthCheck(sender, struct.unpack(f"<{int.from_bytes(body[:2], 'little')}H", body[2:]))
            case Number.epoch_digest:
                epoch, index = struct.unpack_from("<IH", body)
                return EpochDigest(sender, epoch, index, body[6:38])
            case Number.checkpoint:
                location = CHECKPOINT.read(body.ljust(CHECKPOINT.size, b"\0"), 0) if body[0] else None
                return Checkpoint(sender, location)
            case _:
                raise Failed("InvalidInstructionData")

    def _check_authorization(self, at: Pubkey, instance: RunInstance, user: Pubkey) -> None:
        kept = self.accounts.get(at)
        if kept is None or kept.owner != AUTHORIZER:
            raise custom("WrongOwner")
        found = authorizer.parse(kept)  # type: ignore[arg-type]  # it has what is looked at
        if found.grantor != instance.join_authority or found.scope.encode() != JOIN_SCOPE or not found.allows(user):
            raise custom("NotAuthority")

    def account(self, at: Pubkey) -> CoordinatorAccount:
        return CoordinatorAccount.parse(self.accounts[at].data)

    def _apply(self, at: Pubkey, command: Command) -> None:
        account = self.account(at)
        state = account.state
        if state is None:
            raise custom("Halted")
        data = self.accounts[at].data
        beacon = account.beacon.looked(self.slot, self.slot_hashes()) if account.beacon.pending else account.beacon
        after, events = self._after(state, command, seed=beacon.seed(self.unix, self.slot))
        if isinstance(command, Tick) and after == state and beacon == account.beacon:
            raise custom("NothingDue")
        if any(isinstance(event, EpochStarted | RoundStarted) for event in events):
            beacon = Beacon(self.slot)
        head = data[:BEACON_OFFSET] + beacon.pack()
        self._store(at, head + image.encode(after) + data[HEADER_BYTES + image.SIZE :])

    def slot_hashes(self) -> list[tuple[int, bytes]]:
        slots = range(self.slot - 1, max(self.slot - 1 - SLOT_HASHES, -1), -1)
        return [(slot, hashlib.sha256(f"slot {slot}".encode()).digest()) for slot in slots]

    def _after(self, state: CoordinatorState, command: Command, *, seed: int = 0) -> tuple[CoordinatorState, tuple[Event, ...]]:
        try:
            return apply(state, command, self.unix, seed)
        except CoordinatorError as error:
            raise custom(error.name) from error

    def _store(self, at: Pubkey, data: bytes) -> None:
        nonce = int.from_bytes(data[16:24], "little") + 1
        self.accounts[at] = replace(self.accounts[at], data=data[:16] + struct.pack("<Q", nonce) + data[24:])

    # ------------------------------------------------------------ reading

    def read(self, at: Pubkey) -> Kept | None:
        if at == CLOCK_SYSVAR:
            return Kept(1, SYSTEM, struct.pack("<QqQQq", self.slot, 0, 0, 0, self.unix))
        return self.accounts.get(at)


def _keys(content: bytes) -> list[bytes]:
    return [content[at : at + 32] for at in range(0, len(content), 32)]
