"""Every command in every state: accepted, or refused with which name. The table is the specification; see `errors.MEANINGS`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, get_args

import pytest

from psyche_core.config.run_config import Choice
from psyche_core.coordinator import apply
from psyche_core.coordinator.checkpoints import checkpointer_slot
from psyche_core.coordinator.commands import (
    Checkpoint,
    Command,
    EpochDigest,
    Equivocation,
    HealthCheck,
    Pause,
    Resume,
    SetFutureEpochRates,
    Settle,
    SignedResult,
    Tick,
    UpdateConfig,
    VerifierCommit,
    WarmupWitness,
    Withdraw,
    Witness,
)
from psyche_core.coordinator.errors import NAMES
from psyche_core.coordinator.state import Account
from psyche_core.errors import CoordinatorError
from psyche_core.types import RunState, WitnessStatement

HUB = Choice("Hub", {"repo_id": "owner/better"})
OK = "ok"
RICH = Account(b"\xff" * 32, earned=5)


class Scene:
    """A run in each of the eight states, with the commands that fit the moment best.

    Where rounds are played, slot 5 is healthy and was not seen by the quorum that judges it now, slot 4 has withdrawn and joined
    again, and slot 3 signed two results.
    """

    def __init__(self, run: Any, phase: RunState) -> None:
        run.join(*range(6))
        self.identity = list(run.state.pending)
        if phase is RunState.Uninitialized:
            run.state = replace(run.state, run_state=phase)
        elif phase is RunState.Warmup:
            run.tick(after=3)
            run.withdraw(4)
            run.join(4)
        else:
            self._play_to(run, phase)
        run.state = replace(run.state, accounts=(*run.state.accounts, RICH))
        assert run.state.run_state is phase
        self.run = run

    def _play_to(self, run: Any, phase: RunState) -> None:
        run.warm_up()
        run.play_round()
        run.play_round()
        run.withdraw(4)
        run.join(4)
        run.play_round(seen=[0, 1, 2, 3, 4])
        assert run.round.drain
        self.evidence = run.evidence(3, 2, by=0)
        if phase is RunState.RoundTrain:
            return
        if phase is RunState.RoundWitness:
            run.tick(after=30)
            return
        if phase is RunState.Paused:
            run.do(Pause())
        run.play_round()
        if phase is not RunState.Cooldown:
            run.cool_down()

    def command(self, kind: str) -> Command:
        """The command of this kind that is most likely to be accepted now."""
        run, identity = self.run, self.identity
        playing = run.state.current_round is not None
        match kind:
            case "Tick":
                return Tick()
            case "Join":
                joining: Command = run.joining(identity[5])
                return joining
            case "Withdraw":
                return Withdraw(identity[0])
            case "WarmupWitness":
                return WarmupWitness(identity[1], run.state.progress.epoch, 1, b"\1" * 32)
            case "WarmupWitness to come back":
                return WarmupWitness(identity[4], run.state.progress.epoch, 4, b"\1" * 32)
            case "Witness":
                return self._statement() if playing else Witness(identity[0], SOME_STATEMENT)
            case "HealthCheck":
                return HealthCheck(identity[0], (5,))
            case "Equivocation":
                return self.evidence if playing else Equivocation(identity[0], 0, 0, 3, HALF, HALF)
            case "VerifierCommit":
                seed = run.round.seed if playing else 0
                return VerifierCommit(identity[0], run.state.progress.epoch, seed, 0, 1, bytes(32))
            case "EpochDigest":
                ended = run.state.progress.epoch - (run.state.run_state is not RunState.Cooldown)
                return EpochDigest(identity[0], max(ended, 0), 0, b"\1" * 32)
            case "Checkpoint":
                slot = checkpointer_slot(run.state) or 0
                return Checkpoint(identity[slot], HUB)
            case "Pause":
                return Pause()
            case "Resume":
                return Resume()
            case "UpdateConfig":
                return UpdateConfig(config=run.state.config)
            case "SetFutureEpochRates":
                return SetFutureEpochRates(5, 5)
            case "Settle":
                return Settle(RICH.signer)
        raise AssertionError(kind)

    def _statement(self) -> Command:
        state = self.run.state
        free = {statement.index for statement in self.run.round.statements}
        slot = next((slot for slot in self.run.elected if slot not in free and slot in state.healthy_slots), 0)
        command: Command = self.run.statement(slot)
        return command


SOME_STATEMENT = WitnessStatement(0, 0, 0, bytes(32), bytes(320), bytes(32), bytes(32))
HALF = SignedResult(bytes(32), bytes(64))

PHASES = tuple(RunState)
_H, _P = "Halted", "InvalidRunState"
TABLE: dict[str, tuple[str, ...]] = {
    #                      Uninitialized  WaitingForMembers Warmup RoundTrain RoundWitness Cooldown Finished Paused
    "Tick": (_H, OK, OK, OK, OK, OK, _H, _H),
    "Join": (OK, OK, OK, OK, OK, OK, _H, OK),
    "Withdraw": (OK, OK, OK, OK, OK, OK, OK, OK),
    "WarmupWitness": (_H, _P, OK, OK, OK, _P, _H, _H),
    "WarmupWitness to come back": (_H, _P, OK, OK, OK, _P, _H, _H),
    "Witness": (_H, _P, _P, OK, OK, _P, _H, _H),
    "HealthCheck": (_H, _P, _P, OK, OK, OK, _H, _H),
    "Equivocation": (_H, _P, _P, OK, OK, OK, _H, _H),
    "VerifierCommit": (_H, _P, _P, "InvalidCommit", "InvalidCommit", _P, _H, _H),  # no share is challenged
    "EpochDigest": (_P, OK, _P, _P, _P, OK, OK, OK),
    "Checkpoint": (_P, "InvalidCheckpoint", _P, _P, _P, "InvalidCheckpoint", OK, "InvalidCheckpoint"),  # no end is signed
    "Pause": (_H, OK, OK, OK, OK, OK, _H, _H),
    "Resume": (OK, *["CannotResume"] * 6, OK),
    "UpdateConfig": (OK, *["UpdateConfigNotHalted"] * 5, "UpdateConfigFinished", OK),
    "SetFutureEpochRates": (OK,) * 8,
    "Settle": (OK,) * 8,
}
STRANGER: dict[str, tuple[str, ...]] = {
    "Join": (*["InvalidProof"] * 6, _H, "InvalidProof"),
    "Withdraw": ("InvalidWithdraw",) * 8,
    "WarmupWitness": (_H, _P, *["InvalidWitness"] * 3, _P, _H, _H),
    "Witness": (_H, _P, _P, "InvalidWitness", "InvalidWitness", _P, _H, _H),
    "HealthCheck": (_H, _P, _P, *["InvalidHealthCheck"] * 3, _H, _H),
    "Equivocation": (_H, _P, _P, *["InvalidEvidence"] * 3, _H, _H),
    "VerifierCommit": (_H, _P, _P, *["InvalidCommit"] * 2, _P, _H, _H),
    "EpochDigest": (_P, "InvalidWitness", _P, _P, _P, *["InvalidWitness"] * 3),
    "Checkpoint": (_P, "InvalidCheckpoint", _P, _P, _P, *["InvalidCheckpoint"] * 3),
}
"""The same commands from somebody who never joined."""


@pytest.fixture(scope="module")
def scenes(unstarted: Any) -> Callable[[RunState], Scene]:
    """Each state's run, made once; commands are applied to it without changing it."""

    def scene(phase: RunState) -> Scene:
        steps = 3 if phase is RunState.Finished else 1000
        return Scene(unstarted(rounds_per_epoch=3, min_clients=2, init_min_clients=6, total_steps=steps), phase)

    return cache(scene)


