"""Every refusal by its name; a refused command changes nothing (`Play.refused` checks both)."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import psyche_core.coordinator
from psyche_core.config.run_config import Choice
from psyche_core.coordinator import apply
from psyche_core.coordinator.checkpoints import checkpointer_slot
from psyche_core.coordinator.commands import (
    Checkpoint,
    HealthCheck,
    Pause,
    Resume,
    StatementVoided,
    Tick,
    UpdateConfig,
    WarmupWitness,
    Withdraw,
)
from psyche_core.coordinator.errors import NAMES
from psyche_core.types import RunState


def test_names_are_those_the_code_raises() -> None:
    folder = Path(psyche_core.coordinator.__file__).parent
    raised = {name for module in folder.rglob("*.py") for name in re.findall(r'CoordinatorError\(\s*"(\w+)"', module.read_text())}
    assert raised == set(NAMES) - {"NothingDue"}  # only the on-chain program refuses a tick that changes nothing


@pytest.mark.parametrize("phase", [RunState.Uninitialized, RunState.Paused, RunState.Finished])
def test_nothing_moves_while_halted(play: Any, members: Any, phase: RunState) -> None:
    run = play(2)
    statement, ready = run.statement(run.elected[0]), run.ready(0)
    run.state = replace(run.state, run_state=phase)
    for command in (Tick(), Pause(), statement, ready, HealthCheck(sender=members(0), slots=(0,))):
        run.refused(command, "Halted")


def test_join(play: Any, members: Any, joins: Any) -> None:
    run = play()
    run.join(*range(256))
    run.refused(joins(members(256)), "ClientsFull")
    run.join(255)
    run.state = replace(run.state, run_state=RunState.Finished)
    run.refused(joins(members(300)), "Halted")


def test_withdraw(play: Any, members: Any) -> None:
    run = play(2)
    run.refused(Withdraw(members(7)), "InvalidWithdraw")
    run.withdraw(0)
    run.refused(Withdraw(members(0)), "InvalidWithdraw")
    run.join(0)
    run.do(Withdraw(members(0)))


def test_warmup_witness(play: Any, members: Any) -> None:
    run = play()
    run.join(0, 1)
    run.refused(WarmupWitness(sender=members(0), epoch=0, index=0, model_digest=b"\1" * 32), "InvalidRunState")
    run.tick(after=3)
    for change in ({"epoch": 1}, {"index": 1}, {"index": 99}, {"sender": members(7)}, {"model_digest": bytes(31)}):
        run.refused(replace(run.ready(0), **change), "InvalidWitness")
    run.do(run.ready(0))
    run.refused(run.ready(0), "DuplicateWitness")
    run.do(Withdraw(members(0)))
    run.refused(run.ready(0), "InvalidWitness")


def test_warmup_witness_after_the_first_round(play: Any) -> None:
    run = play(4, rounds_per_epoch=2)
    before = run.state
    assert run.do(run.ready(0)) == []
    assert run.state == before
    for slot in run.elected[:3]:
        run.do(run.statement(slot))
    assert run.phase == "RoundWitness"
    before = run.state
    assert run.do(run.ready(0)) == []
    assert run.state == before
    for change in ({"epoch": 1}, {"index": 1}, {"model_digest": b""}):
        run.refused(replace(run.ready(0), **change), "InvalidWitness")
    run.play_epoch()
    run.refused(run.ready(0), "InvalidRunState")


def test_witness(play: Any, members: Any) -> None:
    run = play(6, witness_nodes=3, min_clients=3, init_min_clients=6)
    run.play_round()
    good = run.statement(run.elected[0])
    outsider = next(slot for slot in range(6) if slot not in run.elected)
    wrong = [
        replace(good, sender=members(99)),
        replace(good, sender=run.state.epoch.clients[outsider].id),
        run.statement(outsider),
        run.statement(run.elected[0], index=200),
        run.statement(run.elected[0], epoch=1),
        run.statement(run.elected[0], height=0),
        run.statement(run.elected[0], height=2),
        run.statement(run.elected[0], participants=bytes(31)),
        run.statement(run.elected[0], broadcast_bloom=bytes(128)),
        run.statement(run.elected[0], merkle_root=b""),
        run.statement(run.elected[0], model_digest=bytes(33)),
        run.statement(run.elected[0], words=b"\1"),
    ]
    for command in wrong:
        run.refused(command, "InvalidWitness")
    run.do(good)
    run.refused(good, "DuplicateWitness")
    run.withdraw(run.elected[1])
    run.refused(run.statement(run.elected[1]), "InvalidWitness")
    run.state = replace(run.state, run_state=RunState.Cooldown)
    run.refused(good, "InvalidRunState")


def test_first_round_has_nothing_to_attest(play: Any) -> None:
    run = play(3)
    slot = run.elected[0]
    assert run.do(run.statement(slot, seen=[0])) == [StatementVoided(epoch=0, height=0, slot=slot)]
    assert (run.round.statements, run.state.epoch.clients[slot].missed) == ((), 64)


def test_a_round_holds_32_statements(play: Any) -> None:
    run = play(4)
    filler = tuple(run.statement(0, index=200 + place).statement for place in range(32))
    run.state = replace(run.state, epoch=replace(run.state.epoch, rounds=(replace(run.round, statements=filler),)))
    run.refused(run.statement(0), "WitnessesFull")


def test_a_round_is_needed(play: Any) -> None:
    run = play(2)
    statement = run.statement(0)
    run.state = replace(run.state, epoch=replace(run.state.epoch, rounds=()))
    run.refused(statement, "NoActiveRound")
    run.refused(HealthCheck(sender=run.state.epoch.clients[0].id, slots=(0,)), "NoActiveRound")


def test_health_check(play: Any, members: Any) -> None:
    run = play(6, witness_nodes=3, min_clients=3, init_min_clients=6)
    reporter = run.state.epoch.clients[run.elected[0]].id
    run.refused(HealthCheck(sender=reporter, slots=(1,)), "InvalidHealthCheck")
    run.play_round()
    run.refused(HealthCheck(sender=reporter, slots=(1,)), "InvalidHealthCheck")
    run.play_round(seen=[0, 1, 2, 3, 4])
    before = run.state.epoch.rounds[-2]
    witnesses = {statement.index for statement in before.statements}
    outsider = next(slot for slot in range(6) if slot not in witnesses)
    reporter = run.state.epoch.clients[min(witnesses)].id
    run.refused(HealthCheck(sender=run.state.epoch.clients[outsider].id, slots=(5,)), "InvalidHealthCheck")
    run.refused(HealthCheck(sender=members(50), slots=(5,)), "InvalidHealthCheck")
    for slots in ((), (4,), (5, 4), (77,)):
        run.refused(HealthCheck(sender=reporter, slots=slots), "InvalidHealthCheck")
    run.do(HealthCheck(sender=reporter, slots=(5,)))
    run.state = replace(run.state, run_state=RunState.WaitingForMembers)
    run.refused(HealthCheck(sender=reporter, slots=(5,)), "InvalidRunState")


def test_too_few_statements_judge_nobody(play: Any) -> None:
    """One witness alone could otherwise report everybody after a missed quorum."""
    run = play(4)
    run.play_round()
    lone = run.statement(0)
    run.do(lone)
    run.tick(after=30)
    run.tick(after=11)
    assert run.round.drain
    run.refused(HealthCheck(sender=lone.sender, slots=(1,)), "InvalidHealthCheck")


def test_checkpoint(play: Any, members: Any) -> None:
    run = play(3, rounds_per_epoch=1)
    hub = Choice("Hub", {"repo_id": "owner/better"})
    for slot in range(3):
        run.refused(Checkpoint(sender=run.state.epoch.clients[slot].id, location=hub), "InvalidRunState")
    run.play_round()
    run.play_round()
    run.sign_end(b"\1" * 32)
    chosen = checkpointer_slot(run.state)
    assert chosen is not None
    for slot in {0, 1, 2} - {chosen}:
        run.refused(Checkpoint(sender=run.state.epoch.clients[slot].id, location=hub), "InvalidCheckpoint")
    run.refused(Checkpoint(sender=members(9), location=hub), "InvalidCheckpoint")
    sender = run.state.epoch.clients[chosen].id
    wrong: list[Any] = [
        Choice("P2P", {"repo_id": "x"}),
        Choice("Gcs", {"repo_id": "x"}),
        Choice("Hub", {"repo": "x"}),
        Choice("Hub"),
        Choice("Ephemeral"),
        Choice("Elsewhere"),
        {"Hub": 7},
        5,
    ]
    for location in wrong:
        run.refused(Checkpoint(sender=sender, location=location), "InvalidCheckpoint")
    bucket = Choice("Gcs", {"bucket": "x"})
    for location in (bucket, hub):
        run.do(Checkpoint(sender=sender, location=location))
        assert run.state.model.LLM.checkpoint == location
    run.cool_down()
    run.do(Checkpoint(sender=sender, location={"Gcs": {"bucket": "b"}}))
    assert run.state.model.LLM.checkpoint == Choice("P2PGcs", {"bucket": "b"})
    run.do(Withdraw(sender))
    assert checkpointer_slot(run.state) in {0, 1, 2} - {chosen}
    run.refused(Checkpoint(sender=sender, location=hub), "InvalidCheckpoint")


def test_checkpoint_of_an_epoch_without_rounds(play: Any, members: Any) -> None:
    run = play()
    run.refused(Checkpoint(sender=members(0), location=Choice("Hub", {"repo_id": "x"})), "NoActiveRound")
    assert checkpointer_slot(run.state) is None


def test_resume(play: Any) -> None:
    for clients in (0, 2):
        play(clients).refused(Resume(), "CannotResume")


def test_update_config(play: Any) -> None:
    run = play()
    config, model = run.state.config, run.state.model
    run.refused(UpdateConfig(config=config), "UpdateConfigNotHalted")
    run.state = replace(run.state, run_state=RunState.Paused)
    run.refused(UpdateConfig(config=config.model_copy(update={"min_clients": 0})), "ConfigSanityCheckFailed")
    cold = model.model_copy(update={"LLM": model.LLM.model_copy(update={"cold_start_warmup_steps": 2**31})})
    run.refused(UpdateConfig(model=cold), "ConfigSanityCheckFailed")
    empty = model.model_copy(update={"LLM": model.LLM.model_copy(update={"max_seq_len": 0})})
    run.refused(UpdateConfig(model=empty), "ModelSanityCheckFailed")
    changed = config.model_copy(update={"total_steps": 77})
    run.do(UpdateConfig(config=changed))
    assert run.state.config == changed
    assert run.state.model == model
    run.state = replace(run.state, run_state=RunState.Finished)
    run.refused(UpdateConfig(config=config), "UpdateConfigFinished")


def test_misuse_by_code_is_not_a_refusal(play: Any) -> None:
    state = play(1).state
    with pytest.raises(TypeError, match="expected a command, got str"):
        apply(state, "tick", 0, 0)  # type: ignore[arg-type]
    for seed in (-1, 2**64):
        with pytest.raises(ValueError, match="64 bits"):
            apply(state, Tick(), 0, seed)
