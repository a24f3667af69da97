"""Conformance of trackers: what `psyche_core.interfaces.tracker` promises and asks for. A plugin's whole test is:

    class TestMyTracker(TrackerConformance):
        registration = MY_REGISTRATION  # as its hook returns it
        hooks = "my_plugin.hooks"
        heavy = ("my_service",)

        def settings(self, folder: Path) -> MySettings:
            return MySettings(my_service_dir=folder)  # without a network

        def read(self, folder: Path) -> Kept:
            ...  # what it kept there, read back by something else than the tracker

Every call of the tracker happens in a thread of its own, as in a client.
"""

# ruff: noqa: D102  # the tests' names describe them

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from psyche_core.hookspecs import TrackerContext, TrackerRegistration
from psyche_core.interfaces.tracker import TrackedRun, Tracker
from psyche_core.telemetry.metrics import METRICS, Sample
from psyche_core.testing.conformance import Conformance
from psyche_core.testing.needs_pytest import pytest

TIMEOUT = 60.0
ODD_TEXT = "\x1b[31m<b>& ünïcode\n\u202e `code`"
"""A text as a model may write it."""


@dataclass(slots=True)
class Kept:
    """What a tracker kept: values and texts by key and step; settings of the run by name, as text."""

    figures: dict[tuple[str, int], float] = field(default_factory=dict)
    texts: dict[tuple[str, int], str] = field(default_factory=dict)
    config: dict[str, str] = field(default_factory=dict)


def tracked(run_id: str = "first-light", member: str = "ab" * 32) -> TrackedRun:
    """A run as trackers get it."""
    return TrackedRun(run_id=run_id, member=member, config={"run_id": run_id, "total_steps": 100, "optimizer": "Distro"})


