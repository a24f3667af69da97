"""Evaluations while training: they yield to the trainer at the next layer, change nothing in it, and fail alone."""

from __future__ import annotations

import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from psyche_core.builtin.adamw import AdamW
from psyche_core.builtin.adamw_settings import AdamWSettings
from psyche_core.builtin.hf_models import create_auto
from psyche_core.evaluation import in_run
from psyche_core.evaluation.in_run import InRunEvaluator, Plan
from psyche_core.evaluation.spare_time import Reclaimed, SpareTime, SpareTimeOver
from psyche_core.hookspecs import ModelContext
from psyche_core.interfaces.data import Samples
from psyche_core.telemetry import events as telemetry
from psyche_core.telemetry.sinks import from_json, to_json
from psyche_core.training.trainer import Trainer
from psyche_core.ui.event_text import describe
from tests.unit.evaluation.task_list import only_from_folders
from tests.unit.evaluation.tiny_checkpoint import make_checkpoint

WAIT = 60.0
OURS = Path(__file__).parent / "tasks"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"), max_position_embeddings=64)  # texts end there


def make_trainer(folder: Path, *, recomputes: bool = False) -> Trainer:
    context = ModelContext(source=folder, max_seq_len=16, seed=bytes(32), device="cpu", gradient_checkpointing=recomputes)
    model = create_auto(context)
    optimizer = AdamW(AdamWSettings(), model)
    return Trainer(model=model, optimizer=optimizer, learning_rate=lambda _: 1e-2, micro_batch_size=2)


def samples(step: int) -> Samples:
    ids = [(step * 7 + number) % 1000 for number in range(32)]
    return Samples(b"".join(each.to_bytes(2, "little") for each in ids), 2, 16, 2)


class Training:
    """A trainer that works as a client's worker does: it takes the model back before each step and lends it afterwards."""

    def __init__(self, folder: Path, *, recomputes: bool = False) -> None:
        self.trainer = make_trainer(folder, recomputes=recomputes)
        self.spare = SpareTime(lambda: self.trainer.inference_module, self.trainer.load_masters)

    def step(self, number: int) -> None:
        self.spare.reclaim()
        self.spare.wait_until_free()
        try:
            done = self.trainer.train(number, samples(number))
            self.trainer.apply(number, [done.payload], own_accepted=True)
            self.spare.step = number
        finally:
            self.spare.release()


