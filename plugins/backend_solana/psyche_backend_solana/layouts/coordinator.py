"""The coordinator program's instructions, each as an `Instruction` for a transaction.

There is one function for each instruction of docs/reference/solana-programs.md. It takes protocol values and returns bytes. Data
that does not fit into one transaction goes through the staging area (`staged_update`). Values that do not fit their fields raise
ValueError before anything is sent. The program decides whether a command is accepted.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum, IntFlag

from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey

from psyche_backend_solana.layouts.coordinator_accounts import CLIENT_VERSION_BYTES, STAGING_BYTES, RunMetadata, packed_text
from psyche_core.config.run_config import CHECKPOINTS, Choice, CoordinatorConfig, ModelConfig
from psyche_core.config.schema import MAX_RUN_ID_BYTES
from psyche_core.coordinator.canonical_image.layout import CHECKPOINT, CONFIG, MODEL, STATEMENT
from psyche_core.coordinator.commands import Equivocation, VerifierCommit
from psyche_core.coordinator.state import Progress
from psyche_core.types import WitnessStatement
from psyche_core.wire.messages import commitment_message, join_message, sign_join
from psyche_core.wire.signing import SecretKey

PROGRAM_ID = Pubkey.from_string("4t6nXm8shbyAsZTLvdCPi11MxKDXktwSoxcTz38NcqAd")
"""The coordinator's address on local chains."""

JOIN_SCOPE = b"CoordinatorJoinRun"
"""Scope of the authorizations that `join` requires."""

SYSTEM_PROGRAM = Pubkey.default()
ED25519_PROGRAM = Pubkey.from_string("Ed25519SigVerify111111111111111111111111111")
INSTRUCTIONS_SYSVAR = Pubkey.from_string("Sysvar1nstructions1111111111111111111111111")

MAX_ADDRESS_BYTES = 512
MAX_WITNESS_METADATA_BYTES = 256
STAGE_CHUNK_BYTES = 800
"""Bytes of one `stage`. They fit into a transaction together with the accounts of a treasurer's run and a fee instruction."""

_LOCATION_BYTES = 130
"""kind, first, present, second of a checkpoint, as in the image, in which only padding follows."""
_OFFSETS = struct.Struct("<HHHHHHH")
_SAME_INSTRUCTION = 0xFFFF


class Number(IntEnum):
    """The instructions' first bytes."""

    init = 0
    free = 1
    stage = 2
    update = 3
    set_future_epoch_rates = 4
    set_paused = 5
    join = 6
    withdraw = 7
    tick = 8
    witness = 9
    warmup_witness = 10
    health_check = 11
    checkpoint = 12
    equivocation = 13
    expel = 15
    back = 16
    settle = 17
    epoch_digest = 18
    verifier_commit = 19


class Part(IntFlag):
    """The parts of an `update`."""

    config = 1
    model = 2
    progress = 4
    metadata = 8
    client_version = 16
    staged = 128


@dataclass(frozen=True, slots=True)
class Run:
    """A run's addresses: its instance (see `instance_address`), the account of its state, and the coordinator program."""

    instance: Pubkey
    account: Pubkey
    program: Pubkey = PROGRAM_ID


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """The fields that the owner replaces; None keeps the old value."""

    config: CoordinatorConfig | None = None
    model: ModelConfig | None = None
    progress: Progress | None = None
    metadata: RunMetadata | None = None
    client_version: str | None = None

    def pack(self) -> tuple[Part, bytes]:
        """The mask and the packed parts. Raises ValueError for a value that does not fit."""
        parts: dict[Part, bytes] = {}
        if self.config is not None:
            parts[Part.config] = CONFIG.write(self.config)
        if self.model is not None:
            parts[Part.model] = _packed_model(self.model)
        if self.progress is not None:
            parts[Part.progress] = _packed(
                "<QQI", self.progress.step, self.progress.data_index, self.progress.epoch, what="step, data_index and epoch"
            )
        if self.metadata is not None:
            parts[Part.metadata] = self.metadata.pack()
        if self.client_version is not None:
            parts[Part.client_version] = packed_text(self.client_version, CLIENT_VERSION_BYTES, "client_version")
        mask = Part(0)
        for part in parts:
            mask |= part
        return mask, b"".join(parts.values())


def instance_address(run_id: str, *, program: Pubkey = PROGRAM_ID) -> tuple[Pubkey, int]:
    """The derived address of a run's instance, and its bump. Raises ValueError if the run id does not have 1 to 32 bytes."""
    return Pubkey.find_program_address([b"coordinator", _run_id(run_id)], program)


