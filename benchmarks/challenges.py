"""How soon cheats are ejected in simulated runs whose shares are checked, and how often honest members are.

    python -m benchmarks.challenges                         every kind of cheat, 10 runs each
    python -m benchmarks.challenges --runs 100 --json       as one JSON object
    python -m benchmarks.challenges --kinds collusion --members 16 --cheats 5

Real coordinator and client machines in virtual time (`psyche_core.simulator`), eight members, one of which cheats from the start
(or so many as `--cheats` says; then a run counts as one with an ejection when all of them have gone, in the round of the last),
an epoch of 120 rounds (`--rounds`), no other faults. What a check finds is known there, so this measures the protocol and not
the score: `benchmarks.verification` trains for real. `--faults` adds the simulator's other faults, in runs of 30 rounds without
cheats.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import Counter
from dataclasses import dataclass, replace

from psyche_core.simulator.generate import cheat_script, generate
from psyche_core.simulator.run_result import RunResult
from psyche_core.simulator.script import CHEATS, KINDS, LIES, Script
from psyche_core.simulator.world import run_script
from psyche_core.verification.chances import ejected_within, upper_bound

ROUNDS = 120
WITHIN = 100
FAULTY_ROUNDS = 30
MEMBERS = 8


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one kind of runs. ejected: rounds in which the cheat went, by run. honest: honest members ejected; strikes: theirs.

    honest_members: in each run. undecided: challenges that convicted nobody though the first check failed, or nothing was said.
    step_seconds: virtual seconds of a step, the median of all runs' medians.
    """

    runs: int
    broken: int
    ejected: tuple[int, ...]
    honest: int
    strikes: int
    challenges: int
    undecided: int
    honest_members: int
    step_seconds: float

    def as_json(self, within: int = WITHIN) -> dict[str, object]:
        """As in the JSON output. Shares are of runs, but of honest members where that is said.

        within: rounds in which an ejection counts for `ejected_share`.
        """
        early = sum(height <= within for height in self.ejected)
        return {
            "runs": self.runs,
            "broken": self.broken,
            "ejected_share": early / self.runs,
            "median_round": statistics.median(self.ejected) if self.ejected else None,
            "honest_members_ejected": self.honest,
            "honest_members_ejected_at_most_95": upper_bound(self.honest, self.runs * self.honest_members),
            "strikes_of_honest_members": self.strikes,
            "challenges": self.challenges,
            "challenges_undecided": self.undecided,
            "step_seconds": self.step_seconds,
        }


def figures(scripts: list[Script], cheats: int = 1) -> Figures:
    """Play scripts. cheats: how many members of each cheat; the others are honest."""
    results = [run_script(script) for script in scripts]
    counts: Counter[str] = Counter()
    for result in results:
        counts.update(result.counts)
    return Figures(
        runs=len(results),
        broken=sum(result.failure is not None for result in results),
        ejected=tuple(sorted(height for result in results if (height := _ejected_in(result, cheats)) is not None)),
        honest=counts["honest members ejected for strikes"],
        strikes=counts["strikes of honest members"],
        challenges=sum(count for name, count in counts.items() if name.startswith("challenges ")),
        undecided=counts["challenges UNDECIDED"],
        honest_members=scripts[0].clients - cheats,
        step_seconds=statistics.median(result.step_seconds for result in results),
    )


def _ejected_in(result: RunResult, cheats: int) -> int | None:
    """The round in which the last cheat went; None if not all did."""
    all_gone = result.counts.get("cheats ejected for strikes", 0) >= cheats
    return result.counts.get("round in which a cheat was ejected") if all_gone else None


def faulty(seed: int, percent: int) -> Script:
    """A run with any faults but lies, whose shares are checked."""
    script = generate(seed, rounds=FAULTY_ROUNDS, kinds=tuple(kind for kind in KINDS if kind not in LIES))
    shape = replace(script.shape, verification_percent=percent, rounds_per_epoch=FAULTY_ROUNDS, epoch_time=600)
    return replace(script, shape=shape)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=10, help="runs of each kind (default: 10)")
    parser.add_argument("--percent", type=int, default=10, help="verification_percent (default: 10)")
    parser.add_argument("--kinds", nargs="*", default=["", *CHEATS], help='kinds of cheats, "" for none (default: all)')
    parser.add_argument("--members", type=int, default=MEMBERS, help=f"members of each run (default: {MEMBERS})")
    parser.add_argument("--cheats", type=int, default=1, help="how many of them cheat (default: 1)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"rounds of each run, one epoch (default: {ROUNDS})")
    parser.add_argument("--within", type=int, default=WITHIN, help=f"rounds in which an ejection counts (default: {WITHIN})")
    parser.add_argument("--faults", action="store_true", help="runs with faults instead, without cheats")
    parser.add_argument("--json", action="store_true", help="write one JSON object")
    options = parser.parse_args()

    found: dict[str, Figures] = {}
    if options.faults:
        found["faults"] = figures([faulty(seed, options.percent) for seed in range(options.runs)], 0)
    for kind in [] if options.faults else options.kinds:
        plan = {"members": options.members, "cheats": options.cheats, "steps": options.rounds, "percent": options.percent}
        scripts = [cheat_script(kind, seed=seed, **plan) for seed in range(options.runs)]
        found[kind or "honest"] = figures(scripts, options.cheats if kind else 0)
        if not options.json:
            print(f"{kind or 'honest':18} {found[kind or 'honest'].as_json(options.within)}", flush=True)
    exact = ejected_within(options.within, rate=options.percent / 100, strike=1.0)
    if options.json or options.faults:
        plain = {kind: one.as_json(options.within) for kind, one in found.items()}
        print(json.dumps({"percent": options.percent, "within": options.within, "exact_full_cheat": exact, "cheats": plain}))


if __name__ == "__main__":
    main()
