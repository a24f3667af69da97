"""The coordinator in Python and the program on a chain, fed the same random commands; after each the images are compared.

    python -m plugins.backend_solana.tests.svm.differential [--sequences 2000] [--commands 60] [--first 0] [--program FILE]

Bytes are compared, not values, and refusals by name. The command prints how often each command was accepted and refused, and in
which phase, so that a comparison of nothing shows. One thing may differ: a signature that is no signature is refused by the
chain's Ed25519 program before the coordinator can name what else is wrong.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from plugins.backend_solana.tests.svm import runs
from plugins.backend_solana.tests.svm.coordinator_svm import (
    NOT_SIGNED,
    PROGRAM_FILE,
    CoordinatorSvm,
    member,
    nothing_due,
    slot_hashes,
)
from plugins.backend_solana.tests.svm.random_commands import RandomCommands
from psyche_backend_solana.layouts.beacon import Beacon
from psyche_core.coordinator import apply, commands
from psyche_core.coordinator import canonical_image as image
from psyche_core.coordinator.commands import Command
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.errors import CoordinatorError
from psyche_core.types import RunState

FIRST_SECOND = 1_700_000_000
LAST_COMMANDS = 8
"""Commands that a finished run is sent."""

STEPS = (0, 1, 1, 2, 2, 3, 8)
"""Slots between two commands."""
REMEMBERED = 40
"""Slots whose hashes this chain remembers; a real one, which remembers 512, takes longer to set up for each command."""
LONG_STEP, LONG_STEP_CHANCE = 80, 0.02
"""More slots than are remembered."""

UNSEEING = (commands.UpdateConfig, commands.SetFutureEpochRates)
"""What an owner writes down looks for no hash."""

SIZES = (1, 2, 3, 3, 4, 5, 5, 8, 12, 16)


@dataclass(slots=True)
class Coverage:
    """What was compared.

    accepted, refused: command kind -> how often; names: refusals; states: phase -> commands sent in it; seeds: what they were
    made of.
    """

    sequences: int = 0
    accepted: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    names: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    states: Counter[str] = field(default_factory=Counter)
    units: Counter[str] = field(default_factory=Counter)
    seeds: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)

    @property
    def commands(self) -> int:
        """How many commands were sent."""
        return sum(self.accepted.values()) + sum(self.refused.values())

    def table(self) -> str:
        """The counts as text."""
        lines = [f"{'command':22} {'accepted':>9} {'refused':>9} {'most units':>11}"]
        kinds = sorted({*self.accepted, *self.refused})
        lines += [f"{kind:22} {self.accepted[kind]:9,} {self.refused[kind]:9,} {self.units[kind]:11,}" for kind in kinds]
        lines += ["", f"{'phase':22} {'commands':>9}", *(f"{name:22} {count:9,}" for name, count in self.states.most_common())]
        lines += ["", f"{'refusal':28} {'times':>9}", *(f"{name:28} {count:9,}" for name, count in self.names.most_common())]
        lines += ["", f"{'event':28} {'times':>9}", *(f"{name:28} {count:9,}" for name, count in self.events.most_common())]
        lines += ["", f"{'seed':28} {'times':>9}", *(f"{name:28} {count:9,}" for name, count in self.seeds.most_common())]
        lines += ["", f"{'verdict':28} {'times':>9}", *(f"{name:28} {count:9,}" for name, count in self.verdicts.most_common())]
        return "\n".join(lines)


class Difference(Exception):
    """The two coordinators disagree."""


class Comparison:
    """One chain, on which one run after the other is compared. members: how many clients a run may have."""

    def __init__(self, program: Path = PROGRAM_FILE, *, members: int = max(SIZES)) -> None:
        self.chain = CoordinatorSvm(members=members + 1, program=program)
        self.coverage = Coverage()
        self._slot = 1000
        self._steps = Random(0)

    def sequence(self, number: int, *, length: int) -> None:
        """Compare the run of this number. A difference is noted, and ends it."""
        random = Random(number)
        members = random.choice(SIZES)
        drawn = RandomCommands(random, members)
        begin = None
        if random.random() < 0.33:
            fresh = self.chain.fresh(drawn.config, drawn.model)
            begin = runs.midway(random, fresh, [member(place).signer for place in range(members)])
        self.play(drawn, length, name=f"sequence {number}", begin=begin)

    def play(self, drawn: RandomCommands, length: int, *, name: str = "run", begin: CoordinatorState | None = None) -> None:
        """Compare a run of so many commands. begin: where it does, None for a new one; that of a finished one ends early."""
        self.coverage.sequences += 1
        now = FIRST_SECOND
        self._steps = Random(f"slots of {name}")
        try:
            self.chain.begin(begin)
            state = begin
            if state is None:
                fresh = self.chain.fresh(drawn.config, drawn.model)
                state = self.compare(fresh, commands.UpdateConfig(drawn.config, drawn.model), now)
            after_the_end = 0
            for _ in range(length):
                command = drawn.next(state)
                now += drawn.seconds(state, command)
                state = self.compare(state, command, now)
                after_the_end += state.run_state is RunState.Finished
                if after_the_end > LAST_COMMANDS:
                    break
        except Difference as difference:
            self.coverage.differences.append(f"{name}: {difference}")

    def compare(self, state: CoordinatorState, command: Command, now: int) -> CoordinatorState:
        """The state after a command, the same on both sides. Raises Difference."""
        self._slot += LONG_STEP if self._steps.random() < LONG_STEP_CHANCE else self._steps.choice(STEPS)
        hashes = slot_hashes(self._slot, REMEMBERED)
        seed = self.chain.at(now, self._slot, hashes)
        kind, refusal = type(command).__name__, None
        before, old = state, self.chain.beacon
        beacon = looked = old if isinstance(command, UNSEEING) else old.looked(self._slot, hashes)
        try:
            state, events = apply(state, command, now, seed)
            if any(isinstance(event, commands.EpochStarted | commands.RoundStarted) for event in events):
                self.coverage.seeds["of a hash" if looked.known else "of clock and slot"] += 1
                beacon = Beacon(self._slot)
            self.coverage.events.update(type(event).__name__ for event in events)
            closed = (event for event in events if isinstance(event, commands.ChallengeClosed))
            self.coverage.verdicts.update(f"{event.outcome}{', strikes' if event.strikes else ''}" for event in closed)
        except CoordinatorError as error:
            refusal = error.name
        if looked == old:
            refusal = refusal or nothing_due(command, before, state)
        answer = self.chain.do(command, before)
        self.coverage.states[before.run_state.name] += 1
        self.coverage.units[kind] = max(self.coverage.units[kind], answer.units)
        if refusal is None:
            self.coverage.accepted[kind] += 1
        else:
            self.coverage.refused[kind] += 1
            self.coverage.names[refusal] += 1
        if answer.refusal != refusal and not (answer.refusal == NOT_SIGNED and refusal is not None):
            message = f"{command} in {before.run_state.name}: expected {refusal}, got {answer.refusal} {answer.logs[-3:]}"
            raise Difference(message)

        if refusal is None:
            self.coverage.seeds["hash taken in"] += looked != old and looked.known
            self.coverage.seeds["hash forgotten"] += looked != old and not looked.known
        beacon = beacon if refusal is None else old
        if self.chain.beacon != beacon:
            message = f"{command} in {before.run_state.name}: expected {beacon}, got {self.chain.beacon}"
            raise Difference(message)

        expected, got = image.encode(state), self.chain.image
        if expected != got:
            place = next(place for place, pair in enumerate(zip(expected, got, strict=True)) if pair[0] != pair[1])
            message = f"{command} in {before.run_state.name}: byte {place} is {got[place]}, expected {expected[place]}"
            raise Difference(message)

        return state


def main(arguments: list[str]) -> int:
    """Compare, print what was compared; 1 when there was a difference."""
    parser = argparse.ArgumentParser(description="Compare the coordinator in Python with the program on a chain.")
    parser.add_argument("--sequences", type=int, default=2000)
    parser.add_argument("--commands", type=int, default=60, help="of each sequence")
    parser.add_argument("--first", type=int, default=0, help="number of the first sequence")
    parser.add_argument("--program", type=Path, default=PROGRAM_FILE)
    wanted = parser.parse_args(arguments)
    comparison = Comparison(wanted.program)
    begun = time.monotonic()
    for number in range(wanted.first, wanted.first + wanted.sequences):
        comparison.sequence(number, length=wanted.commands)
        if len(comparison.coverage.differences) >= 5:
            break
    coverage = comparison.coverage
    print(coverage.table())
    seconds = time.monotonic() - begun
    found = len(coverage.differences)
    print(f"\n{coverage.sequences:,} sequences, {coverage.commands:,} commands, {found} differences, {seconds:.1f} s")
    for difference in coverage.differences:
        print(difference)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
