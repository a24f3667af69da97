"""The parts that need no processes: placements, shares of rows, commands, plans."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from psyche_core.errors import ModelError, WireError
from psyche_core.interfaces.data import IGNORED_LABEL
from psyche_core.interfaces.sharding import Place, Placement
from psyche_core.models.hf.batches import Batch
from psyche_core.models.sharding.batch_split import pass_count, passes_of, shard_rows
from psyche_core.models.sharding.commands import MAX_SIZE, Build, Call, Command, Divide, End, Work, decode, encode
from psyche_core.models.sharding.plans import PLANS, plan_of
from psyche_core.wire.codec import encode as encode_cbor


def places(data: int, tensor: int) -> list[Place]:
    return [
        Place(data_rank=d, tensor_rank=t, data_parallelism=data, tensor_parallelism=tensor)
        for d in range(data)
        for t in range(tensor)
    ]


@given(
    data=st.integers(1, 5),
    tensor=st.integers(1, 4),
    multiple=st.integers(1, 3),
    other=st.integers(1, 7),
    cut=st.sampled_from([(None, None), (0, None), (1, None), (None, 0), (0, 0), (1, 0)]),
    halves=st.sampled_from([1, 2]),
)
def test_pieces_put_together_are_the_whole(
    data: int, tensor: int, multiple: int, other: int, cut: tuple[int | None, int | None], halves: int
) -> None:
    tensor_dim, data_dim = cut
    halves = halves if tensor_dim is not None and tensor_dim != data_dim else 1
    shape = [other, other + 1]
    if tensor_dim is not None:
        shape[tensor_dim] = tensor * multiple * halves
    placement = Placement(shape=tuple(shape), tensor_dim=tensor_dim, data_dim=data_dim, halves=halves)
    whole = torch.randn(shape)
    again = torch.full_like(whole, torch.nan)
    held = 0
    for place in places(data, tensor):
        piece = placement.piece(whole, place)
        assert tuple(piece.shape) == placement.piece_shape(place)
        placement.put(piece, again, place)
        held += piece.numel()
    assert torch.equal(again, whole)
    copies = (tensor if tensor_dim is None else 1) * (data if data_dim is None else 1)
    assert held == copies * whole.numel(), "no value is held twice but by those who hold it whole"


def test_halves_are_cut_each_by_itself() -> None:
    """A admission and an up projection in one tensor: rank 1 has the second half of each."""
    placement = Placement(shape=(8, 1), tensor_dim=0, halves=2)
    piece = placement.piece(torch.arange(8.0).view(8, 1), places(1, 2)[1])
    assert piece.flatten().tolist() == [2, 3, 6, 7]


def test_data_ranks_cut_as_torch_chunks() -> None:
    """FSDP2 does: 5 rows over 4 ranks are 2, 2, 1 and none."""
    placement = Placement(shape=(5, 2), data_dim=0)
    assert [placement.piece_shape(place)[0] for place in places(4, 1)] == [2, 2, 1, 0]


def test_parts_may_differ_in_length() -> None:
    placement = Placement(shape=(5, 2), tensor_dim=0, lengths=(3, 2))
    whole, again = torch.arange(10.0).view(5, 2), torch.zeros(5, 2)
    for place in places(1, 2):
        piece = placement.piece(whole, place)
        assert tuple(piece.shape) == placement.piece_shape(place) == (3 - place.tensor_rank, 2)
        placement.put(piece, again, place)
    assert torch.equal(again, whole)
    with pytest.raises(ValueError, match="lengths must add up to the size"):
        Placement(shape=(5, 2), tensor_dim=0, lengths=(3, 3))


def test_a_cut_that_has_no_rule_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be split over the data group"):
        Placement(shape=(4, 4), tensor_dim=0, data_dim=0, halves=2)


def batch(rows: int) -> Batch:
    ids = torch.arange(rows * 3).view(rows, 3)
    return Batch(ids, ids[:, 1:].clone(), None, packed=False)


@given(rows=st.integers(1, 40), shares=st.integers(1, 9), micro=st.integers(1, 8))
def test_every_row_is_worked_once_and_all_ranks_pass_equally_often(rows: int, shares: int, micro: int) -> None:
    given_rows = batch(rows)
    worked: list[int] = []
    for number in range(shares):
        passes = list(passes_of(given_rows, number=number, shares=shares, micro_batch_size=micro))
        assert len(passes) == pass_count(rows, shares=shares, micro_batch_size=micro) >= 1
        for part in passes:
            assert 1 <= part.count <= micro
            if part.predictions:
                worked += part.ids[:, 0].tolist()
    assert worked == given_rows.ids[:, 0].tolist()
    assert {len(shard_rows(rows, number=number, shares=shares)) for number in range(shares)} <= {
        rows // shares,
        rows // shares + 1,
    }


def test_m15_no_row_is_added_to_what_is_trained_on() -> None:
    """The reference fills a batch up with rows of token 0 and trains on them."""
    passes = [part for number in range(4) for part in passes_of(batch(2), number=number, shares=4, micro_batch_size=8)]
    assert sum(part.predictions for part in passes) == batch(2).predictions
    assert all(bool((part.targets == IGNORED_LABEL).all()) for part in passes[2:])


COMMANDS = st.one_of(
    st.builds(
        Build,
        config=st.binary(max_size=300),
        sharding=st.text(max_size=20).filter(lambda text: text.isascii()),
        data=st.integers(1, 100),
        tensor=st.integers(1, 100),
        dtype=st.sampled_from(["float32", "bfloat16"]),
        attention=st.sampled_from(["auto", "eager"]),
        gradient_checkpointing=st.booleans(),
    ),
    st.builds(
        Work,
        train=st.booleans(),
        check=st.booleans(),
        rows=st.integers(1, MAX_SIZE - 1),
        length=st.integers(1, MAX_SIZE - 1),
        positions=st.booleans(),
        packed=st.booleans(),
        micro_batch_size=st.integers(1, 1000),
        predictions=st.integers(1, MAX_SIZE - 1),
    ),
    st.builds(Divide, optimizer=st.sampled_from(["Distro", "Mine"]), settings=st.binary(max_size=300)),
    st.builds(Call, method=st.sampled_from(["apply", ""])),
    st.just(End()),
)


@given(command=COMMANDS)
def test_commands_come_back_as_they_were(command: Command) -> None:
    assert decode(encode(command)) == command


@given(data=st.binary(max_size=200))
def test_any_bytes_are_a_command_or_refused(data: bytes) -> None:
    with contextlib.suppress(WireError):
        decode(data)


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ([2, "end", {}], "version 2 of a command is not 1"),
        ([1, "stop", {}], "not a kind of command"),
        ([1, "end", {"x": 1}], "other settings"),
        ([True, "end", {}], "a list of version, kind and settings"),
        ({"end": 1}, "a list of version, kind and settings"),
        ([1, "work", {"train": 1, "check": True, "rows": 1, "length": 1, "positions": True, "packed": True, "micro_batch_size": 1,
                      "predictions": 1}], "train of a command must be bool"),
        ([1, "work", {"train": True, "check": True, "rows": MAX_SIZE, "length": 1, "positions": True, "packed": True,
                      "micro_batch_size": 1, "predictions": 1}], "rows of a command must be int"),
    ],
)  # fmt: skip
def test_what_is_no_command_is_refused_with_a_sentence(value: object, sentence: str) -> None:
    with pytest.raises(WireError, match=sentence):
        decode(encode_cbor(value))


def test_unknown_architectures_are_refused_and_those_that_work_named() -> None:
    with pytest.raises(ModelError, match=r"'gpt2' cannot be divided .*\(there are llama, qwen2, qwen3, deepseek_v3"):
        plan_of("gpt2", config=SimpleNamespace(), tensor_parallelism=2)


@pytest.mark.parametrize("model_type", PLANS)
def test_sizes_that_do_not_divide_are_refused(model_type: str) -> None:
    plan = PLANS[model_type]
    for name in plan.divided:
        config = SimpleNamespace(**{other: 3 if other == name else 4 for other in plan.divided})
        with pytest.raises(ModelError, match=f"{name} of the model is 3, which --tensor-parallelism 2 does not divide"):
            plan_of(model_type, config=config, tensor_parallelism=2)
