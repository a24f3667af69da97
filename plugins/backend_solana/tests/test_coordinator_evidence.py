"""Proof of equivocation on a chain: only the Ed25519 program's word counts, about exactly these two signatures."""

from __future__ import annotations

from dataclasses import replace

import pytest
from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey
from solders.system_program import TransferParams, transfer

from plugins.backend_solana.tests.svm.coordinator_svm import (
    NOT_SIGNED,
    CoordinatorSvm,
    commitments,
    member,
    transport_key,
    wallet,
)
from plugins.backend_solana.tests.svm.largest import NOW, Largest
from psyche_backend_solana.layouts import coordinator as layout
from psyche_core.coordinator import commands
from psyche_core.coordinator.round.assignment import shares
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.types import BatchId, ClientState
from psyche_core.wire.messages import commitment_hash, sign_commitment

SLOT = 101


class Trial:
    """A run in which a slot signed two results, and somebody who says so."""

    def __init__(self) -> None:
        self.chain = CoordinatorSvm(members=4)
        self.largest = Largest(torn=False, percent=0, instance=self.chain.instance)
        self.state: CoordinatorState = self.largest.playing(0)
        command = self.largest.evidence(self.state, 3, SLOT)
        assert isinstance(command, commands.Equivocation)
        self.command = command
        signed = commitments(self.state, command)
        assert signed is not None
        self.signed = signed
        self.key = transport_key(SLOT).public
        self.verified = layout.commitments_verified(self.chain.run, p2p=self.key, signed=signed)
        self.proof = self.of(command)

    def of(self, command: commands.Equivocation) -> Instruction:
        return layout.equivocation(self.chain.run, command, user=wallet(0).pubkey())

    def sent(self, *instructions: Instruction) -> str | None:
        """The refusal, after which nothing has changed; or the slot is ejected."""
        self.chain.begin(self.state)
        self.chain.at(NOW, 1)
        before = self.chain.image
        refusal = self.chain.send(instructions, wallet(0), units=1_400_000).refusal
        state = self.chain.account.state
        assert state is not None
        if refusal is None:
            assert state.epoch.clients[SLOT].state is ClientState.Ejected
        else:
            assert self.chain.image == before
        return refusal


@pytest.fixture(scope="module")
def trial() -> Trial:
    return Trial()


def between(trial: Trial) -> Instruction:
    """An instruction of another program."""
    purse = wallet(0).pubkey()
    return transfer(TransferParams(from_pubkey=purse, to_pubkey=purse, lamports=1))


def test_true_proof_ejects(trial: Trial) -> None:
    assert trial.sent(trial.verified, trial.proof) is None
    assert trial.sent(between(trial), trial.verified, trial.proof, between(trial)) is None


def test_proof_is_verified_just_before(trial: Trial) -> None:
    assert trial.sent(trial.proof) == "InvalidEvidence"
    assert trial.sent(trial.proof, trial.verified) == "InvalidEvidence"
    assert trial.sent(trial.verified, between(trial), trial.proof) == "InvalidEvidence"
    assert trial.sent(between(trial), trial.proof) == "InvalidEvidence"


def test_the_accused_signed_it(trial: Trial) -> None:
    """Not somebody else, who can sign what they like."""
    thief = transport_key(7)
    commitment = [commitment for commitment, _ in trial.signed]
    forged = tuple((item, sign_commitment(thief, trial.chain.instance, item)) for item in commitment)
    results = [
        replace(result, signature=signature)
        for result, (_, signature) in zip((trial.command.first, trial.command.second), forged, strict=True)
    ]
    command = replace(trial.command, first=results[0], second=results[1])
    other = layout.commitments_verified(trial.chain.run, p2p=thief.public, signed=forged)
    assert trial.sent(other, trial.of(command)) == "InvalidEvidence"
    assert trial.sent(other, trial.proof) == "InvalidEvidence"
    pretended = layout.commitments_verified(trial.chain.run, p2p=trial.key, signed=forged)
    assert trial.sent(pretended, trial.of(command)) == NOT_SIGNED


def test_both_are_verified(trial: Trial) -> None:
    first, second = trial.signed
    for signed in ((first,), (second, first), (first, first), (first, second, second), ()):
        verified = layout.commitments_verified(trial.chain.run, p2p=trial.key, signed=signed)
        assert trial.sent(verified, trial.proof) in ("InvalidEvidence", NOT_SIGNED)


def test_they_are_about_this_run_and_share(trial: Trial) -> None:
    """Nor what was signed in a run of the same name that had another account: its instance is another one."""
    this, another = trial.chain.run, replace(trial.chain.run, account=Pubkey(b"another account ................"))
    for run, items in ((another, [item for item, _ in trial.signed]), (this, [b"\1" * 32, b"\2" * 32])):
        signed = tuple((item, sign_commitment(transport_key(SLOT), bytes(run.account), item)) for item in items)
        verified = layout.commitments_verified(run, p2p=trial.key, signed=signed)
        results = [
            replace(result, signature=signature)
            for result, (_, signature) in zip((trial.command.first, trial.command.second), signed, strict=True)
        ]
        assert trial.sent(verified, trial.of(replace(trial.command, first=results[0], second=results[1]))) == "InvalidEvidence"