class TrackerConformance(Conformance):
    """Inherit, set `registration`, `hooks` and `heavy`, and override `settings` and `read`."""

    registration: ClassVar[TrackerRegistration]
    hooks: ClassVar[str]
    heavy: ClassVar[tuple[str, ...]] = ()

    def settings(self, folder: Path) -> Any:
        raise NotImplementedError

    def read(self, folder: Path) -> Kept:
        raise NotImplementedError

    def keep(self, folder: Path, use: Callable[[Tracker], None], *, run: TrackedRun | None = None) -> None:
        """Make a tracker and use it, in one thread that is not the main one."""
        failures: list[BaseException] = []

        def work() -> None:
            try:
                tracker = self.registration.create(TrackerContext(run=run or tracked(), settings=self.settings(folder)))
                assert isinstance(tracker, Tracker)
                use(tracker)
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(TIMEOUT)
        assert not thread.is_alive(), "the tracker hangs"
        if failures:
            raise failures[0]

    # ---- what it keeps

    def test_figures_and_settings_come_back(self, tmp_path: Path) -> None:
        def use(tracker: Tracker) -> None:
            for step in range(1, 31):
                tracker.log_figures(step, {"train/loss": 4.0 - step / 10, "train/total_tokens": step * 2**20}, time=1e9 + step)
            tracker.finish(success=True, reason="the run finished")

        self.keep(tmp_path, use)
        kept = self.read(tmp_path)
        for step in range(1, 31):
            assert kept.figures["train/loss", step] == pytest.approx(4.0 - step / 10)
            assert kept.figures["train/total_tokens", step] == step * 2**20
        assert kept.config["optimizer"] == "Distro"
        assert kept.config["total_steps"] == "100"

    def test_a_run_that_goes_back_is_kept_too(self, tmp_path: Path) -> None:
        def use(tracker: Tracker) -> None:
            for step in (1, 2, 3, 2, 3, 4):
                tracker.log_figures(step, {"train/lr": step / 100}, time=1e9 + step)
            tracker.log_figures(2, {"validation/loss": 3.5}, time=1e9 + 9)
            tracker.finish(success=False, reason="the coordinator is gone")

        self.keep(tmp_path, use)
        figures = self.read(tmp_path).figures
        assert {step: figures["train/lr", step] for step in (1, 2, 3, 4)} == pytest.approx({1: 0.01, 2: 0.02, 3: 0.03, 4: 0.04})
        assert figures["validation/loss", 2] == 3.5

    def test_every_key_there_is_can_be_kept(self, tmp_path: Path) -> None:
        keys = [Sample(metric, ("x", "y")[: len(metric.labels)], 0.5).key for metric in METRICS.values() if metric.key]

        def use(tracker: Tracker) -> None:
            tracker.log_figures(7, dict.fromkeys(keys, 0.5), time=1e9)
            tracker.finish(success=True, reason="over")

        self.keep(tmp_path, use)
        figures = self.read(tmp_path).figures
        assert {key for key, step in figures if step == 7} >= set(keys)

    def test_texts_come_back_as_they_were(self, tmp_path: Path) -> None:
        def use(tracker: Tracker) -> None:
            tracker.log_text(3, "prompts/0", "To be or not", time=1e9)
            tracker.log_text(5, "prompts/1", ODD_TEXT, time=1e9 + 1)
            tracker.finish(success=True, reason="over")

        self.keep(tmp_path, use)
        texts = self.read(tmp_path).texts
        assert texts["prompts/0", 3] == "To be or not"
        assert texts["prompts/1", 5] == ODD_TEXT

    def test_a_run_without_any_step_is_no_error(self, tmp_path: Path) -> None:
        self.keep(tmp_path, lambda tracker: tracker.finish(success=False, reason="left"))

    @pytest.mark.parametrize("run_id", ["../../out", "a/b", ".", "Zürich 2", "x" * 32])
    def test_a_runs_name_may_be_anything(self, tmp_path: Path, run_id: str) -> None:
        folder = tmp_path / "one" / "two"
        folder.mkdir(parents=True)

        def use(tracker: Tracker) -> None:
            tracker.log_figures(1, {"train/loss": 2.0}, time=1e9)
            tracker.finish(success=True, reason="over")

        self.keep(folder, use, run=tracked(run_id))
        assert self.read(folder).figures["train/loss", 1] == 2.0
        assert [path.name for path in tmp_path.rglob("*") if path.parent in (tmp_path, tmp_path / "one")] == ["one", "two"]

    def test_two_at_once_do_not_mix(self, tmp_path: Path) -> None:
        """As with several members in one program."""
        folders = [tmp_path / name for name in ("first", "second")]
        for folder in folders:
            folder.mkdir()
        both = threading.Barrier(2, timeout=TIMEOUT)

        def member(number: int) -> None:
            def use(tracker: Tracker) -> None:
                both.wait()
                for step in range(1, 6):
                    tracker.log_figures(step, {"train/loss": float(number)}, time=1e9)
                both.wait()
                tracker.finish(success=True, reason="over")

            self.keep(folders[number], use, run=tracked(member=f"{number}" * 64))

        threads = [threading.Thread(target=member, args=(number,), daemon=True) for number in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT)
        for number, folder in enumerate(folders):
            figures = self.read(folder).figures
            assert {figures["train/loss", step] for step in range(1, 6)} == {number}

    # ---- what it leaves alone

    def test_it_leaves_process_and_terminal_alone(self, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = (
            [signal.getsignal(number) for number in numbers],
            Path.cwd(),
            list(logging.getLogger().handlers),
            (sys.exit, sys.excepthook),
        )

        def use(tracker: Tracker) -> None:
            tracker.log_figures(1, {"train/loss": 2.0}, time=1e9)
            tracker.finish(success=True, reason="over")

        self.keep(tmp_path, use)
        after = (
            [signal.getsignal(number) for number in numbers],
            Path.cwd(),
            list(logging.getLogger().handlers),
            (sys.exit, sys.excepthook),
        )
        assert before == after
        assert capfd.readouterr() == ("", "")

    # ---- its registration

    def test_its_options_begin_with_its_name_and_are_explained(self) -> None:
        settings = self.registration.settings
        for name, known in {} if settings is None else settings.model_fields.items():
            assert name.startswith(f"{self.registration.name}_"), name
            assert known.description, name

    def test_working_settings_pass_its_check(self, tmp_path: Path) -> None:
        if self.registration.check is not None:
            self.registration.check(self.settings(tmp_path))

    def test_registering_imports_nothing_heavy(self) -> None:
        script = (
            f"import sys, {self.hooks} as hooks\nhooks.psyche_register_trackers()\n"
            f"print([name for name in {(*self.heavy, 'torch', 'numpy')!r} if name in sys.modules])"
        )
        done = subprocess.run(  # noqa: S603  # our own interpreter
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
        )
        assert done.stdout.strip() == "[]"
