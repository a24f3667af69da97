"""A run on a chain of the coordinator program alone, and instructions to it that succeed: for tests of what it refuses."""

from __future__ import annotations

from random import Random

from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from plugins.backend_solana.tests.svm import runs
from plugins.backend_solana.tests.svm.coordinator_svm import (
    CoordinatorSvm,
    member,
    wallet,
)
from psyche_backend_solana.layouts import coordinator as layout
from psyche_backend_solana.layouts.coordinator_accounts import (
    HEADER_BYTES,
    OLD_ACCOUNT_BYTES,
    RunMetadata,
)
from psyche_core.coordinator import commands
from psyche_core.types import RunState, WitnessStatement

CONFIG = runs.config(Random(1), 2, init_min_clients=2, min_clients=1)
MODEL = runs.model(Random(1), checkpoint={"Hub": {"repo_id": "owner/model"}})
STATEMENT = WitnessStatement(0, 0, 0, bytes(32), bytes(320), bytes(32), bytes(32))
PROOF = commands.Equivocation(
    member(0), 0, 0, 0, commands.SignedResult(bytes(32), bytes(64)), commands.SignedResult(b"\1" * 32, bytes(64))
)
COMMIT = commands.VerifierCommit(member(0), 0, seed=0, height=0, trainer=0, commitment=b"r" * 32)
THIEF = Keypair.from_seed(b"t" * 32)


def owners(chain: CoordinatorSvm, authority: Pubkey) -> dict[str, Instruction]:
    """Every instruction of the owner."""
    run = chain.run
    return {
        "free": layout.free(run, authority=authority, spill=THIEF.pubkey()),
        "stage": layout.stage(run, authority=authority, offset=0, content=b"x"),
        "update": layout.update(run, layout.Update(metadata=RunMetadata("a")), authority=authority),
        "rates": layout.set_future_epoch_rates(run, authority=authority, earning_total_shared=1),
        "paused": layout.set_paused(run, authority=authority, paused=True),
        "expel": layout.expel(run, authority=authority, user=wallet(0).pubkey()),
        "back": layout.back(run, authority=authority, units=1),
        "settle": layout.settle(run, authority=authority, signer=bytes(wallet(0).pubkey())),
    }


def members(chain: CoordinatorSvm, user: Pubkey) -> dict[str, Instruction]:
    """Every instruction of members."""
    run = chain.run
    return {
        "join": layout.join(run, user=user, authorization=chain.authorization, p2p=bytes(32), proof=bytes(64)),
        "withdraw": layout.withdraw(run, user=user),
        "tick": layout.tick(run, user=user),
        "witness": layout.witness(run, STATEMENT, user=user),
        "warmup_witness": layout.warmup_witness(run, user=user, epoch=0, index=0, model_digest=bytes(32)),
        "health_check": layout.health_check(run, user=user, slots=(0,)),
        "checkpoint": layout.checkpoint(run, None, user=user),
        "epoch_digest": layout.epoch_digest(run, user=user, epoch=0, index=0, digest=b"d" * 32),
        "equivocation": layout.equivocation(run, PROOF, user=user),
        "verifier_commit": layout.verifier_commit(run, COMMIT, user=user),
    }


def every(chain: CoordinatorSvm) -> dict[str, tuple[Instruction, Keypair]]:
    """Every instruction but `init`, with who signs it."""
    by_owner = {name: (made, chain.owner) for name, made in owners(chain, chain.owner.pubkey()).items()}
    return by_owner | {name: (made, wallet(0)) for name, made in members(chain, wallet(0).pubkey()).items()}


OWNERS = ("free", "stage", "update", "rates", "paused", "expel", "back", "settle")
MEMBERS = (
    "join",
    "withdraw",
    "tick",
    "witness",
    "warmup_witness",
    "health_check",
    "checkpoint",
    "equivocation",
    "epoch_digest",
    "verifier_commit",
)

EVERY = (*OWNERS, *MEMBERS)


def changed(given: Instruction, place: int, **fields: object) -> Instruction:
    """The instruction with another account, signature or right at a place."""
    accounts = list(given.accounts)
    old = accounts[place]
    accounts[place] = AccountMeta(
        fields.get("pubkey", old.pubkey),  # type: ignore[arg-type]
        bool(fields.get("is_signer", old.is_signer)),
        bool(fields.get("is_writable", old.is_writable)),
    )
    return Instruction(given.program_id, given.data, accounts)


def refused(chain: CoordinatorSvm, given: Instruction, *signers: Keypair) -> str | None:
    before = chain.data()
    answer = chain.send([given], *signers, units=1_400_000)
    assert answer.refusal is None or chain.data() == before
    return answer.refusal


def old(chain: CoordinatorSvm, version: int, *, run_state: RunState = RunState.Paused) -> bytes:
    """The account as an older version had it, as far as anything is known of it: its header, and what its image begins with."""
    header = chain.data()[:8] + version.to_bytes(4, "little") + chain.data()[12:HEADER_BYTES]
    begun = b"PsycheSt" + bytes(144 if version >= 3 else 112) + bytes([run_state])
    return (header + begun).ljust(OLD_ACCOUNT_BYTES[version], b"\0")