@pytest.mark.parametrize("recomputes", [False, True], ids=["plain", "gradient checkpointing"])
def test_a_reader_stops_at_the_next_layer_and_leaves_the_module_as_it_was(folder: Path, recomputes: bool) -> None:
    training = Training(folder, recomputes=recomputes)
    module: Any = training.trainer.inference_module
    flags = [(part.training, getattr(part, "gradient_checkpointing", None)) for part in module.modules()]
    training.step(1)
    layers, inside, go_on = [], threading.Event(), threading.Event()

    def note(*_: Any) -> None:
        layers.append(1)
        inside.set()
        go_on.wait(WAIT)

    kept = module.model.layers[0].register_forward_hook(note)  # the first layer is done; the second is not
    stopped: list[type] = []

    def read() -> None:
        with training.spare.borrow() as loan:
            assert not any(part.training for part in loan.module.modules())
            for name, master in training.trainer._optimizer.masters.items():
                assert torch.equal(training.trainer._model.parameters[name], master)
            with pytest.raises(Reclaimed) as ended:
                loan.module(torch.tensor([[1, 2, 3]]))
            stopped.append(ended.type)

    reader = threading.Thread(target=read)
    reader.start()
    assert inside.wait(WAIT)
    assert training.spare.reclaim(), "the model is lent"
    go_on.set()
    training.spare.wait_until_free()
    reader.join(WAIT)
    kept.remove()
    assert stopped == [Reclaimed]
    assert len(layers) == 1
    assert [(part.training, getattr(part, "gradient_checkpointing", None)) for part in module.modules()] == flags
    assert not any(part._forward_pre_hooks for part in module.modules())
    training.spare.release()
    training.spare.close()
    with pytest.raises(SpareTimeOver), training.spare.borrow():
        pass


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of lm_eval and what it imports
def test_evaluations_run_while_training_goes_on_and_change_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("lm_eval", reason="needs the extra eval")
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    only_from_folders(monkeypatch)
    # A machine with other work gives next to nothing to the priority that an evaluation has.
    monkeypatch.setattr(in_run, "_LOWEST_PRIORITY", os.getpriority(os.PRIO_PROCESS, 0))
    shutil.copy(OURS / "plays.jsonl", tmp_path)
    (tmp_path / "plays.yaml").write_text((OURS / "plays.yaml").read_text().replace("FOLDER", str(tmp_path)))

    alone = make_trainer(folder)
    training = Training(folder)
    events: list[telemetry.Event] = []
    scored = threading.Event()

    def tell(event: telemetry.Event) -> None:
        events.append(event)
        if isinstance(event, telemetry.Evaluated) and event.step >= 3:
            scored.set()

    plan = Plan(tasks=("no_such_task", "psyche_plays"), include=(tmp_path,), documents=4, prompts=True)
    evaluator = InRunEvaluator(plan, training.spare, lambda: training.trainer.description, tell)
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    evaluator.start()
    step = 0
    try:
        training.spare.wait_until_first_seen(WAIT)
        assert [event.from_step for event in events if isinstance(event, telemetry.PromptAnswered)] == [0] * 4
        while not scored.is_set():
            step += 1
            training.step(step)
            scored.wait(0.001 * step)  # spare time that grows: it is interrupted often at first, and enough on any machine later
        training.step(step + 1)
        evaluator.answer_last(WAIT)
    finally:
        evaluator.stop(WAIT)
    assert torch.equal(torch.random.get_rng_state(), before)

    for number in range(1, step + 2):
        done = alone.train(number, samples(number))
        alone.apply(number, [done.payload], own_accepted=True)
    assert training.trainer.full_digest() == alone.full_digest()

    scores = [event for event in events if isinstance(event, telemetry.Evaluated)]
    assert {(each.task, each.metric, each.documents) for each in scores} == {("psyche_plays", "acc_norm", 4)}
    assert all(0 <= each.value <= 1 and each.from_step <= each.step for each in scores)
    texts = [event for event in events if isinstance(event, telemetry.PromptAnswered)]
    assert texts[0].from_step == 0
    assert [each.from_step for each in texts[-4:]] == [step + 1] * 4, "the last model answers all prompts"
    assert texts[0].text != texts[-4].text
    problems = [event.message for event in events if isinstance(event, telemetry.Problem)]
    [problem] = problems
    assert problem.startswith("the evaluation no_such_task is left out: there is no evaluation task 'no_such_task'")
    assert problem.endswith("; training goes on")


def test_a_model_without_a_tokenizer_is_one_warning(tmp_path: Path) -> None:
    training = Training(make_checkpoint(tmp_path, tokenizer=False))
    events: list[telemetry.Event] = []
    said = threading.Event()
    evaluator = InRunEvaluator(
        Plan(prompts=True),
        training.spare,
        lambda: training.trainer.description,
        lambda event: (events.append(event), said.set())[1],
    )
    evaluator.start()
    assert said.wait(WAIT)
    training.spare.wait_until_first_seen(WAIT)
    assert training.spare._first_seen, "nobody waits for it"
    evaluator.stop(WAIT)
    [problem] = events
    assert isinstance(problem, telemetry.Problem)
    assert problem.message.startswith("the model cannot be evaluated: ")
    assert problem.message.endswith("training goes on")


def test_events_are_read_back_and_described() -> None:
    score = telemetry.Evaluated("arc_easy", "acc_norm", 0.25, 200, 3, 9)
    text = telemetry.PromptAnswered(0, "To be", " or\n\x1bnot", 4, 4)
    for event in (score, text):
        read = from_json(to_json(event))
        assert read is not None
        assert read[1] == event
        assert json.loads(to_json(event))
    assert describe(score) == "evaluation arc_easy of steps 3 to 9: acc_norm 0.2500 on 200 documents"
    assert "\x1b" not in describe(text)