def init(
    run: Run, *, payer: Pubkey, run_id: str, main_authority: Pubkey, join_authority: Pubkey, client_version: str = ""
) -> Instruction:
    """Create a run in a zeroed account that the program owns. Signers: payer, who pays the instance's rent, and the account."""
    name = _run_id(run_id)
    keys = bytes(main_authority) + bytes(join_authority)
    version = packed_text(client_version, CLIENT_VERSION_BYTES, "client_version")
    data = bytes([len(name)]) + name.ljust(MAX_RUN_ID_BYTES, b"\0") + keys + version
    accounts = [_payer(payer), _written(run.instance), _payer(run.account), _read(SYSTEM_PROGRAM)]
    return _instruction(run, Number.init, data, accounts)


def free(run: Run, *, authority: Pubkey, spill: Pubkey) -> Instruction:
    """Close both accounts of a halted run, also of one with an older version. spill: receives their lamports."""
    accounts = [_signer(authority), _written(spill), _written(run.instance), _written(run.account)]
    return _instruction(run, Number.free, b"", accounts)


def stage(run: Run, *, authority: Pubkey, offset: int, content: bytes) -> Instruction:
    """Write a piece of the staging area."""
    if not 0 <= offset <= STAGING_BYTES - len(content):
        message = f"expected a piece within the {STAGING_BYTES} bytes of staging, got {len(content)} bytes at {offset}"
        raise ValueError(message)

    return _instruction(run, Number.stage, struct.pack("<H", offset) + content, _owners(run, authority))


def update(run: Run, wanted: Update, *, authority: Pubkey) -> Instruction:
    """Replace configuration in one instruction. If it does not fit into a transaction, use `staged_update`."""
    mask, parts = wanted.pack()
    return _instruction(run, Number.update, bytes([mask]) + parts, _owners(run, authority))


def staged_update(run: Run, wanted: Update, *, authority: Pubkey) -> tuple[Instruction, ...]:
    """The same for any size: pieces of at most STAGE_CHUNK_BYTES bytes, each for a separate transaction, then the update."""
    mask, parts = wanted.pack()
    if len(parts) <= STAGE_CHUNK_BYTES:
        return (update(run, wanted, authority=authority),)

    pieces = [
        stage(run, authority=authority, offset=offset, content=parts[offset : offset + STAGE_CHUNK_BYTES])
        for offset in range(0, len(parts), STAGE_CHUNK_BYTES)
    ]
    return *pieces, _instruction(run, Number.update, bytes([mask | Part.staged]), _owners(run, authority))


def set_future_epoch_rates(
    run: Run, *, authority: Pubkey, earning_total_shared: int | None = None, slashing_per_client: int | None = None
) -> Instruction:
    """Set what later epochs pay, in points; None keeps the old value."""
    rates = (earning_total_shared, slashing_per_client)
    mask = sum(1 << place for place, rate in enumerate(rates) if rate is not None)
    data = _packed("<BQQ", mask, *(rate or 0 for rate in rates), what="rates of 64 bits")
    return _instruction(run, Number.set_future_epoch_rates, data, _owners(run, authority))


def set_paused(run: Run, *, authority: Pubkey, paused: bool, from_checkpoint: bool = False) -> Instruction:
    """Pause, resume or first start a run. from_checkpoint: if the model is lost, resume with the stored checkpoint."""
    what = 1 if paused else 2 if from_checkpoint else 0
    return _instruction(run, Number.set_paused, bytes([what]), _owners(run, authority))


def proved_join(run: Run, *, user: Pubkey, authorization: Pubkey, key: SecretKey) -> tuple[Instruction, Instruction]:
    """Ask to be a member: the proof that we own the transport key, and the join, for one transaction, in this order."""
    proof = sign_join(key, bytes(run.account), bytes(user))
    verified = join_verified(run, user=user, p2p=key.public, proof=proof)
    return verified, join(run, user=user, authorization=authorization, p2p=key.public, proof=proof)


def join(run: Run, *, user: Pubkey, authorization: Pubkey, p2p: bytes, proof: bytes, address: bytes = b"") -> Instruction:
    """Ask to be a member. It must directly follow `join_verified` in the same transaction.

    p2p: the transport's public key, 32 bytes. proof: its signature, see `psyche_core.wire.messages.sign_join`. address: for the
    log, at most 512 bytes.
    """
    _expect_at_most(address, MAX_ADDRESS_BYTES, "address")
    data = _exactly(p2p, 32, "p2p key") + _exactly(proof, 64, "proof") + struct.pack("<H", len(address)) + address
    accounts = [
        _signer(user),
        _read(authorization),
        _read(run.instance),
        _written(run.account),
        _read(INSTRUCTIONS_SYSVAR),
    ]
    return _instruction(run, Number.join, data, accounts)


