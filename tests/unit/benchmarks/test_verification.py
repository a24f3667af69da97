"""The checked training of `benchmarks.verification`: honest members pass, a cheat fails each check, and its table is complete."""

from __future__ import annotations

import pytest
import torch

from benchmarks.verification.__main__ import _cheat, bytes_share, table
from benchmarks.verification.checked_run import CheckedRun, Findings, Plan, outcomes


@pytest.fixture(scope="module")
def checked() -> Findings:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    found = CheckedRun(Plan(members=5, steps=16, begins=3, percent=60, cheats={4: "flip"})).run(measure_every=7)
    torch.set_num_threads(threads)
    return found


def test_honest_checks_pass_and_the_cheats_fail(checked: Findings) -> None:
    assert max(score for faked, score in checked.scores if not faked) < 0.005
    assert min(score for faked, score in checked.scores if faked) > 0.05


def test_the_cheat_is_ejected_and_nobody_else(checked: Findings) -> None:
    assert set(checked.ejected) == {4}
    found = outcomes(checked)
    assert found["passed"] > 0
    assert found["guilty"] == 2
    assert found["false_accusation"] == found["silence"] == 0
    assert 0 < checked.recomputed < checked.trained


def test_the_table_has_a_row_for_a_cheat(checked: Findings) -> None:
    plan = Plan(members=4, steps=10, begins=3, percent=100)
    one, _ = _cheat(plan, "quarter", 1, honest=[checked])
    assert one["checks_failed"] == one["checks"] > 0
    figures = {
        "members": 8, "steps": 12, "percent": 60, "seeds": 1, "honest_loss": 6.0, "honest_checks": 9, "honest_checks_failed": 0,
        "honest_worst_score": 1e-4, "compute_share": 0.1, "bytes_share": bytes_share(plan, checked), "cheats": {"quarter": one},
    }  # fmt: skip
    assert table(figures).splitlines()[-1].startswith("quarter")
