"""A `transformers.Trainer` takes part in a run: its model, its data and its callbacks; the run does the training.

A program joins with a Trainer that it has built, but the Trainer itself does not train. The optimizer, the learning rates, the
batch size and the number of steps are those of the run. A Trainer that changes the model's own loss is rejected, because all
members must train with the same loss. docs/reference/sdk.md lists the options that have no effect. transformers is not imported
here: a program that has a Trainer has already imported it.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Unpack

import anyio.from_thread
import anyio.to_thread
import numpy as np

from psyche_core.coordinator.learning_rate import cold_start_bounds, cold_start_factor, learning_rate
from psyche_core.data.sequences import SequenceData
from psyche_core.errors import ConfigError, DataError
from psyche_core.hookspecs import DataContext
from psyche_core.interfaces.data import IGNORED_LABEL
from psyche_core.sdk.address import Address
from psyche_core.sdk.client import Client
from psyche_core.sdk.metrics import Metrics
from psyche_core.sdk.run_config import RunConfig
from psyche_core.sdk.train import blocking, followed, member_of
from psyche_core.telemetry import events

if TYPE_CHECKING:
    from transformers import Trainer

    from psyche_core.sdk.argument_types import ClientArguments

_COLLATED = "input_ids", "labels", "attention_mask", "position_ids"
_TOLD = events.StepTrained, events.StepApplied, events.Validated, events.CheckpointSaved


def train_with(trainer: Trainer, target: RunConfig | Address | str, **client: Unpack[ClientArguments]) -> Metrics:
    """Take part in a run with a built `transformers.Trainer` in place of `trainer.train()`, until the run ends. Blocks.

    Example:
        trainer = Trainer(model=model, args=arguments, train_dataset=dataset, data_collator=collator, callbacks=[Mine()])
        psyche.train_with(trainer, "203.0.113.7:20000#KEY", run_id="mine")

    trainer: its model is trained in place and holds the run's weights afterwards. Item i of its train_dataset is sample i of the
    run and is collated alone; a shorter item is padded to the run's sequence length, with labels of -100. Its callbacks are
    called in a worker thread while training continues: on_train_begin; on_step_begin and on_step_end when a step's results are
    applied; on_log with loss (nats per token, mean of our shares since the last one) and learning_rate as its logging arguments
    say; on_evaluate with eval_loss over the first 64 items of its eval_dataset, before the first step and after each epoch of
    the run, unless its eval_strategy is no; on_save after a checkpoint; on_train_end. They must not read weights before
    on_train_end. `control.should_training_stop` leaves the run cleanly. target: as in `train`. client: any argument of `Client`;
    it overrides the trainer's.

    Raises TypeError for an object that is not a Trainer, and for a dataset without length or items; ConfigError for a Trainer
    with its own loss (an overridden compute_loss or training_step, compute_loss_func, label_smoothing_factor,
    neftune_noise_alpha), a collator that draws masks, or several processes; DataError for items that cannot be trained on;
    exceptions of callbacks; and the errors of `train`.
    """
    return blocking(functools.partial(train_with_async, trainer, target, **client), name="train_with")


async def train_with_async(trainer: Trainer, target: RunConfig | Address | str, **client: Unpack[ClientArguments]) -> Metrics:
    """`train_with` for programs that have an event loop, and for notebooks. If cancelled, it does not leave the run cleanly."""
    ours = _arguments(trainer)
    options = {**ours["options"], **(client.get("options") or {})}
    given: ClientArguments = {**ours, **client, "options": options}  # type: ignore[typeddict-item]  # of Client's names
    async with member_of(target, given) as member:
        report = _Report(trainer, member)
        async for event in followed(member):
            if isinstance(event, _TOLD):
                await anyio.to_thread.run_sync(report.take, event)
        await anyio.to_thread.run_sync(report.finish)
    return member.metrics


def _arguments(trainer: Trainer) -> dict[str, Any]:
    """Return the arguments for `Client`. Raises TypeError and ConfigError for an unusable trainer."""
    module = sys.modules.get("transformers.trainer")
    what: object = trainer
    if module is None or not isinstance(what, module.Trainer):
        message = f"train_with takes a built transformers.Trainer, got a {type(what).__name__}"
        raise TypeError(message)

    dataset: Any = trainer.train_dataset
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        message = f"the trainer's train_dataset must have a length and numbered items, got a {type(dataset).__name__}"
        raise TypeError(message)

    base = module.Trainer
    own = [name for name in ("compute_loss", "training_step") if getattr(type(trainer), name) is not getattr(base, name)]
    if own:
        message = f"{type(trainer).__name__} has its own {own[0]}, and a run trains with the model's loss; use a plain Trainer"
        raise ConfigError(message)
    settings = {
        "compute_loss_func": trainer.compute_loss_func,
        "label_smoothing_factor": trainer.args.label_smoothing_factor,
        "neftune_noise_alpha": trainer.args.neftune_noise_alpha,
    }
    for name, value in settings.items():
        if value:
            message = f"the trainer has {name}, and a run trains with the model's own loss and inputs; leave it out"
            raise ConfigError(message)
    if getattr(trainer.data_collator, "mlm", False):
        message = "the trainer's data collator draws masks (mlm), and members must train on equal data; use mlm=False"
        raise ConfigError(message)
    if trainer.args.world_size > 1:
        message = f"the trainer is one of {trainer.args.world_size} processes; start one, and see `Client` for several devices"
        raise ConfigError(message)

    return {
        "model": trainer.model,
        "data": lambda context: _data(trainer, trainer.train_dataset, context),
        "eval_data": _eval_data(trainer),
        "device": str(trainer.args.device),
        "micro_batch_size": trainer.args.per_device_train_batch_size,
        "options": {"compute_dtype": "bfloat16"} if trainer.args.bf16 else {},
    }


def _data(trainer: Trainer, dataset: Any, context: DataContext) -> SequenceData:
    length = context.sequence_length
    return SequenceData(_Collated(trainer, dataset, length), sequence_length=length)


def _eval_data(trainer: Trainer) -> Callable[[DataContext], SequenceData] | None:
    """Return a factory of held-out data from the trainer's eval_dataset; None if the trainer does not evaluate.

    Raises TypeError for a dataset without length or items.
    """
    dataset = trainer.eval_dataset
    if trainer.args.eval_strategy == "no" or dataset is None:
        return None
    if isinstance(dataset, Mapping) or not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        message = f"the trainer's eval_dataset must be one with a length and numbered items, got a {type(dataset).__name__}"
        raise TypeError(message)
    return lambda context: _data(trainer, dataset, context)


class _Collated:
    """The items of a trainer's dataset, each collated alone and padded to the run's sequence length in tokens."""

    def __init__(self, trainer: Trainer, dataset: Any, length: int) -> None:
        self._dataset = dataset
        self._collate = trainer.data_collator
        self._length = length
        tokenizer = trainer.processing_class
        self._padding = int(getattr(tokenizer, "pad_token_id", None) or 0)
        self._columns: frozenset[str] | None = None
        if trainer.args.remove_unused_columns:
            model: Any = trainer.model
            forward = inspect.signature(model.forward).parameters
            self._columns = frozenset([*forward, "label", "label_ids", *trainer.label_names])

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int, /) -> dict[str, Any]:
        """Ids and labels, int64 (length,). An item longer than the run's samples is not cut, so that it is rejected later."""
        item: Any = self._dataset[index]
        if isinstance(item, Mapping) and self._columns is not None:
            item = {name: value for name, value in item.items() if name in self._columns}
        batch: Any = self._collate([item])
        if "input_ids" not in batch:
            message = f"the trainer's data collator gave no input_ids for item {index} of the dataset"
            raise DataError(message)

        found = {name: np.asarray(batch[name]) for name in _COLLATED if batch.get(name) is not None}
        ids = found["input_ids"]
        if any(value.shape != ids.shape or value.ndim != 2 or len(value) != 1 for value in found.values()):
            shapes = ", ".join(f"{name} {value.shape}" for name, value in found.items())
            message = f"the trainer's data collator must give (1, tokens) for one item, item {index} became {shapes}"
            raise DataError(message)
        if "position_ids" in found and not np.array_equal(found["position_ids"][0], np.arange(ids.shape[1])):
            message = f"item {index} of the dataset packs several texts (position_ids), which a Trainer's data cannot do here"
            raise DataError(message)

        seen = found.get("attention_mask", np.ones_like(ids))[0].astype(bool)
        if bool((~seen[:-1] & seen[1:]).any()):
            message = f"item {index} of the dataset is padded on the left; set the tokenizer's padding_side to right"
            raise DataError(message)
        labels = np.where(seen, found.get("labels", ids)[0], IGNORED_LABEL)
        padding = (0, max(0, self._length - ids.shape[1]))
        return {
            "input_ids": np.pad(ids[0], padding, constant_values=self._padding),
            "labels": np.pad(labels, padding, constant_values=IGNORED_LABEL),
        }


