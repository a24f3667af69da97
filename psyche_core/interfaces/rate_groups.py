"""Rate groups: how the learning rate and the weight decay of a run differ from tensor to tensor.

An optimizer whose settings have a table `rates` validates it with `RateGroups`, and asks for `tensor_rates` when it is built:

    weights <- weights (1 - learning rate * weight decay * TensorRate.weight_decay) - learning rate * TensorRate.rate * direction

The factors follow from the table and from the names and shapes of all parameters alone, so every replica has the same; a model
that is divided among processes gives its optimizer whole tensors. The kind of a tensor is

    norm         with fewer than two dimensions: weights of norms, and biases
    head         its own name, or that of the module that holds it, is in HEADS
    embedding    the same with EMBEDDINGS
    matrix       any other

in this order: the last two parts of the full name count. A weight that is tied to the embedding appears once, under the
embedding's name, so it is an embedding. An entry of `by_name` may say another kind. No torch import here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, ClassVar, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from psyche_core.errors import ConfigError

Kind = Literal["head", "embedding", "norm", "matrix"]

HEADS: Final = frozenset({"lm_head", "embed_out", "output_projection"})
"""Names of modules that turn the last hidden state into logits."""

EMBEDDINGS: Final = frozenset(
    {
        "embed",
        "embed_in",
        "embed_positions",
        "embed_tokens",
        "embedding",
        "embeddings",
        "position_embeddings",
        "tok_embeddings",
        "token_embedding",
        "wpe",
        "word_embeddings",
        "wte",
    }
)
"""Names of modules that are looked up by token or by position."""

MAX_FACTOR: Final = 1e6
"""Largest factor; the smallest is its inverse. Beyond them lies a mistake."""

Factor = Annotated[float, Field(ge=1 / MAX_FACTOR, le=MAX_FACTOR)]
DecayFactor = Annotated[float, Field(ge=0, le=MAX_FACTOR)]


@dataclass(frozen=True, slots=True)
class TensorRate:
    """The factors of one tensor.

    Attributes:
        rate: of the learning rate.
        weight_decay: of the weight decay.
    """

    rate: float = 1.0
    weight_decay: float = 1.0

    def step(self, learning_rate: float) -> float:
        """The size of a step, in float64."""
        return learning_rate * self.rate

    def kept(self, learning_rate: float, weight_decay: float) -> float:
        """The factor of the weights in a step, in float64. The rate's factor is not in it."""
        return 1 - learning_rate * (weight_decay * self.weight_decay)


class _Table(BaseModel):
    """Unknown keys, infinities and NaN are rejected."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class DecayFactors(_Table):
    """`rates.weight_decay`: factors of the optimizer's weight decay by kind."""

    head: DecayFactor = 1.0
    embedding: DecayFactor = 1.0
    norm: DecayFactor = 1.0
    matrix: DecayFactor = 1.0


class NamedRate(_Table):
    """An entry of `rates.by_name`. What is absent is as for the tensor's kind.

    Attributes:
        pattern: of full parameter names; `*` stands for any characters, dots included, `?` for one, `[ab]` for one of these.
        kind: in place of the one that the name and the shape say.
        rate: factors in place of the kind's.
        weight_decay: factors in place of the kind's.
    """

    pattern: Annotated[str, Field(min_length=1)]
    kind: Kind | None = None
    rate: Factor | None = None
    weight_decay: DecayFactor | None = None


