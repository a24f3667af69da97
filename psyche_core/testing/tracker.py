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
from psyche_core.testing.contracts import CONTRACTS, Contract
from psyche_core.testing.needs_pytest import pytest
from psyche_core.testing.sentences import shown

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

    contract: ClassVar[Contract] = CONTRACTS["tracker"]
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
                assert isinstance(tracker, Tracker), (
                    f"create must give a psyche_core.interfaces.Tracker, got a {type(tracker).__name__}"
                )
                use(tracker)
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(TIMEOUT)
        assert not thread.is_alive(), (
            f"each method of a tracker must return; what it was given is not kept after {TIMEOUT:g} s: it hangs"
        )
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
            loss, tokens = (kept.figures.get((key, step)) for key in ("train/loss", "train/total_tokens"))
            assert loss == pytest.approx(4.0 - step / 10), (
                f"log_figures must keep train/loss of step {step}, {4.0 - step / 10:.1f}, read back was {shown(loss)}"
            )
            assert tokens == step * 2**20, (
                f"log_figures must keep train/total_tokens of step {step}, {step * 2**20}, read back was {shown(tokens)}"
            )
        for name, wanted in (("optimizer", "Distro"), ("total_steps", "100")):
            assert kept.config.get(name) == wanted, (
                f"a tracker must keep the run's settings (TrackedRun.config): {name} is {wanted}, read back was "
                f"{shown(kept.config.get(name))}"
            )

    def test_a_run_that_goes_back_is_kept_too(self, tmp_path: Path) -> None:
        def use(tracker: Tracker) -> None:
            for step in (1, 2, 3, 2, 3, 4):
                tracker.log_figures(step, {"train/lr": step / 100}, time=1e9 + step)
            tracker.log_figures(2, {"validation/loss": 3.5}, time=1e9 + 9)
            tracker.finish(success=False, reason="the coordinator is gone")

        self.keep(tmp_path, use)
        figures = self.read(tmp_path).figures
        came = {step: figures.get(("train/lr", step)) for step in (1, 2, 3, 4)}
        assert came == pytest.approx({1: 0.01, 2: 0.02, 3: 0.03, 4: 0.04}), (
            f"steps may go back, and of a key that comes again the later value counts: train/lr of step n is n / 100, read back "
            f"was {shown(came)}"
        )
        validation = figures.get(("validation/loss", 2))
        assert validation == 3.5, (
            f"steps may go back: validation/loss of step 2, told after step 4, is 3.5, read back was {shown(validation)}"
        )

    def test_every_key_there_is_can_be_kept(self, tmp_path: Path) -> None:
        keys = [Sample(metric, ("x", "y")[: len(metric.labels)], 0.5).key for metric in METRICS.values() if metric.key]

        def use(tracker: Tracker) -> None:
            tracker.log_figures(7, dict.fromkeys(keys, 0.5), time=1e9)
            tracker.finish(success=True, reason="over")

        self.keep(tmp_path, use)
        figures = self.read(tmp_path).figures
        lost = sorted(set(keys) - {key for key, step in figures if step == 7})
        assert not lost, (
            f"every key of psyche_core.telemetry.metrics must be kept, {len(lost)} of {len(keys)} are not: {shown(lost)}"
        )

    def test_texts_come_back_as_they_were(self, tmp_path: Path) -> None:
        def use(tracker: Tracker) -> None:
            tracker.log_text(3, "prompts/0", "To be or not", time=1e9)
            tracker.log_text(5, "prompts/1", ODD_TEXT, time=1e9 + 1)
            tracker.finish(success=True, reason="over")

        self.keep(tmp_path, use)
        texts = self.read(tmp_path).texts
        for key, step, text in (("prompts/0", 3, "To be or not"), ("prompts/1", 5, ODD_TEXT)):
            assert texts.get((key, step)) == text, (
                f"a text may contain anything and must be kept as it is: {key} of step {step} is {shown(text)}, read back was "
                f"{shown(texts.get((key, step)))}"
            )

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
        loss = self.read(folder).figures.get(("train/loss", 1))
        assert loss == 2.0, f"a run may have any name: train/loss of the run {run_id!r} is 2.0, read back was {shown(loss)}"
        above = [path.name for path in tmp_path.rglob("*") if path.parent in (tmp_path, tmp_path / "one")]
        assert above == ["one", "two"], (
            f"a run's name must not lead out of the tracker's folder; for {run_id!r} there are {shown(above)} above it, expected "
            "only the folders one and two"
        )

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
            came = {figures.get(("train/loss", step)) for step in range(1, 6)}
            assert came == {number}, (
                f"each tracker has one member: train/loss of member {number} is {number} in all steps, read back "
                f"was {shown(came)}"
            )

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
        names = ("signal handlers", "the current folder", "handlers of the root logger", "sys.exit or sys.excepthook")
        changed = [name for name, was, now in zip(names, before, after, strict=True) if was != now]
        assert before == after, f"a tracker must not change what belongs to the process, it changed {', '.join(changed)}"
        written = capfd.readouterr()
        assert written == ("", ""), f"a tracker must not write to the terminal, it wrote {shown(written.out + written.err)}"

    # ---- its registration

    def test_its_options_begin_with_its_name_and_are_explained(self) -> None:
        settings = self.registration.settings
        for name, known in {} if settings is None else settings.model_fields.items():
            assert name.startswith(f"{self.registration.name}_"), (
                f"the names of a tracker's settings must begin with its own, {self.registration.name}_, got {name}: they are "
                "options of the client"
            )
            assert known.description, f"the setting {name} must say what it means; give Field(description=…)"

    def test_working_settings_pass_its_check(self, tmp_path: Path) -> None:
        if self.registration.check is not None:
            self.registration.check(self.settings(tmp_path))

    def test_registering_imports_nothing_heavy(self) -> None:
        script = (
            f"import sys, {self.hooks} as hooks\nhooks.psyche_register_trackers()\n"
            f"print([name for name in {(*self.heavy, 'torch', 'numpy')!r} if name in sys.modules])"
        )
        done = subprocess.run(  # noqa: S603  # our own interpreter
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, f"another process cannot register from {self.hooks}: {done.stderr.strip()[-500:]}"
        assert done.stdout.strip() == "[]", (
            f"registering must import nothing heavy, got {done.stdout.strip()}; import it in the factory"
        )
