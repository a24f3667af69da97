"""Who joins proves that its transport key is its own (F19), and what is signed in one run is worth nothing in another."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import pytest

from psyche_core.coordinator import new_state
from psyche_core.coordinator.commands import Join, Withdraw
from psyche_core.types import BatchId, ClientState, NodeIdentity, RunState
from psyche_core.wire.messages import commitment_hash, sign_join

OTHER_RUN = hashlib.sha256(b"another run").digest()


def proved(secrets: Any, run: Any, *, wallet: int, transport: int) -> Join:
    """Member `wallet` joins with the transport key of another one, which signs for it."""
    identity = NodeIdentity(signer=secrets(wallet).public, p2p=secrets(transport).public)
    return Join(identity, sign_join(secrets(transport), run.state.instance, identity.signer))


def test_the_transport_key_must_sign_for_the_signer(play: Any, secrets: Any) -> None:
    run = play()
    good = proved(secrets, run, wallet=0, transport=50)
    wrong = [
        sign_join(secrets(0), run.state.instance, good.sender.signer),  # the wallet's own key
        sign_join(secrets(50), run.state.instance, good.sender.p2p),  # for itself
        sign_join(secrets(50), run.state.instance, secrets(1).public),  # for another signer
        sign_join(secrets(50), OTHER_RUN, good.sender.signer),
        secrets(50).sign("result", run.state.instance, good.sender.signer),  # said for another purpose
        good.proof[:63],
        bytes(64),
        b"",
    ]
    for proof in wrong:
        run.refused(replace(good, proof=proof), "InvalidProof")
    run.refused(replace(good, sender=NodeIdentity(secrets(1).public, good.sender.p2p)), "InvalidProof")
    run.do(good)
    assert run.state.pending == (good.sender,)


def test_a_key_that_one_does_not_hold_cannot_be_taken(play: Any, secrets: Any, members: Any) -> None:
    """Who names a victim's transport key as its own would have the victim's results count as its, or shut it out."""
    run = play()
    thief = NodeIdentity(signer=secrets(1).public, p2p=secrets(0).public)
    own = sign_join(secrets(1), run.state.instance, thief.signer)
    heard = run.joining(members(0)).proof
    for proof in (own, heard):
        run.refused(Join(thief, proof), "InvalidProof")
    run.join(0)


@pytest.mark.parametrize("where", ["pending", "in the epoch", "left the epoch"])
def test_a_member_s_transport_key_is_taken(play: Any, secrets: Any, where: str) -> None:
    run = play() if where == "pending" else play(3)
    if where == "pending":
        run.join(0)
    if where == "left the epoch":
        run.withdraw(0)
        assert run.state.epoch.clients[0].state is ClientState.Withdrawn
    run.refused(proved(secrets, run, wallet=7, transport=0), "TransportKeyTaken")
    run.do(proved(secrets, run, wallet=7, transport=8))


def test_a_key_is_free_once_its_member_is_gone(play: Any, secrets: Any, members: Any) -> None:
    run = play()
    run.join(0)
    run.do(Withdraw(members(0)))
    run.do(proved(secrets, run, wallet=7, transport=0))


def test_a_member_changes_its_own_transport_key(play: Any, secrets: Any) -> None:
    run = play()
    run.join(0)
    run.do(proved(secrets, run, wallet=0, transport=60))
    assert [member.p2p for member in run.state.pending] == [secrets(60).public]
    run.do(proved(secrets, run, wallet=1, transport=0))


def test_a_member_s_change_of_key_cannot_take_another_s(play: Any, secrets: Any) -> None:
    run = play()
    run.join(0, 1)
    run.refused(proved(secrets, run, wallet=1, transport=0), "TransportKeyTaken")


def test_a_finished_run_is_said_first_and_the_proof_before_the_key(play: Any, secrets: Any) -> None:
    run = play()
    run.join(0)
    taken = proved(secrets, run, wallet=1, transport=0)
    run.refused(replace(taken, proof=bytes(64)), "InvalidProof")
    run.state = replace(run.state, run_state=RunState.Finished)
    run.refused(replace(taken, proof=bytes(64)), "Halted")


# ---------------------------------------------------------------- what signatures cover


def test_a_run_made_anew_under_the_same_name_refuses_the_old_proofs(play: Any, members: Any) -> None:
    run = play()
    old = run.joining(members(0))
    state = run.state
    run.state = new_state(state.run_id, state.config, state.model, now=run.now, instance=OTHER_RUN)
    run.refused(old, "InvalidProof")


@pytest.mark.parametrize("instance", [b"", bytes(31), bytes(33)])
def test_an_instance_has_32_bytes(play: Any, instance: bytes) -> None:
    state = play().state
    with pytest.raises(ValueError, match=f"a run's instance has 32 bytes, got {len(instance)}"):
        new_state("test-run", state.config, state.model, instance=instance)


COVERED = {
    "epoch": 1,
    "step": 2,
    "seed": 3,
    "share": (BatchId(4, 5), BatchId(7, 9)),
    "trainer": b"\6" * 32,
    "payload_hash": b"\7" * 32,
}


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": 2},
        {"step": 3},
        {"seed": 4},
        {"share": (BatchId(4, 5),)},
        {"trainer": b"\7" * 32},
        {"payload_hash": b"\6" * 32},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_commitment_covers_every_field(change: dict[str, Any]) -> None:
    first: dict[str, Any] = dict(COVERED)
    assert commitment_hash(OTHER_RUN, **first) == commitment_hash(OTHER_RUN, **first)
    assert commitment_hash(OTHER_RUN, **first) != commitment_hash(OTHER_RUN, **{**first, **change})


def test_a_commitment_belongs_to_one_run() -> None:
    covered: dict[str, Any] = dict(COVERED)
    assert commitment_hash(OTHER_RUN, **covered) != commitment_hash(bytes(32), **covered)


@pytest.mark.parametrize("change", [{"run": OTHER_RUN}, {"seed": 1}], ids=["another run", "a round that was left behind"])
def test_signatures_of_another_history_convict_nobody(play: Any, change: dict[str, Any]) -> None:
    """A run that went back deals other rounds with the same steps; an honest member signs twice for the same step then."""
    run = play(4)
    run.play_round()
    proof = run.evidence(3, 0, by=0)
    run.refused(replace(proof, second=run.signed(3, 0, "another", **change)), "InvalidEvidence")
    run.do(proof)
    assert run.state.epoch.clients[3].state is ClientState.Ejected
