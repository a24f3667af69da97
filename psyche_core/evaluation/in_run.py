"""Evaluations of a client while it trains: a thread of low priority that works when the trainer does not need the model.

Prompts are answered by the first model, then at most every PROMPT_SECONDS, and once more at the end. Tasks are measured again and
again, each time completely. A task that fails is reported once and then left out; training is not affected.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from psyche_core.errors import PsycheError
from psyche_core.evaluation.spare_time import Reclaimed, SpareTime, SpareTimeOver
from psyche_core.telemetry import events as telemetry

PROMPT_SECONDS = 30.0
PAUSE_SECONDS = 1.0
"""Pause between two checks of whether the model has changed since it was measured."""

PROMPT_CHARACTERS = 400
"""Longest text in an event."""

_LOWEST_PRIORITY = 19


@dataclass(frozen=True, slots=True)
class Plan:
    """The evaluations. tasks: of lm-evaluation-harness. documents: most of each task, None for all. prompts: the prompt task."""

    tasks: tuple[str, ...] = ()
    include: tuple[Path, ...] = ()
    shots: int = 0
    seed: int = 42
    documents: int | None = None
    prompts: bool = False


class InRunEvaluator:
    """Carries out a plan in a thread.

    spare: lends the model. files: returns the model's small files by name, from which the tokenizer is read. report: called with
    events, in the evaluator's thread.
    """

    def __init__(
        self, plan: Plan, spare: SpareTime, files: Callable[[], Mapping[str, bytes]], report: Callable[[telemetry.Event], None]
    ) -> None:
        self._plan = plan
        self._spare = spare
        self._files = files
        self._report = report
        self._tokenizer: Any = None
        self._over = threading.Event()
        self._last_wanted = threading.Event()
        self._last_done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="psyche-evaluation", daemon=True)

    def start(self) -> None:
        """Start the thread. The model may be loaded later."""
        if not self._plan.prompts:
            self._spare.note_first_seen()  # tasks take too long for anybody to wait for them
        self._thread.start()

    def answer_last(self, seconds: float) -> None:
        """Block until the run's last model has answered the prompts, but at most for some seconds."""
        if self._plan.prompts and self._thread.is_alive():
            self._last_wanted.set()
            self._last_done.wait(seconds)

    def stop(self, seconds: float = 5.0) -> None:
        """End the thread and wait some seconds for it.

        An import or a download in it may take longer; it ends with the process.
        """
        self._spare.close()
        self._thread.join(seconds)

    def _run(self) -> None:
        if not self._plan.prompts:
            _lower_priority()
        try:
            with self._spare.borrow():
                pass  # nothing is imported before the model is loaded
            self._work()
        except (SpareTimeOver, Reclaimed):
            pass
        except Exception as error:  # training continues, whatever an evaluation raises
            self._warn("evaluations were given up", error)
        finally:
            self._spare.note_first_seen()
            self._last_done.set()

    def _work(self) -> None:
        try:
            self._tokenizer = self._read_tokenizer()
        except PsycheError as error:
            self._warn("the model cannot be evaluated", error)
            return

        prompted = self._answer_prompts()
        self._spare.note_first_seen()
        _lower_priority()  # not before, since the client waits for the first answers
        todo = self._open_tasks()
        measured: dict[str, int] = {}
        while True:
            if self._last_wanted.is_set() and not self._last_done.is_set():
                self._answer_prompts()
                self._last_done.set()
            if self._last_done.is_set():
                self._spare.pause(PAUSE_SECONDS)  # the run is over
                continue
            if self._plan.prompts and self._due(prompted):
                prompted = self._answer_prompts()
            due = [each for each in todo if measured.get(each) != self._spare.step]
            name = min(due, key=lambda each: measured.get(each, -1), default=None)
            if name is None:
                self._spare.pause(PAUSE_SECONDS / 4)
                continue
            step = self._measure(name, todo[name])
            if step is None:
                del todo[name]
            else:
                measured[name] = step

    def _due(self, prompted: tuple[float, int]) -> bool:
        return time.monotonic() - prompted[0] > PROMPT_SECONDS and self._spare.step != prompted[1]

    def _answer_prompts(self) -> tuple[float, int]:
        """Answer all prompts. Return when this began and at which step the model was then."""
        began = time.monotonic(), self._spare.step
        if not self._plan.prompts:
            return began

        from psyche_core.evaluation.prompts import PROMPTS, write_in_spare_time

        for number, prompt in enumerate(PROMPTS):
            if self._last_wanted.is_set() and began[1] != self._spare.step:
                break  # the last model will answer all of them
            try:
                text, first, last = write_in_spare_time(self._spare, self._tokenizer, prompt)
            except (SpareTimeOver, Reclaimed):
                raise
            except Exception as error:  # a model may fail in many ways
                self._warn("prompts are not answered any more", error)
                self._plan = replace(self._plan, prompts=False)
                break
            self._report(telemetry.PromptAnswered(number, prompt, text[:PROMPT_CHARACTERS], first, last))
        return began

    def _open_tasks(self) -> dict[str, Any]:
        """Return the tasks whose data could be loaded, by name."""
        found: dict[str, Any] = {}
        if not self._plan.tasks:
            return found
        try:
            from psyche_core.evaluation.harness import TaskSet
        except ModuleNotFoundError as error:
            self._warn("evaluations need the extra eval (pip install 'psyche-core[eval]')", error)
            return found

        for name in self._plan.tasks:
            try:
                found[name] = TaskSet([name], include=self._plan.include)
                found[name].load()
            except Exception as error:  # another task may work
                found.pop(name, None)
                self._warn(f"the evaluation {name} is left out", error)
        return found

    def _measure(self, name: str, tasks: Any) -> int | None:
        """Measure one task and report it. Return the step of the model that was measured; None if it failed."""
        from psyche_core.evaluation.harness import score
        from psyche_core.evaluation.spare_model import MeasureStopped, SpareModel

        try:
            with self._spare.borrow() as loan:
                model = SpareModel(loan.module, self._tokenizer, self._spare, stops=self._last_wanted.is_set)
            first = self._spare.step
            scores = score(model, tasks, shots=self._plan.shots, limit=self._plan.documents, seed=self._plan.seed, alone=False)
        except (SpareTimeOver, Reclaimed):
            raise
        except MeasureStopped:
            return self._spare.step
        except Exception as error:  # a task's own code may raise anything
            if self._spare.closed:
                raise SpareTimeOver from error
            self._warn(f"the evaluation {name} failed and is left out", error)
            return None
        for each in scores[:1]:  # the first score of a group is that of the whole group
            if each.main is not None:
                metric, value = each.main
                self._report(telemetry.Evaluated(name, metric, value, each.documents or 0, first, model.last_step))
        return first

    def _read_tokenizer(self) -> Any:
        from psyche_core.evaluation.text_model import load_tokenizer

        with tempfile.TemporaryDirectory(prefix="psyche-tokenizer-") as place:
            for name, content in self._files().items():
                (Path(place) / name).write_bytes(content)
            return load_tokenizer(Path(place))

    def _warn(self, what: str, error: BaseException) -> None:
        text = str(error).strip().splitlines()
        self._report(telemetry.Problem("warning", f"{what}: {text[0] if text else type(error).__name__}; training goes on"))


def _lower_priority() -> None:
    with contextlib.suppress(AttributeError, OSError):  # Linux has priorities of threads
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
