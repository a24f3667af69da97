"""A training client's model for lm-evaluation-harness: each small batch is computed while the trainer does not need the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from psyche_core.errors import ModelError
from psyche_core.evaluation.harness import HarnessModel
from psyche_core.evaluation.spare_time import Reclaimed, SpareTime


class MeasureStopped(Exception):
    """A measurement was ended early, because another task has priority."""


class _SpareModel(HarnessModel):  # type: ignore[misc]  # lm_eval is untyped
    """Computes in spare time; a batch that the trainer interrupts is computed again. Build it while the module is borrowed.

    stops: returns whether to end the measurement early, with MeasureStopped.

    last_step: of the model that computed the newest batch.
    """

    def __init__(self, module: Any, tokenizer: Any, spare: SpareTime, *, stops: Callable[[], bool]) -> None:
        self._stops = stops
        self._spare = spare
        self.last_step: int = spare.step
        module.tie_weights = lambda *_, **__: None  # HFLM would tie the weights again, but they belong to a trainer
        try:
            super().__init__(pretrained=module, tokenizer=tokenizer, backend="causal", batch_size=1)
        finally:
            del module.tie_weights

    def _model_call(self, *args: Any, **kwargs: Any) -> Any:
        return self._in_spare_time(super()._model_call, *args, **kwargs)

    def _model_generate(self, *args: Any, **kwargs: Any) -> Any:
        return self._in_spare_time(super()._model_generate, *args, **kwargs)

    def _in_spare_time(self, call: Any, *args: Any, **kwargs: Any) -> Any:
        while True:
            if self._stops():
                raise MeasureStopped
            with self._spare.borrow() as loan:
                if loan.module is not self.model:
                    message = "the model was loaded anew"
                    raise ModelError(message)
                self.last_step = loan.step
                try:
                    return call(*args, **kwargs)
                except Reclaimed:
                    continue


SpareModel: Any = _SpareModel
"""The class, typed Any because its base class is untyped."""