@pytest.mark.parametrize("place", [0, 1])
def test_one_true_signature_is_not_enough(trial: Trial, place: int) -> None:
    """The other result is one that the accused signed for something else."""
    item = b"\3" * 32
    signed = list(trial.signed)
    signed[place] = (item, sign_commitment(transport_key(SLOT), trial.chain.instance, item))
    results = [
        replace(result, signature=signature)
        for result, (_, signature) in zip((trial.command.first, trial.command.second), signed, strict=True)
    ]
    verified = layout.commitments_verified(trial.chain.run, p2p=trial.key, signed=tuple(signed))
    assert trial.sent(verified, trial.of(replace(trial.command, first=results[0], second=results[1]))) == "InvalidEvidence"


def test_the_message_lies_in_the_instruction_itself(trial: Trial) -> None:
    """What the program would compare must be what was verified: no message from another instruction, none of another length."""
    data = bytearray(trial.verified.data)
    for place in range(2, 30):
        wrong = bytearray(data)
        wrong[place] ^= 1
        changed = Instruction(trial.verified.program_id, bytes(wrong), [])
        assert trial.sent(changed, trial.proof) is not None, place
    elsewhere = bytearray(data)
    elsewhere[14:16] = (1).to_bytes(2, "little")  # the first message from the transaction's instruction 1: 0 asks for units
    same = Instruction(trial.verified.program_id, bytes(elsewhere), [])
    assert trial.sent(trial.verified, same, trial.proof) == "InvalidEvidence"
    assert trial.sent(trial.verified, same, trial.verified, trial.proof) is None


def test_another_program_verifies_nothing(trial: Trial) -> None:
    """The same bytes for a program that takes whatever comes first in them for its own instruction: here `update`, refused."""
    given = Instruction(layout.PROGRAM_ID, bytes(trial.verified.data), [])
    assert trial.sent(given, trial.proof) is not None


def test_the_sysvar_is_the_sysvar(trial: Trial) -> None:
    """Not an account in which the accuser wrote what was verified."""
    found = layout.INSTRUCTIONS_SYSVAR
    place = [meta.pubkey for meta in trial.proof.accounts].index(found)
    false = Pubkey(b"z" * 32)
    listed = bytes(trial.verified.program_id) + len(trial.verified.data).to_bytes(2, "little") + bytes(trial.verified.data)
    content = (2).to_bytes(2, "little") + (6).to_bytes(2, "little") * 2 + bytes(2) + listed + (1).to_bytes(2, "little")
    trial.chain.put(false, content)
    accounts = list(trial.proof.accounts)
    accounts[place] = AccountMeta(false, is_signer=False, is_writable=False)
    assert trial.sent(Instruction(trial.proof.program_id, trial.proof.data, accounts)) == "WrongAddress"


def test_a_stranger_accuses_nobody(trial: Trial) -> None:
    stranger = layout.equivocation(trial.chain.run, trial.command, user=trial.chain.owner.pubkey())
    trial.chain.begin(trial.state)
    assert trial.chain.send([trial.verified, stranger], trial.chain.owner).refusal == "InvalidEvidence"
    assert member(0).signer == bytes(wallet(0).pubkey())


def test_nobody_is_convicted_of_no_share(trial: Trial) -> None:
    """Of a round with one sample another slot has it, and a signature about no samples at all accuses nobody."""
    last = trial.state.epoch.rounds[-1]
    single = replace(last, batches=(BatchId(last.height * 1000, last.height * 1000),))
    state = replace(trial.state, epoch=replace(trial.state.epoch, rounds=(*trial.state.epoch.rounds[:-1], single)))
    assert SLOT not in shares(state, single)
    signer, epoch = state.epoch.clients[SLOT].id.signer, state.progress.epoch
    results, signed = [], []
    for digest in (b"\1" * 32, b"\2" * 32):
        item = commitment_hash(
            state.instance, epoch=epoch, step=single.step, seed=single.seed, share=(), trainer=signer, payload_hash=digest
        )
        signature = sign_commitment(transport_key(SLOT), trial.chain.instance, item)
        signed.append((item, signature))
        results.append(commands.SignedResult(digest, signature))
    verified = layout.commitments_verified(trial.chain.run, p2p=trial.key, signed=tuple(signed))
    proof = trial.of(replace(trial.command, first=results[0], second=results[1]))
    trial.chain.begin(state)
    assert trial.chain.send([verified, proof], wallet(0), units=1_400_000).refusal == "InvalidEvidence"