class _Report:
    """Calls a trainer's callbacks, with its own state and control objects. All methods block; call one at a time."""

    def __init__(self, trainer: Trainer, member: Client) -> None:
        self._trainer: Any = trainer
        self._member = member
        self._begun = False
        self._losses: list[float] = []

    def take(self, event: events.Event) -> None:
        """Handle one event of the client."""
        self._begin()
        trainer = self._trainer
        match event:
            case events.StepTrained():
                self._losses.append(event.loss)
                trainer.state.num_input_tokens_seen += event.tokens
            case events.StepApplied():
                self._step(event.step)
            case events.Validated():
                metrics = {"eval_loss": event.loss}
                trainer.log(dict(metrics))
                trainer.control = trainer.callback_handler.on_evaluate(trainer.args, trainer.state, trainer.control, metrics)
                self._obey()
            case events.CheckpointSaved():
                trainer.control = trainer.callback_handler.on_save(trainer.args, trainer.state, trainer.control)

    def finish(self) -> None:
        """Report the end: the client has left cleanly, and the model holds the run's weights."""
        self._begin()
        trainer = self._trainer
        trainer.control = trainer.callback_handler.on_train_end(trainer.args, trainer.state, trainer.control)

    def _begin(self) -> None:
        if self._begun:
            return
        self._begun = True
        trainer, state = self._trainer, self._member.state
        steps = 0 if state is None else state.config.total_steps
        trainer.state = type(trainer.state)(max_steps=steps, train_batch_size=trainer.args.per_device_train_batch_size)
        trainer.state.compute_steps(trainer.args, steps)
        trainer.control.should_training_stop = False
        trainer.control = trainer.callback_handler.on_train_begin(trainer.args, trainer.state, trainer.control)

    def _step(self, step: int) -> None:
        trainer, known = self._trainer, self._member.state
        args, state, handler = trainer.args, trainer.state, trainer.callback_handler
        trainer.control = handler.on_step_begin(args, state, trainer.control)
        state.global_step = step
        if known is not None:
            state.epoch = known.progress.data_index / len(trainer.train_dataset)
        trainer.control = handler.on_step_end(args, state, trainer.control)
        if trainer.control.should_log and known is not None:
            rate = learning_rate(known.model.LLM.lr_schedule, step) * cold_start_factor(step, cold_start_bounds(known))
            mean = {"loss": sum(self._losses) / len(self._losses)} if self._losses else {}
            self._losses.clear()
            trainer.log({**mean, "learning_rate": rate})
        self._obey()

    def _obey(self) -> None:
        """Leave the run if a callback requested it. After the last step this is not needed."""
        trainer = self._trainer
        if trainer.control.should_training_stop and trainer.state.global_step < trainer.state.max_steps:
            anyio.from_thread.run_sync(self._member.stop)
