"""Rate groups: which factors a tensor gets, the same on every replica, and what is refused."""

from __future__ import annotations

import math
from fnmatch import fnmatchcase
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from psyche_core.errors import ConfigError
from psyche_core.interfaces.rate_groups import MAX_FACTOR, Kind, RateGroups, TensorRate, kind_of

LLAMA = {
    "lm_head.weight": (1024, 64),
    "model.embed_tokens.weight": (1024, 64),
    "model.layers.0.input_layernorm.weight": (64,),
    "model.layers.0.mlp.down_proj.weight": (64, 176),
    "model.layers.0.mlp.gate_proj.weight": (176, 64),
    "model.layers.0.self_attn.q_proj.weight": (64, 64),
    "model.layers.10.mlp.gate_proj.weight": (176, 64),
    "model.norm.weight": (64,),
}
BY_KIND = {"head": 5.0, "embedding": 4.0, "norm": 3.0, "matrix": 2.0}


@pytest.mark.parametrize(
    ("name", "shape", "kind"),
    [
        ("lm_head.weight", (1024, 64), "head"),
        ("lm_head.bias", (1024,), "norm"),
        ("embed_out.weight", (1024, 64), "head"),
        ("model.embed_tokens.weight", (1024, 64), "embedding"),
        ("gpt_neox.embed_in.weight", (1024, 64), "embedding"),
        ("transformer.wte.weight", (1024, 64), "embedding"),
        ("transformer.wpe.weight", (128, 64), "embedding"),
        ("bert.embeddings.word_embeddings.weight", (1024, 64), "embedding"),
        ("bert.embeddings.LayerNorm.weight", (64,), "norm"),
        ("embedding", (1024, 64), "embedding"),
        ("embed.projection.weight", (64, 64), "matrix"),
        ("model.layers.0.mlp.experts.gate_up_proj", (8, 64, 352), "matrix"),
        ("model.layers.0.self_attn.q_proj.weight", (64, 64), "matrix"),
        ("model.norm.weight", (64,), "norm"),
        ("scale", (), "norm"),
        ("lm_headed.weight", (4, 4), "matrix"),
    ],
)
def test_the_kind_follows_from_name_and_shape(name: str, shape: tuple[int, ...], kind: Kind) -> None:
    assert kind_of(name, shape) == kind


def test_each_kind_has_its_factors() -> None:
    rates = RateGroups.model_validate({**BY_KIND, "weight_decay": {"norm": 0, "head": 0.5}}).tensor_rates(LLAMA)
    assert rates["lm_head.weight"] == TensorRate(5.0, 0.5)
    assert rates["model.embed_tokens.weight"] == TensorRate(4.0, 1.0)
    assert rates["model.norm.weight"] == TensorRate(3.0, 0.0)
    assert rates["model.layers.0.mlp.down_proj.weight"] == TensorRate(2.0, 1.0)
    assert rates.keys() == LLAMA.keys()


def test_without_a_table_every_factor_is_one() -> None:
    assert set(RateGroups().tensor_rates(LLAMA).values()) == {TensorRate(1.0, 1.0)}


def test_a_tied_weight_is_an_embedding() -> None:
    """It appears once, under the embedding's name; a factor of heads then concerns nothing."""
    tied = {name: shape for name, shape in LLAMA.items() if name != "lm_head.weight"}
    groups = RateGroups.model_validate(BY_KIND)
    assert "head" not in groups.kinds(tied).values()
    assert groups.tensor_rates(tied)["model.embed_tokens.weight"].rate == 4.0


def test_the_first_entry_that_fits_a_name_counts() -> None:
    groups = RateGroups.model_validate(
        {
            **BY_KIND,
            "by_name": [
                {"pattern": "model.layers.0.mlp.*", "rate": 7},
                {"pattern": "*.mlp.*", "rate": 8, "weight_decay": 0},
                {"pattern": "*q_proj*", "kind": "head"},
                {"pattern": "model.norm.weight", "weight_decay": 9},
            ],
        }
    )
    rates = groups.tensor_rates(LLAMA)
    assert rates["model.layers.0.mlp.gate_proj.weight"] == TensorRate(7.0, 1.0)
    assert rates["model.layers.10.mlp.gate_proj.weight"] == TensorRate(8.0, 0.0)
    assert rates["model.layers.0.self_attn.q_proj.weight"].rate == 5.0
    assert rates["model.norm.weight"] == TensorRate(3.0, 9.0)
    assert groups.kinds(LLAMA)["model.layers.0.self_attn.q_proj.weight"] == "head"