class RateGroups(_Table):
    """The table `rates` of an optimizer's settings. Without it every factor is 1.

    Attributes:
        head: factors of the learning rate by kind.
        embedding: factors of the learning rate by kind.
        norm: factors of the learning rate by kind.
        matrix: factors of the learning rate by kind.
        weight_decay: factors of the weight decay by kind.
        reference_width: the rates of matrices and of the head are multiplied by reference_width / the model's width, which is the
            last dimension of its embedding; so rates found with a narrow model fit a wide one. None: they are used as they are.
        by_name: exceptions; the first whose pattern fits a tensor's name counts. It is a list, since tables have no order in a
            run's canonical form.
    """

    head: Factor = 1.0
    embedding: Factor = 1.0
    norm: Factor = 1.0
    matrix: Factor = 1.0
    weight_decay: DecayFactors = DecayFactors()
    reference_width: Annotated[int, Field(ge=1)] | None = None
    by_name: tuple[NamedRate, ...] = ()

    def kinds(self, shapes: Mapping[str, Sequence[int]]) -> dict[str, Kind]:
        """The kind of every tensor, by name. shapes: of all parameters of the model. Raises ConfigError like `tensor_rates`."""
        return {name: kind for name, (kind, _) in self._assigned(shapes).items()}

    def tensor_rates(self, shapes: Mapping[str, Sequence[int]]) -> dict[str, TensorRate]:
        """The factors of every tensor, by name. shapes: of all parameters of the model, by full name.

        Raises ConfigError for an entry of `by_name` that counts for no parameter, and if the width is needed and not known.
        """
        assigned = self._assigned(shapes)
        by_width = self._factor_of_width({name: kind for name, (kind, _) in assigned.items()}, shapes)
        rates = {}
        for name, (kind, entry) in assigned.items():
            rate = entry.rate if entry is not None and entry.rate is not None else getattr(self, kind)
            decay = (
                entry.weight_decay if entry is not None and entry.weight_decay is not None else getattr(self.weight_decay, kind)
            )
            rates[name] = TensorRate(rate * by_width if kind in ("matrix", "head") else rate, decay)
        return rates

    def _assigned(self, shapes: Mapping[str, Sequence[int]]) -> dict[str, tuple[Kind, NamedRate | None]]:
        """The kind of every tensor and the entry that counts for it, if any."""
        found: dict[str, tuple[Kind, NamedRate | None]] = {}
        used = set()
        for name in sorted(shapes):
            number = next((number for number, entry in enumerate(self.by_name) if fnmatchcase(name, entry.pattern)), None)
            entry = None if number is None else self.by_name[number]
            used.add(number)
            found[name] = (entry.kind if entry and entry.kind else kind_of(name, shapes[name])), entry
        for number, entry in enumerate(self.by_name):
            if number not in used:
                raise ConfigError(_unused(number, entry.pattern, shapes))
        return found

    def _factor_of_width(self, kinds: Mapping[str, Kind], shapes: Mapping[str, Sequence[int]]) -> float:
        if self.reference_width is None:
            return 1.0

        tables = [name for name, kind in kinds.items() if kind == "embedding" and len(shapes[name]) > 1]
        widths = sorted({int(shapes[name][-1]) for name in tables})
        if len(widths) != 1 or widths[0] == 0:
            found = f"embeddings of the widths {', '.join(map(str, widths))}" if widths else "no embedding"
            message = (
                f"rates.reference_width = {self.reference_width}: the model must have one width, but {found} was recognised; "
                'name the embedding in rates.by_name (kind = "embedding"), or leave reference_width out'
            )
            raise ConfigError(message)
        return self.reference_width / widths[0]


def kind_of(name: str, shape: Sequence[int]) -> Kind:
    """The kind of a tensor by its full name and its shape; the module describes the rule."""
    if len(shape) < 2:
        return "norm"

    parts = frozenset(name.split(".")[-2:])
    if parts & HEADS:
        return "head"

    return "embedding" if parts & EMBEDDINGS else "matrix"


def _unused(number: int, pattern: str, shapes: Mapping[str, Sequence[int]]) -> str:
    where = f'rates.by_name.{number}.pattern = "{pattern}"'
    if any(fnmatchcase(name, pattern) for name in shapes):
        return f"{where}: all parameters that it fits are those of entries before it; put it in front of them, or remove it"

    some = ", ".join(sorted(shapes)[:3])
    return f"{where}: fits none of the model's {len(shapes)} parameters, such as {some}"
