"""Runs with cheats, checked and unchecked: who is ejected when, what the cheats and the checks cost.

python -m benchmarks.verification [--json] [--seeds 1] [--steps 120] [--percent 10] [--cheats random,stale,…] [--figure FILE]

Eight members train a small Llama on Shakespeare with DisTrO's signs, with the two steps' delay of a run; one of them cheats from
step 10 on. `checked_run` says which parts are real. `ejected_within_100` and `_200` are exact (`verification.chances`), from the
measured share of a cheat's checks that failed; for honest members from the 95 % bound of theirs. bytes_share: bytes of challenges
(signs, opened chunks) over those of payloads, as downloads of a member, computed from the sizes. compute_share: sequences
recomputed over sequences trained.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import llama
from benchmarks.robustness import optimizer_of
from benchmarks.verification.checked_run import CHEATS, LENGTH, CheckedRun, Findings, Plan, outcomes
from psyche_core.verification.chances import ejected_within, ejection_curve, upper_bound
from psyche_core.verification.drawing import CHUNKS

LARGER = (10**8, 10**9)
"""Parameters for which the bytes are computed, too."""

TWO_OF_EIGHT = {6: "flip", 7: "random"}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1, help="trainings of each kind (default: 1)")
    parser.add_argument("--steps", type=int, default=120, help="steps of each training (default: 120)")
    parser.add_argument("--percent", type=int, default=10, help="verification_percent (default: 10)")
    parser.add_argument("--size", choices=llama.SIZES, default="0.2M", help="model (default: 0.2M)")
    parser.add_argument("--cheats", default=",".join(CHEATS), help="which, with commas between (default: all)")
    parser.add_argument("--figure", type=Path, help="draw the loss of a run with two of eight cheating into this file")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    given = parser.parse_args()
    cheats = given.cheats.split(",")
    if not set(cheats) <= set(CHEATS) or given.seeds < 1 or given.steps < 20:
        parser.error(f"--cheats are some of {', '.join(CHEATS)}, --seeds at least 1, --steps at least 20")

    torch.set_num_threads(1)
    plan = Plan(steps=given.steps, percent=given.percent, size=given.size)
    honest = _trained(plan, given.seeds, "honest")
    figures: dict[str, Any] = {
        "size": given.size, "members": plan.members, "steps": plan.steps, "percent": plan.percent, "seeds": given.seeds,
        "honest_loss": _loss(honest), "compute_share": sum(one.recomputed for one in honest) / sum(one.trained for one in honest),
        "bytes_share": bytes_share(plan, honest[0]), "cheats": {},
    }  # fmt: skip
    checked = list(honest)
    for cheat in cheats:
        figures["cheats"][cheat], found = _cheat(plan, cheat, given.seeds, honest=honest)
        checked += found
    figures |= _honest(plan, checked)
    if given.figure is not None:
        figures["two_of_eight"] = _figure(plan, given.figure, honest[0])
    sys.stdout.write(json.dumps(figures) + "\n" if given.json else table(figures))


def _trained(plan: Plan, seeds: int, title: str) -> list[Findings]:
    found = []
    for seed in range(seeds):

        def tell(line: str, *, seed: int = seed) -> None:
            sys.stderr.write(f"{title}, seed {seed}: {line}\n")

        found.append(CheckedRun(replace(plan, seed=seed)).run(tell=tell))
    return found


def _honest(plan: Plan, trainings: Sequence[Findings]) -> dict[str, Any]:
    """What was seen of honest members in all trainings."""
    scores = [score for one in trainings for faked, score in one.scores if not faked]
    failed = sum(not plan.rule.passes(score) for score in scores)
    at_most = upper_bound(failed, len(scores))
    return {
        "honest_checks": len(scores), "honest_checks_failed": failed, "honest_worst_score": max(scores, default=0.0),
        "honest_ejected": sum(len(one.ejected.keys() - _cheats_of(one, plan)) for one in trainings),
        "honest_ejected_in_500_at_most": ejected_within(500, rate=plan.percent / 100, strike=at_most),
    }  # fmt: skip


def _cheats_of(found: Findings, plan: Plan) -> frozenset[int]:
    """The member that cheats in a training with one cheat: the last, if anybody was found to have faked."""
    return frozenset({plan.members - 1}) if any(faked for faked, _ in found.scores) else frozenset()


def _cheat(plan: Plan, cheat: str, seeds: int, *, honest: Sequence[Findings]) -> tuple[dict[str, Any], list[Findings]]:
    """Figures of one cheat, and the checked trainings."""
    cheating = plan.members - 1
    one = replace(plan, cheats={cheating: cheat})
    checked = _trained(one, seeds, cheat)
    unchecked = _trained(replace(one, percent=0), seeds, f"{cheat}, unchecked")
    scores = [score for found in checked for faked, score in found.scores if faked]
    caught = sum(not plan.rule.passes(score) for score in scores)
    rounds = [found.ejected[cheating] - plan.begins for found in checked if cheating in found.ejected]
    strike = caught / len(scores) if scores else 0.0
    curve = ejection_curve(200, rate=plan.percent / 100, strike=strike)
    figures = {
        "ejected_share": len(rounds) / seeds,
        "median_round": statistics.median(rounds) if rounds else None,
        "rounds": rounds, "checks": len(scores), "checks_failed": caught, "least_score": min(scores, default=None),
        "loss_cost": _loss(checked) - _loss(honest), "loss_cost_unchecked": _loss(unchecked) - _loss(honest),
        "outcomes": [outcomes(found) for found in checked],
        "ejected_within_100": curve[100], "ejected_within_200": curve[200],
    }  # fmt: skip
    return figures, checked


def _loss(found: Sequence[Findings]) -> float:
    """Mean validation loss at the end."""
    return statistics.mean(one.losses[max(one.losses)] for one in found)


def bytes_share(plan: Plan, found: Findings) -> dict[str, float]:
    """Bytes that passing challenges add to all downloads, over those of payloads: of this model, and of larger ones.

    A challenge costs its verifier the signs (a bit a parameter) and 32 bytes a chunk, and each member 16 opened chunks, of two
    deltas and one gradient (float32), which do not grow with the model. A payload, which does, goes to each other member.
    """
    replay = optimizer_of("signs", llama.build(plan.size, sequence_length=LENGTH)).replay
    assert replay is not None
    chunks = sum(group.count for group in replay.groups)
    values = sum(group.count * group.size for group in replay.groups)
    opened = CHUNKS * 3 * 4 * max(group.size for group in replay.groups)
    shares = {}
    for size in (values, *LARGER):
        scale = size / values
        challenge = size / 8 + 32 * chunks * scale + (plan.members - 1) * opened
        shares[f"{size:.1e}"] = plan.percent / 100 * challenge / ((plan.members - 1) * found.payload_bytes * scale)
    return shares


def _figure(plan: Plan, path: Path, honest: Findings) -> dict[str, float]:
    """Draw the loss of a run with two of eight cheating: unchecked, checked, and of the honest run."""
    from matplotlib.figure import Figure

    cheating = replace(plan, cheats=TWO_OF_EIGHT)
    curves = {
        "unchecked": _trained(replace(cheating, percent=0), 1, "two of eight, unchecked")[0].losses,
        f"checked ({plan.percent} %)": _trained(cheating, 1, "two of eight")[0].losses,
        "all honest": honest.losses,
    }
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot(
        xlabel="step", ylabel="validation loss, nats per token", title="Two of eight members cheat from step 10 on"
    )
    for title, losses in curves.items():
        axes.plot(list(losses), list(losses.values()), marker="o", label=title)
    axes.legend()
    figure.savefig(path)
    return {title: losses[max(losses)] for title, losses in curves.items()}


def table(figures: dict[str, Any]) -> str:
    """The figures for people."""
    failed, checks = figures["honest_checks_failed"], figures["honest_checks"]
    shares = ", ".join(f"{share:.1%} of {size} parameters" for size, share in figures["bytes_share"].items())
    lines = [
        f"{figures['members']} members, {figures['steps']} steps, {figures['percent']} % checked, {figures['seeds']} seeds",
        f"honest: loss {figures['honest_loss']:.3f}, {failed} of {checks} checks failed, T {figures['honest_worst_score']:.2g}",
        f"cost: {figures['compute_share']:.1%} of compute; of bytes: {shares}",
        "cheat      ejected  median round  least score  loss cost  unchecked  within 100",
    ]
    for name, one in figures["cheats"].items():
        median = "-" if one["median_round"] is None else f"{one['median_round']:g}"
        least = "-" if one["least_score"] is None else f"{one['least_score']:.2g}"
        lines.append(
            f"{name:<10} {one['ejected_share']:>7.0%}  {median:>12}  {least:>11}  {one['loss_cost']:>+9.3f}  "
            f"{one['loss_cost_unchecked']:>+9.3f}  {one['ejected_within_100']:>10.2%}"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
