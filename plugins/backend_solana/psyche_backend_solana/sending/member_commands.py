"""A member's commands as the coordinator program's instructions. No I/O.

If a command makes a tick due, both go into one transaction, so that the phase ends in the same slot. A witness's figures go to
the transaction's log as canonical CBOR. `psyche_core.interfaces.backend` checks whether a client may send a command.
"""

from __future__ import annotations

from solders.instruction import Instruction
from solders.pubkey import Pubkey

from psyche_backend_solana.layouts import coordinator
from psyche_backend_solana.layouts.coordinator import Run
from psyche_backend_solana.sending import ticker
from psyche_core.coordinator import commands
from psyche_core.coordinator.round.assignment import shares
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.errors import CommandRefused
from psyche_core.interfaces.backend import ClientCommand
from psyche_core.interfaces.command_codec import encode_figures
from psyche_core.types import WitnessMetadata
from psyche_core.wire.codec import encode
from psyche_core.wire.messages import commitment_hash


def instructions_of(run: Run, command: ClientCommand, *, state: CoordinatorState | None) -> tuple[Instruction, ...]:
    """The instructions of one transaction. state: the newest known state, which a proof of equivocation needs.

    Raises CommandRefused for a proof about data that the state does not contain, ValueError for values that do not fit.
    """
    user = Pubkey(command.sender.signer)
    match command:
        case commands.Withdraw():
            return (coordinator.withdraw(run, user=user),)
        case commands.WarmupWitness(_, epoch, index, digest):
            return (coordinator.warmup_witness(run, user=user, epoch=epoch, index=index, model_digest=digest),)
        case commands.Witness(_, statement, metadata):
            return (coordinator.witness(run, statement, user=user, metadata=_figures(metadata)),)
        case commands.HealthCheck(_, slots):
            return (coordinator.health_check(run, user=user, slots=slots),)
        case commands.Checkpoint(_, location):  # without the step: a chain is never restored from an older state
            return (coordinator.checkpoint(run, location, user=user),)
        case commands.Equivocation():
            return _proof(run, command, user, state=state)
        case commands.EpochDigest(_, epoch, index, digest):
            return (coordinator.epoch_digest(run, user=user, epoch=epoch, index=index, digest=digest),)
        case commands.VerifierCommit():
            return (coordinator.verifier_commit(run, command, user=user),)


def wants_tick(state: CoordinatorState, command: ClientCommand, now: int) -> bool:
    """Whether the command, if accepted, makes a tick due at once that was not due before."""
    if isinstance(command, commands.Equivocation) or ticker.due(state, now):  # a proof fills its transaction
        return False

    return ticker.follows(state, (command, commands.Tick()), now)


def _proof(run: Run, command: commands.Equivocation, user: Pubkey, *, state: CoordinatorState | None) -> tuple[Instruction, ...]:
    """The instructions of a proof of equivocation.

    The Ed25519 program verifies the two signatures over commitments that the coordinator recomputes.
    """
    judged = None if state is None else state.round_at(command.height)
    if state is None or judged is None or command.index not in (assigned := shares(state, judged)):
        sentence = f"round {command.height} is not known, or slot {command.index} had no samples in it"
        raise CommandRefused("InvalidEvidence", sentence)

    accused = state.epoch.clients[command.index].id
    signed = tuple(
        (
            commitment_hash(
                state.instance,
                epoch=command.epoch,
                step=judged.step,
                seed=judged.seed,
                share=assigned[command.index],
                trainer=accused.signer,
                payload_hash=result.payload_hash,
            ),
            result.signature,
        )
        for result in (command.first, command.second)
    )
    verified = coordinator.commitments_verified(run, p2p=accused.p2p, signed=signed)
    return (verified, coordinator.equivocation(run, command, user=user))


def _figures(metadata: WitnessMetadata | None) -> bytes:
    """A witness's figures for dashboards, as CBOR: those of `encode_figures`."""
    return b"" if metadata is None else encode(encode_figures(metadata))