@pytest.mark.parametrize(
    ("patterns", "sentence"),
    [
        (["*.mpl.*"], 'rates.by_name.0.pattern = "*.mpl.*": fits none of the model\'s 8 parameters, such as lm_head.weight'),
        (["*.MLP.*"], "fits none"),
        (["*", "*.mlp.*"], 'rates.by_name.1.pattern = "*.mlp.*": all parameters that it fits are those of entries before it'),
    ],
)
def test_an_entry_that_counts_for_nothing_is_refused(patterns: list[str], sentence: str) -> None:
    groups = RateGroups.model_validate({"by_name": [{"pattern": pattern, "rate": 2} for pattern in patterns]})
    with pytest.raises(ConfigError) as refused:
        groups.tensor_rates(LLAMA)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_matrices_and_the_head_follow_the_width() -> None:
    groups = RateGroups.model_validate({**BY_KIND, "reference_width": 16, "by_name": [{"pattern": "*.down_proj.*", "rate": 40}]})
    rates = {name: rate.rate for name, rate in groups.tensor_rates(LLAMA).items()}
    assert rates["model.layers.0.self_attn.q_proj.weight"] == 2 * 16 / 64
    assert rates["model.layers.0.mlp.gate_proj.weight"] == 2 * 16 / 64, "the model's width, not the tensor's"
    assert rates["model.layers.0.mlp.down_proj.weight"] == 40 * 16 / 64
    assert rates["lm_head.weight"] == 5 * 16 / 64
    assert rates["model.embed_tokens.weight"] == 4
    assert rates["model.norm.weight"] == 3
    as_found = RateGroups.model_validate({**BY_KIND, "reference_width": 64}).tensor_rates(LLAMA)
    assert as_found == RateGroups.model_validate(BY_KIND).tensor_rates(LLAMA)


@pytest.mark.parametrize(
    ("shapes", "sentence"),
    [
        ({"w": (4, 4)}, "no embedding was recognised"),
        ({"wte.weight": (9, 4), "wpe.weight": (9, 8)}, "embeddings of the widths 4, 8 was recognised"),
        ({"wte.weight": (9, 0)}, "embeddings of the widths 0 was recognised"),
    ],
)
def test_a_width_that_is_not_known_is_refused(shapes: dict[str, tuple[int, ...]], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        RateGroups(reference_width=4).tensor_rates(shapes)


@pytest.mark.parametrize(
    "wrong",
    [
        {"matrix": 0},
        {"matrix": -1},
        {"head": math.nan},
        {"head": math.inf},
        {"norm": 2 * MAX_FACTOR},
        {"norms": 2},
        {"reference_width": 0},
        {"weight_decay": 0.1},
        {"weight_decay": {"norm": -1}},
        {"weight_decay": {"bias": 0}},
        {"by_name": [{"rate": 2}]},
        {"by_name": [{"pattern": "", "rate": 2}]},
        {"by_name": [{"pattern": "*", "kind": "bias"}]},
        {"by_name": [{"pattern": "*", "rates": 2}]},
        {"by_name": {"*": 2}},
    ],
)
def test_tables_that_cannot_work_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        RateGroups.model_validate(wrong)


def test_the_step_is_one_product_and_the_decay_does_not_contain_the_rate() -> None:
    rate = TensorRate(3.0, 0.5)
    assert rate.step(0.1) == 0.1 * 3.0
    assert rate.kept(0.1, 0.2) == 1 - 0.1 * (0.2 * 0.5)
    assert TensorRate().step(0.1) == 0.1
    assert TensorRate().kept(0.1, 0.3) == 1 - 0.1 * 0.3


PARTS = st.sampled_from(["layers", "0", "wte", "lm_head", "norm", "weight", "mlp"])
NAMES = st.lists(PARTS, min_size=1, max_size=4).map(".".join)
SHAPES = st.dictionaries(NAMES, st.lists(st.integers(1, 9), max_size=3).map(tuple), min_size=1, max_size=12)
PATTERNS = st.lists(st.one_of(NAMES, NAMES.map(lambda name: f"*{name}"), NAMES.map(lambda name: f"{name}*")), max_size=4)


@given(SHAPES, PATTERNS, st.randoms())
def test_every_replica_assigns_alike(shapes: dict[str, tuple[int, ...]], patterns: list[str], dice: Any) -> None:
    """Whatever the order of parameters; each tensor has the first entry that fits it, or its kind's factor; or all refuse."""
    table = {**BY_KIND, "by_name": [{"pattern": pattern, "rate": 10.0 + place} for place, pattern in enumerate(patterns)]}
    groups = RateGroups.model_validate(table)
    mixed = list(shapes.items())
    dice.shuffle(mixed)
    expected = {}
    for name, shape in shapes.items():
        first = next((place for place, pattern in enumerate(patterns) if fnmatchcase(name, pattern)), None)
        expected[name] = BY_KIND[kind_of(name, shape)] if first is None else 10.0 + first
    if {10.0 + place for place in range(len(patterns))} <= set(expected.values()):
        assert {name: rate.rate for name, rate in groups.tensor_rates(dict(mixed)).items()} == expected
    else:
        with pytest.raises(ConfigError):
            groups.tensor_rates(dict(mixed))