def outcome(scene: Scene, command: Command) -> str:
    try:
        apply(scene.run.state, command, scene.run.now, 7)
    except CoordinatorError as error:
        return error.name
    return OK


@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.name)
@pytest.mark.parametrize("kind", TABLE)
def test_a_fitting_command(scenes: Any, kind: str, phase: RunState) -> None:
    scene = scenes(phase)
    assert outcome(scene, scene.command(kind)) == TABLE[kind][phase]


@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.name)
@pytest.mark.parametrize("kind", STRANGER)
def test_a_command_of_a_stranger(scenes: Any, members: Any, kind: str, phase: RunState) -> None:
    scene = scenes(phase)
    command: Any = replace(scene.command(kind), sender=members(700))
    assert outcome(scene, command) == STRANGER[kind][phase]


def test_the_tables_are_whole() -> None:
    kinds = {command.__name__ for command in get_args(Command)}
    assert {kind.split()[0] for kind in TABLE} == kinds
    owners = {"Tick", "Pause", "Resume", "UpdateConfig", "SetFutureEpochRates", "Settle"}
    assert set(STRANGER) == kinds - owners
    assert all(len(row) == len(PHASES) == 8 for row in (*TABLE.values(), *STRANGER.values()))
    assert [phase.value for phase in PHASES] == list(range(8))
    assert {name for row in (*TABLE.values(), *STRANGER.values()) for name in row} <= {OK, *NAMES}


def test_accepted_commands_of_the_table_do_something_where_they_should(scenes: Any) -> None:
    """Not vacuous: these commands change the state in these phases."""
    for kind, phase in (
        ("WarmupWitness", RunState.Warmup),
        ("WarmupWitness to come back", RunState.Warmup),
        ("WarmupWitness to come back", RunState.RoundTrain),
        ("WarmupWitness to come back", RunState.RoundWitness),
        ("Witness", RunState.RoundTrain),
        ("Witness", RunState.RoundWitness),
        ("HealthCheck", RunState.RoundTrain),
        ("HealthCheck", RunState.RoundWitness),
        ("Equivocation", RunState.RoundTrain),
        ("Equivocation", RunState.RoundWitness),
        ("Equivocation", RunState.Cooldown),
        ("Checkpoint", RunState.Finished),
        ("Pause", RunState.WaitingForMembers),
        ("Resume", RunState.Uninitialized),
        ("SetFutureEpochRates", RunState.Finished),
        ("Settle", RunState.RoundTrain),
    ):
        scene = scenes(phase)
        state, _ = apply(scene.run.state, scene.command(kind), scene.run.now, 7)
        assert state != scene.run.state, (kind, phase)
