"""Random commands from honest, late, mistaken and hostile senders: the invariants of `conftest.check` hold after each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck as HypothesisCheck
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from psyche_core.coordinator import commands
from psyche_core.coordinator.errors import NAMES
from psyche_core.coordinator.plain import from_plain, to_plain
from psyche_core.errors import CoordinatorError
from psyche_core.run_config import Choice
from psyche_core.types import RunState, bitmap


def machine(play: Any, members: Any) -> type[RuleBasedStateMachine]:
    """The machine, over a run of at most 12 steps with every limit small."""

    class Commands(RuleBasedStateMachine):
        numbers = Bundle("numbers")

        def __init__(self) -> None:
            super().__init__()
            self.run = play(
                0,
                init_min_clients=2,
                min_clients=2,
                total_steps=12,
                rounds_per_epoch=5,
                epoch_time=400,
                global_batch_size_start=3,
                global_batch_size_end=7,
                global_batch_size_warmup_tokens=64 * 30,
            )

        def send(self, command: commands.Command) -> None:
            before = self.run.state
            refusal = None
            try:
                self.run.do(command)
            except CoordinatorError as error:
                refusal = error.name
            assert refusal is None or (refusal in NAMES and self.run.state is before)

        @rule(seconds=st.sampled_from([0, 1, 2, 3, 5, 10, 30, 40]))
        def tick(self, seconds: int) -> None:
            self.run.now += seconds
            self.send(commands.Tick())

        @rule(number=st.integers(0, 6))
        def join(self, number: int) -> None:
            self.send(commands.Join(members(number)))

        @rule(number=st.integers(0, 6), luck=st.integers(0, 3))
        def withdraw(self, number: int, luck: int) -> None:
            if luck == 0:
                self.send(commands.Withdraw(members(number)))

        @rule()
        def everybody_ready(self) -> None:
            for slot in range(len(self.run.state.epoch.clients)):
                self.send(self.run.ready(slot))

        @rule(blind=st.sets(st.integers(0, 5), max_size=2), count=st.integers(1, 6))
        def witnesses_state(self, blind: set[int], count: int) -> None:
            if self.run.state.current_round is None:
                return
            height = self.run.round.height
            for slot in self.run.elected[:count]:
                if self.run.state.current_round is not None and self.run.round.height == height:
                    seen = set(self.run.shares(height - 1)) - blind
                    self.send(self.run.statement(slot, seen=seen))

        @rule(slot=st.integers(0, 5), bits=st.sets(st.integers(0, 8)), height=st.integers(0, 6), epoch=st.integers(0, 2))
        def odd_statement(self, slot: int, bits: set[int], height: int, epoch: int) -> None:
            if self.run.state.current_round is None or slot >= len(self.run.state.epoch.clients):
                return
            good = self.run.statement(slot, seen=[])
            statement = replace(good.statement, participants=bitmap(bits), height=height, epoch=epoch)
            self.send(replace(good, statement=statement))

        @rule(sender=st.integers(0, 6), slots=st.sets(st.integers(0, 6), max_size=2))
        def health(self, sender: int, slots: set[int]) -> None:
            self.send(commands.HealthCheck(sender=members(sender), slots=tuple(slots)))

        @rule(sender=st.integers(0, 6), name=st.sampled_from(["Hub", "Gcs", "P2P"]))
        def checkpoint(self, sender: int, name: str) -> None:
            settings_ = {"bucket": "b"} if name == "Gcs" else {"repo_id": "r"}
            self.send(commands.Checkpoint(sender=members(sender), location=Choice(name, settings_)))

        @rule(luck=st.integers(0, 9))
        def pause_or_resume(self, luck: int) -> None:
            if self.run.state.run_state in (RunState.Paused, RunState.Finished):
                self.send(commands.Resume())
            elif luck == 0:
                self.send(commands.Pause())

        @invariant()
        def travels(self) -> None:
            assert from_plain(to_plain(self.run.state)) == self.run.state

    return Commands


def test_random_commands(play: Any, members: Any) -> None:
    run_state_machine_as_test(
        machine(play, members),
        settings=settings(
            max_examples=60, stateful_step_count=60, deadline=None, suppress_health_check=list(HypothesisCheck), derandomize=True
        ),
    )
