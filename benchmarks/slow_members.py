"""What one member that slows the others down costs them in virtual time, with real coordinator and machines.

    python -m benchmarks.slow_members [--seeds 3] [--steps 120] [--kinds never-states,all-ones] [--json]

For each way to slow a run down, with one such member of four and one of eight: the run is played with it and without it.
    step_ratio  the median step after the first ten, with it over without it     (goal: at most 1.2 with one of four)
    time_ratio  the whole run, with it over without it                          (goal: at most 1.3 with one of eight)
Medians over the seeds. A kind whose run breaks an invariant is named with it, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from psyche_core.simulator.compare import MAX_STEP_RATIO, MAX_TIME_RATIO, cost_of
from psyche_core.simulator.generate import LONE_STEPS
from psyche_core.simulator.run_result import SimFailure
from psyche_core.simulator.script import LIES, SLOWING_LIES

SIZES = (4, 8)


def main() -> int:
    """Run the benchmark; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=LONE_STEPS)
    parser.add_argument("--kinds", default=",".join(SLOWING_LIES), help=f"of {', '.join(LIES)}")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    rows: list[dict[str, Any]] = []
    for kind in options.kinds.split(","):
        for members in SIZES:
            rows.append(_row(kind, members, seeds=range(options.seeds), steps=options.steps))
            if not options.json:
                print("  ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
    good = [row for row in rows if "broken" not in row]
    worst = {
        "step_ratio_of_4": max((row["step_ratio"] for row in good if row["members"] == 4), default=None),
        "time_ratio_of_8": max((row["time_ratio"] for row in good if row["members"] == 8), default=None),
    }
    if options.json:
        print(
            json.dumps({**worst, "goals": {"step_ratio_of_4": MAX_STEP_RATIO, "time_ratio_of_8": MAX_TIME_RATIO}, "rows": rows})
        )
    else:
        print(f"worst: {worst}")
    return 0 if len(good) == len(rows) else 1


def _row(kind: str, members: int, *, seeds: range, steps: int) -> dict[str, Any]:
    try:
        cost = cost_of(kind, members=members, seeds=seeds, steps=steps)
    except SimFailure as failure:
        return {"kind": kind, "members": members, "broken": str(failure)}

    return {
        "kind": kind,
        "members": members,
        "step_seconds": round(cost.step, 3),
        "honest_step_seconds": round(cost.honest_step, 3),
        "step_ratio": round(cost.step_ratio, 3),
        "time_ratio": round(cost.time_ratio, 3),
    }


if __name__ == "__main__":
    sys.exit(main())
