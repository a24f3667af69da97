"""A `transformers.Trainer` joins a run: its model, data, collator and callbacks; and what of it is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
import torch
import transformers
from sdk_parts import DATA, LENGTH, VOCABULARY, make_run
from transformers import Trainer, TrainerCallback, TrainingArguments

import psyche_core as psyche
from psyche_core.errors import ConfigError, DataError
from psyche_core.sdk import trainer as adapter

ROWS = [{"input_ids": row, "labels": row, "title": "no number"} for row in DATA]


def make_llama() -> torch.nn.Module:
    torch.manual_seed(1)
    sizes: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2))


class Told(TrainerCallback):
    """Keeps the name of each call with the step."""

    def __init__(self, *, stop_at: int | None = None) -> None:
        self.calls: list[tuple[str, int]] = []
        self.logs: list[dict[str, float]] = []
        self.stop_at = stop_at

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.calls.append(("begin", state.max_steps))

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.calls.append(("step", state.global_step))
        if self.stop_at is not None and state.global_step >= self.stop_at:
            control.should_training_stop = True

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        self.logs.append({**logs, "step": state.global_step})

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.calls.append(("save", state.global_step))

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.calls.append(("end", state.global_step))


def make_trainer(folder: Path, *, cls: type[Trainer] = Trainer, told: Told | None = None, **more: Any) -> Trainer:
    names = ("label_smoothing_factor", "neftune_noise_alpha", "per_device_train_batch_size", "bf16", "eval_strategy")
    arguments = {name: more.pop(name) for name in names if name in more}
    args = TrainingArguments(
        output_dir=str(folder), use_cpu=True, report_to="none", disable_tqdm=True, logging_steps=2, **arguments
    )
    given: dict[str, Any] = {"model": make_llama(), "train_dataset": ROWS, **more}
    return cls(args=args, callbacks=[] if told is None else [told], **given)


def model_of(trainer: transformers.Trainer) -> torch.nn.Module:
    assert trainer.model is not None
    return trainer.model


async def test_two_trainers_train_one_model_and_their_callbacks_are_told(tmp_path: Path) -> None:
    told = [Told(), Told()]
    trainers = [make_trainer(tmp_path, told=each) for each in told]
    async with psyche.Coordinator(make_run()) as coordinator, anyio.create_task_group() as group:
        for trainer in trainers:
            group.start_soon(psyche.train_with_async, trainer, coordinator.address)

    one, other = (dict(model_of(trainer).named_parameters()) for trainer in trainers)
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert not torch.equal(one["lm_head.weight"], dict(make_llama().named_parameters())["lm_head.weight"])
    for each, trainer in zip(told, trainers, strict=True):
        assert each.calls == [("begin", 8), *(("step", step) for step in range(1, 9)), ("end", 8)]
        assert [log["step"] for log in each.logs] == [2, 4, 6, 8]
        assert each.logs[-1]["loss"] < each.logs[0]["loss"]
        assert [log["learning_rate"] for log in each.logs] == [1e-2] * 4
        assert each.logs[-1]["epoch"] == 1.0  # 8 steps of 8 of 64 items
        assert trainer.state.log_history[-1]["step"] == 8


async def test_the_collator_s_labels_are_what_is_trained_and_short_items_are_padded(tmp_path: Path) -> None:
    """The same as a client with such data, bit for bit."""

    def collate(items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        [item] = items
        assert set(item) == {"input_ids", "labels"}  # unused columns are removed
        ids = torch.tensor([item["input_ids"][:-2]])
        labels = ids.clone()
        labels[:, :3] = -100
        return {"input_ids": ids, "labels": labels, "attention_mask": torch.ones_like(ids)}

    told = Told()
    trainer = make_trainer(tmp_path, told=told, data_collator=collate, per_device_train_batch_size=3)
    await psyche.train_with_async(trainer, make_run(steps=4, clients=1))

    spelled = [{"input_ids": [*row[:-2], 0, 0], "labels": [-100] * 3 + row[3:-2] + [-100] * 2} for row in DATA]
    model = make_llama()
    await psyche.train_async(make_run(steps=4, clients=1), model=model, data=spelled, device="cpu", micro_batch_size=3)
    plain = make_llama()
    await psyche.train_async(make_run(steps=4, clients=1), model=plain, data=DATA, device="cpu", micro_batch_size=3)

    theirs = model_of(trainer).state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in model.state_dict().items())
    assert not all(torch.equal(value, theirs[name]) for name, value in plain.state_dict().items())


def test_a_script_stops_where_a_callback_says_so_and_saves(tmp_path: Path) -> None:
    told = Told(stop_at=3)
    trainer = make_trainer(tmp_path, told=told)
    metrics = psyche.train_with(trainer, make_run(steps=200, clients=1), checkpoint_dir=tmp_path / "saved")

    assert 3 <= metrics.applied < 200
    assert told.calls[0] == ("begin", 200)
    assert [name for name, _ in told.calls[-2:]] == ["save", "end"]
    evaluated = trainer.evaluate(ROWS[:8])  # type: ignore[arg-type]  # a list has what a Dataset has
    assert 0 < evaluated["eval_loss"] < 3.6


async def test_held_out_items_are_evaluated_after_each_epoch_of_the_run_and_may_stop_it(tmp_path: Path) -> None:
    class Enough(Told):
        def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **_: Any) -> None:
            self.calls.append(("evaluate", state.global_step))
            if state.global_step > 0:
                control.should_training_stop = True

    told = Enough()
    trainer = make_trainer(tmp_path, told=told, eval_dataset=ROWS[:4], eval_strategy="steps")
    metrics = await psyche.train_with_async(trainer, make_run(steps=200, clients=1, steps_per_epoch=4))

    assert [call for call in told.calls if call[0] == "evaluate"][:2] == [("evaluate", 0), ("evaluate", 4)]
    assert 4 <= metrics.applied < 200
    found = [log["eval_loss"] for log in told.logs if "eval_loss" in log]
    assert found[1] < found[0] < 3.6
    with pytest.raises(TypeError, match=r"^the trainer's eval_dataset must be one with a length and numbered items, got a dict$"):
        adapter._arguments(make_trainer(tmp_path, eval_dataset={"one": ROWS}, eval_strategy="steps"))
    assert adapter._arguments(make_trainer(tmp_path, eval_dataset=ROWS))["eval_data"] is None


async def test_what_a_callback_raises_comes_out(tmp_path: Path) -> None:
    class Broken(Told):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await psyche.train_with_async(make_trainer(tmp_path, told=Broken()), make_run(clients=1))


async def test_in_a_running_loop_it_says_what_to_do_instead(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"write `await psyche\.train_with_async\(…\)` with the same"):
        psyche.train_with(make_trainer(tmp_path), make_run(clients=1))


class OwnLoss(Trainer):
    def compute_loss(self, *args: Any, **more: Any) -> Any:
        return super().compute_loss(*args, **more)


class Masking:
    mlm = True

    def __call__(self, items: Any) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (
            {"cls": OwnLoss},
            "^OwnLoss has its own compute_loss, and a run trains with the model's loss; use a plain Trainer$",
        ),
        ({"label_smoothing_factor": 0.1}, "^the trainer has label_smoothing_factor, and a run trains with the model's own loss"),
        ({"neftune_noise_alpha": 5.0}, "^the trainer has neftune_noise_alpha, "),
        ({"compute_loss_func": print}, "^the trainer has compute_loss_func, "),
        ({"data_collator": Masking()}, r"draws masks \(mlm\), and members must train on equal data; use mlm=False$"),
    ],
)
async def test_what_would_train_something_else_is_refused(tmp_path: Path, more: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        await psyche.train_with_async(make_trainer(tmp_path, **more), make_run(clients=1))


async def test_what_is_no_trainer_or_has_no_items(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"^train_with takes a built transformers\.Trainer, got a LlamaForCausalLM$"):
        await psyche.train_with_async(make_llama(), make_run(clients=1))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^the trainer's train_dataset must have a length and numbered items, got a NoneType$"):
        await psyche.train_with_async(make_trainer(tmp_path, train_dataset=None), make_run(clients=1))


def collated(batch: dict[str, Any], folder: Path) -> dict[str, Any]:
    as_arrays = {name: np.array(value) for name, value in batch.items()}
    trainer = make_trainer(folder, data_collator=lambda _: as_arrays)
    items = adapter._Collated(trainer, ROWS, LENGTH)
    assert len(items) == len(ROWS)
    return items[0]


def test_an_item_is_padded_on_the_right_and_padding_is_never_predicted(tmp_path: Path) -> None:
    found = collated({"input_ids": [[5, 6, 7, 0]], "attention_mask": [[1, 1, 1, 0]]}, tmp_path)
    assert found["input_ids"].tolist() == [5, 6, 7, 0, 0, 0, 0, 0]
    assert found["labels"].tolist() == [5, 6, 7, -100, -100, -100, -100, -100]


@pytest.mark.parametrize(
    ("batch", "sentence"),
    [
        ({"tokens": [[1]]}, "gave no input_ids for item 0 of the dataset"),
        ({"input_ids": [[1], [2]]}, r"must give \(1, tokens\) for one item, item 0 became input_ids \(2, 1\)"),
        ({"input_ids": [[1, 2]], "labels": [[1]]}, r"item 0 became input_ids \(1, 2\), labels \(1, 1\)"),
        ({"input_ids": [[0, 1, 2]], "attention_mask": [[0, 1, 1]]}, "item 0 of the dataset is padded on the left"),
        ({"input_ids": [[1, 2, 3]], "position_ids": [[0, 1, 0]]}, "item 0 of the dataset packs several texts"),
    ],
)
def test_items_that_cannot_be_trained_on_are_told(tmp_path: Path, batch: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        collated(batch, tmp_path)


def test_the_trainer_s_device_batch_and_precision_are_the_client_s(tmp_path: Path) -> None:
    given = adapter._arguments(make_trainer(tmp_path, per_device_train_batch_size=5, bf16=True))
    assert (given["device"], given["micro_batch_size"], given["options"]) == ("cpu", 5, {"compute_dtype": "bfloat16"})