def join_verified(run: Run, *, user: Pubkey, p2p: bytes, proof: bytes) -> Instruction:
    """The Ed25519 program's instruction that verifies the proof of a join."""
    return signatures_verified(p2p=p2p, signed=((join_message(bytes(run.account), bytes(user)), proof),))


def withdraw(run: Run, *, user: Pubkey) -> Instruction:
    """Stop being a member."""
    return _instruction(run, Number.withdraw, b"", _members(run, user))


def tick(run: Run, *, user: Pubkey) -> Instruction:
    """Apply a tick. user: anybody."""
    return _instruction(run, Number.tick, b"", _members(run, user))


def witness(run: Run, statement: WitnessStatement, *, user: Pubkey, metadata: bytes = b"") -> Instruction:
    """An elected witness's statement. metadata: for the log, at most 256 bytes.

    It is sent as the image has it, but its words take only the bytes they have, after their number (u8).
    """
    _expect_at_most(metadata, MAX_WITNESS_METADATA_BYTES, "metadata")
    said = STATEMENT.write(statement)[: STATEMENT.part("words").offset] + bytes([len(statement.words)]) + statement.words
    return _instruction(run, Number.witness, said + metadata, _members(run, user))


def verifier_commit(run: Run, command: VerifierCommit, *, user: Pubkey) -> Instruction:
    """Commit to the gradient of a challenged share, or complain that the trainer has not given its signs."""
    place = _packed("<IQIH", command.epoch, command.seed, command.height, command.trainer, what="epoch, seed, round and trainer")
    root = b"\0" if command.commitment is None else b"\1" + _exactly(command.commitment, 32, "commitment")
    return _instruction(run, Number.verifier_commit, place + root, _members(run, user))


def warmup_witness(run: Run, *, user: Pubkey, epoch: int, index: int, model_digest: bytes) -> Instruction:
    """Report that `user` has the model and is ready. index: its own slot."""
    data = _packed("<IH", epoch, index, what="epoch and index") + _exactly(model_digest, 32, "model digest")
    return _instruction(run, Number.warmup_witness, data, _members(run, user))


def epoch_digest(run: Run, *, user: Pubkey, epoch: int, index: int, digest: bytes) -> Instruction:
    """Report the full digest of `user`'s masters at the end of an epoch. index: its own slot."""
    data = _packed("<IH", epoch, index, what="epoch and index") + _exactly(digest, 32, "digest")
    return _instruction(run, Number.epoch_digest, data, _members(run, user))


def health_check(run: Run, *, user: Pubkey, slots: tuple[int, ...]) -> Instruction:
    """Report slots whose work a quorum did not receive."""
    data = _packed(f"<H{len(slots)}H", len(slots), *slots, what="slots")
    return _instruction(run, Number.health_check, data, _members(run, user))


def checkpoint(run: Run, location: object, *, user: Pubkey) -> Instruction:
    """Report where the model is stored; None if this checkpointer cannot store it.

    location: name and settings as in the run configuration. Raises ValueError for a location that the image cannot represent.
    """
    data = bytes(_LOCATION_BYTES) if location is None else _packed_location(location)
    return _instruction(run, Number.checkpoint, data, _members(run, user))


def _packed_location(location: object) -> bytes:
    choice = Choice.parse(location)
    table = CHECKPOINTS.get(choice.name)
    if table is None:
        message = f"expected a location where a model is stored, one of {', '.join(CHECKPOINTS)}, got {choice.name}"
        raise ValueError(message)

    settings = table.model_validate(choice.settings or {}).model_dump(exclude_none=True)
    return CHECKPOINT.write(Choice(choice.name, settings))[:_LOCATION_BYTES]


def equivocation(run: Run, evidence: Equivocation, *, user: Pubkey) -> Instruction:
    """Prove that a slot signed two results. It must directly follow `commitments_verified` in the same transaction."""
    data = _packed("<IIH", evidence.epoch, evidence.height, evidence.index, what="epoch, height and index")
    for result in (evidence.first, evidence.second):
        data += _exactly(result.payload_hash, 32, "payload hash") + _exactly(result.signature, 64, "signature")
    return _instruction(run, Number.equivocation, data, [*_members(run, user), _read(INSTRUCTIONS_SYSVAR)])


def commitments_verified(run: Run, *, p2p: bytes, signed: tuple[tuple[bytes, bytes], ...]) -> Instruction:
    """The Ed25519 program's instruction that verifies signatures of commitments by one key. signed: commitment, signature."""
    messages = tuple(
        (commitment_message(bytes(run.account), _exactly(commitment, 32, "commitment")), signature)
        for commitment, signature in signed
    )
    return signatures_verified(p2p=p2p, signed=messages)


def signatures_verified(*, p2p: bytes, signed: tuple[tuple[bytes, bytes], ...]) -> Instruction:
    """The Ed25519 program's instruction that verifies signatures by one key. signed: message, signature."""
    heads, body = b"", b""
    start = 2 + _OFFSETS.size * len(signed)
    body += _exactly(p2p, 32, "p2p key")
    for message, signature in signed:
        at = start + len(body)
        body += _exactly(signature, 64, "signature") + message
        here = _SAME_INSTRUCTION
        heads += _OFFSETS.pack(at, here, start, here, at + 64, len(message), here)
    return Instruction(ED25519_PROGRAM, bytes([len(signed), 0]) + heads + body, [])


def expel(run: Run, *, authority: Pubkey, user: Pubkey) -> Instruction:
    """Remove a member, as if it had withdrawn. authority: the run's join authority or its owner."""
    return _instruction(run, Number.expel, bytes(user), _owners(run, authority))


def back(run: Run, *, authority: Pubkey, units: int) -> Instruction:
    """Set the backing of the points that later epochs promise: no epoch promises more. authority: the run's owner."""
    return _instruction(run, Number.back, _packed("<Q", units, what="units of 64 bits"), _owners(run, authority))


def settle(run: Run, *, authority: Pubkey, signer: bytes) -> Instruction:
    """Free the balance of a signer that was fully paid and is neither in the epoch nor pending. authority: the run's owner."""
    return _instruction(run, Number.settle, _exactly(signer, 32, "signer"), _owners(run, authority))


def _packed_model(model: ModelConfig) -> bytes:
    """The model's fields without padding, and its tables without unused entries."""
    written = MODEL.write(model)
    tables = next(part.offset for part in MODEL.parts if part.name == "tables")
    length = int.from_bytes(written[tables : tables + 4], "little")
    return written[: 8 + _LOCATION_BYTES] + struct.pack("<H", length) + written[tables + 8 : tables + 8 + length]


def _instruction(run: Run, number: Number, data: bytes, accounts: list[AccountMeta]) -> Instruction:
    return Instruction(run.program, bytes([number]) + data, accounts)


def _owners(run: Run, authority: Pubkey) -> list[AccountMeta]:
    return [_signer(authority), _read(run.instance), _written(run.account)]


def _members(run: Run, user: Pubkey) -> list[AccountMeta]:
    return [_signer(user), _written(run.account)]


def _payer(key: Pubkey) -> AccountMeta:
    return AccountMeta(key, is_signer=True, is_writable=True)


def _signer(key: Pubkey) -> AccountMeta:
    return AccountMeta(key, is_signer=True, is_writable=False)


def _written(key: Pubkey) -> AccountMeta:
    return AccountMeta(key, is_signer=False, is_writable=True)


def _read(key: Pubkey) -> AccountMeta:
    return AccountMeta(key, is_signer=False, is_writable=False)


def _run_id(run_id: str) -> bytes:
    name = run_id.encode()
    if not 1 <= len(name) <= MAX_RUN_ID_BYTES or b"\0" in name:
        message = f"expected a run id of 1 to {MAX_RUN_ID_BYTES} bytes without NUL, got {run_id!r:.80}"
        raise ValueError(message)

    return name


def _packed(form: str, *numbers: int, what: str) -> bytes:
    try:
        return struct.pack(form, *numbers)
    except struct.error as error:
        message = f"expected {what} that fit their places ({form}), got {numbers!r:.200}"
        raise ValueError(message) from error


def _exactly(content: bytes, size: int, what: str) -> bytes:
    if len(content) != size:
        message = f"expected a {what} of {size} bytes, got {len(content)}"
        raise ValueError(message)

    return content


def _expect_at_most(content: bytes, size: int, what: str) -> None:
    if len(content) > size:
        message = f"expected {what} of at most {size} bytes, got {len(content)}"
        raise ValueError(message)
