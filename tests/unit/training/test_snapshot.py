"""Snapshots with real optimizers: the bits that arrive are the bits that were sent, or nothing changes."""

from __future__ import annotations

import errno
import hashlib
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from psyche_core.builtin.adamw import AdamW
from psyche_core.builtin.adamw_settings import AdamWSettings
from psyche_core.errors import ModelError, ModelHalfReplaced
from psyche_core.interfaces.parameters import copy_parameter, shapes_of
from psyche_core.p2p import manifest as wire
from psyche_core.p2p.manifest import PIECE_BYTES, Manifest, cut
from psyche_core.testing.toy_model import TOY_SHAPES, ToyModel, toy_samples
from psyche_core.training.shared_tensors import shared_tensors
from psyche_core.training.snapshot import assemble, differing, read_piece, table_of
from psyche_core.training.trainer import Trainer
from psyche_optim_distro.optimizer import DistroOptimizer
from psyche_optim_distro.settings import DistroSettings

VALUES = PIECE_BYTES // 4
SHAPES = {**TOY_SHAPES, "big.weight": (3, VALUES // 2 + 5), "empty": (0, 4), "scalar": ()}
"""With a parameter of two pieces, one without values, and a single value."""


def adamw(model: ToyModel) -> AdamW:
    return AdamW(AdamWSettings(weight_decay=0.1), model)


def distro(model: ToyModel, *, one_bit: bool, second_stage: Literal["rmsprop"] | None = None) -> DistroOptimizer:
    settings = DistroSettings(
        second_stage=second_stage,
        clip_grad_norm=1.0,
        compression_decay=0.99,
        compression_topk=8,
        compression_chunk=16,
        quantize_1bit=one_bit,
        weight_decay=0.1,
    )
    return DistroOptimizer(settings, model)


OPTIMIZERS: dict[str, Callable[[ToyModel], Any]] = {
    "AdamW": adamw,
    "Distro, signs": lambda model: distro(model, one_bit=True),
    "Distro, values": lambda model: distro(model, one_bit=False),
    "Distro with public state": lambda model: distro(model, one_bit=True, second_stage="rmsprop"),
}


def build(optimizer: str, *, seed: int = 0, shapes: Mapping[str, tuple[int, ...]] = TOY_SHAPES) -> Trainer:
    model = ToyModel(shapes, seed=seed)
    return Trainer(
        model=model, optimizer=OPTIMIZERS[optimizer](model), learning_rate=lambda step: 0.01 / (1 + step), micro_batch_size=1
    )


def manifest_of(masters: Mapping[str, torch.Tensor], *, step: int = 4) -> Manifest:
    table = table_of(masters)
    return Manifest("run", step, table, tuple(hashlib.sha256(read_piece(masters, piece)).digest() for piece in cut(table)))


def pieces_of(masters: Mapping[str, torch.Tensor]) -> dict[int, bytes]:
    return {piece.number: read_piece(masters, piece) for piece in cut(table_of(masters))}


def masters(seed: int = 0, shapes: Mapping[str, tuple[int, ...]] = SHAPES) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def bits(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().numpy().tobytes())


# ------------------------------------------------------------------------------------------------ tensors and pieces


def test_pieces_are_the_little_endian_values_in_order() -> None:
    ours = masters()
    table = table_of(ours)
    assert [parameter.name for parameter in table] == sorted(SHAPES)
    joined: dict[str, bytes] = dict.fromkeys(SHAPES, b"")
    for piece in cut(table):
        joined[piece.name] += read_piece(ours, piece)
    assert joined == {name: np.asarray(ours[name].numpy(), dtype="<f4").tobytes() for name in SHAPES}


def test_special_values_arrive_bit_by_bit() -> None:
    """Negative zero, the smallest denormals and the largest value; a comparison of values would not tell the first."""
    special = torch.tensor([-0.0, 0.0, 1e-45, -1e-45, 1.1754942e-38, 3.4028235e38, -3.4028235e38])
    theirs = {"a": special}
    built = assemble({"a": torch.zeros(7)}, manifest_of(theirs), pieces_of(theirs))
    assert bits(built["a"]) == bits(special)


@given(st.sets(st.tuples(st.sampled_from(sorted(SHAPES)), st.integers(0, 2 * VALUES)), max_size=4))
def test_exactly_the_pieces_that_hold_another_value_differ(poked: set[tuple[str, int]]) -> None:
    ours = masters(shapes={**SHAPES, "big.weight": (VALUES + 3,)})
    theirs = {name: tensor.clone() for name, tensor in ours.items()}
    expected = set()
    for name, position in poked:
        flat = theirs[name].view(-1)
        if len(flat):
            place = position % len(flat)
            flat[place] = float(ours[name].view(-1)[place]) + 1.0
            expected.add(next(p.number for p in cut(table_of(ours)) if p.name == name and 0 <= 4 * place - p.first < PIECE_BYTES))
    assert differing(ours, manifest_of(theirs)) == tuple(sorted(expected))


def test_a_negative_zero_differs_from_zero() -> None:
    assert differing({"a": torch.zeros(3)}, manifest_of({"a": torch.tensor([0.0, -0.0, 0.0])})) == (0,)


def test_only_parameters_that_differ_are_copied() -> None:
    ours = masters()
    theirs = {name: tensor.clone() for name, tensor in ours.items()}
    theirs["big.weight"][2, -1] = 9.0
    manifest = manifest_of(theirs)
    wanted = differing(ours, manifest)
    built = assemble(ours, manifest, {number: pieces_of(theirs)[number] for number in wanted})
    assert len(wanted) == 1
    assert [name for name in SHAPES if built[name] is not ours[name]] == ["big.weight"]
    assert bits(built["big.weight"]) == bits(theirs["big.weight"])
    assert float(ours["big.weight"][2, -1]) != 9.0


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_values_that_are_not_finite_are_refused_whatever_their_hash(value: float) -> None:
    theirs = masters(1)
    theirs["odd.bias"][2] = value
    with pytest.raises(ModelError, match=r"odd\.bias.*not finite"):
        assemble(masters(), manifest_of(theirs), pieces_of(theirs))


def test_a_manifest_of_another_table_is_refused() -> None:
    with pytest.raises(ModelError, match="does not match our parameters"):
        differing(masters(), manifest_of({"a": torch.zeros(3)}))
    with pytest.raises(ModelError, match="does not match our parameters"):
        assemble(masters(), manifest_of({"a": torch.zeros(3)}), {})


# ------------------------------------------------------------------------------------------------ trainers


def train(trainer: Trainer, step: int, *, sample: int) -> bytes:
    return trainer.train(step, toy_samples(sample)).payload


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_replica_that_installs_a_snapshot_is_bit_for_bit_its_maker(optimizer: str) -> None:
    """And stays so: both train on with results of their own, and apply the same."""
    maker, taker = build(optimizer, seed=1), build(optimizer, seed=2)
    for step in (1, 2, 3):
        payloads = [train(maker, step, sample=step), train(taker, step, sample=90 + step)]
        maker.apply(step, payloads, own_accepted=True)
        taker.apply(step, payloads[:1], own_accepted=False)
    assert maker.full_digest() != taker.full_digest()

    manifest = manifest_of(shared_tensors(maker._optimizer), step=3)
    wanted = taker.differing(manifest)
    assert wanted
    taker.install(manifest, {number: maker.read_piece(cut(maker.table)[number]) for number in wanted})

    assert taker.full_digest() == maker.full_digest()
    assert taker.differing(manifest) == ()
    for step in range(4, 9):
        payloads = [train(maker, step, sample=step), train(taker, step, sample=90 + step)]
        maker.apply(step, payloads, own_accepted=True)
        taker.apply(step, payloads[::-1], own_accepted=True)
        assert taker.full_digest() == maker.full_digest()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizer_state_is_forgotten(optimizer: str) -> None:
    """After an install a replica trains like one that started at these masters: nothing of its wrong past is sent."""
    maker, taker = build(optimizer, seed=1), build(optimizer, seed=2)
    for step in (1, 2):
        train(taker, step, sample=step)
    manifest = manifest_of(shared_tensors(maker._optimizer))
    taker.install(manifest, {piece.number: maker.read_piece(piece) for piece in cut(maker.table)})
    assert train(taker, 3, sample=7) == train(maker, 3, sample=7)


def spoilt(pieces: dict[int, bytes], how: str) -> dict[int, bytes]:
    number = max(pieces)
    if how == "missing":
        return {key: piece for key, piece in pieces.items() if key != number}
    if how == "false":
        return {**pieces, number: pieces[number][:-1] + bytes((pieces[number][-1] ^ 1,))}
    if how == "short":
        return {**pieces, number: pieces[number][:-4]}
    assert how == "long"
    return {**pieces, number: pieces[number] + bytes(4)}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("how", ["missing", "false", "short", "long"])
def test_a_bad_piece_changes_nothing(optimizer: str, how: str) -> None:
    maker, taker, twin = (build(optimizer, seed=seed) for seed in (1, 2, 2))
    maker.apply(1, [train(maker, 1, sample=1)], own_accepted=True)
    manifest = manifest_of(shared_tensors(maker._optimizer))
    pieces = {piece.number: maker.read_piece(piece) for piece in cut(maker.table)}
    before = taker.full_digest()
    with pytest.raises(ModelError, match="piece"):
        taker.install(manifest, spoilt(pieces, how))

    assert taker.full_digest() == before
    assert train(taker, 1, sample=3) == train(twin, 1, sample=3)  # not even optimizer state was forgotten


@pytest.mark.parametrize("count", [4, 6])
def test_a_manifest_that_names_bytes_of_another_length_is_refused(count: int) -> None:
    """The hash is right, the length is not that of our parameter: a lying manifest, not a broken transfer."""
    theirs, ours = masters(1), masters(0)
    lie = torch.zeros(count).numpy().tobytes()
    own = manifest_of(theirs)
    number = next(piece.number for piece in cut(own.table) if piece.name == "odd.bias")
    hashes = (*own.hashes[:number], hashlib.sha256(lie).digest(), *own.hashes[number + 1 :])
    with pytest.raises(ModelError, match=r"odd\.bias"):
        assemble(ours, Manifest("run", 4, own.table, hashes), {**pieces_of(theirs), number: lie})


class Disk(Mapping[int, bytes]):
    """Pieces that can be looked up; from the so-manieth look-up on the disk is broken. Counts how many are held at once."""

    def __init__(self, pieces: dict[int, bytes], *, broken_after: int = 10**9) -> None:
        self.pieces = pieces
        self.left = broken_after
        self.made: list[weakref.ref[Any]] = []
        self.most_held = 0

    def __getitem__(self, number: int) -> Any:
        if self.left == 0:
            raise OSError(errno.EIO, "Input/output error")

        self.left -= 1
        piece: Any = np.frombuffer(self.pieces[number], dtype=np.uint8).copy()
        self.made.append(weakref.ref(piece))
        self.most_held = max(self.most_held, sum(made() is not None for made in self.made))
        return memoryview(piece)

    def __contains__(self, number: object) -> bool:
        return number in self.pieces

    def __iter__(self) -> Iterator[int]:
        return iter(self.pieces)

    def __len__(self) -> int:
        return len(self.pieces)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_pieces_are_looked_up_one_at_a_time(optimizer: str) -> None:
    """Nothing holds a tensor's worth of them, let alone a model's; and masters keep the memory they have."""
    shapes = {"big.weight": (2 * VALUES + 5, 1), **TOY_SHAPES}
    maker, taker = build(optimizer, seed=1, shapes=shapes), build(optimizer, seed=2, shapes=shapes)
    disk = Disk(pieces_of(shared_tensors(maker._optimizer)))
    before = {name: master.data_ptr() for name, master in shared_tensors(taker._optimizer).items()}
    taker.install(manifest_of(shared_tensors(maker._optimizer)), disk)
    assert taker.full_digest() == maker.full_digest()
    assert disk.most_held <= 5, "four threads verify"
    assert {name: master.data_ptr() for name, master in shared_tensors(taker._optimizer).items()} == before


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_disk_that_breaks_while_masters_are_replaced_is_told_from_one_that_breaks_before(optimizer: str) -> None:
    maker = build(optimizer, seed=1)
    manifest, pieces = manifest_of(shared_tensors(maker._optimizer)), pieces_of(shared_tensors(maker._optimizer))
    count = len(pieces)
    outcomes: list[str] = []
    while "replaced" not in outcomes:  # a state may be read once more, to check it
        broken_after = len(outcomes)
        assert broken_after <= 3 * count
        taker = build(optimizer, seed=2)
        before = taker.full_digest()
        try:
            taker.install(manifest, Disk(pieces, broken_after=broken_after))
        except ModelHalfReplaced:
            outcomes.append("half")
            taker.install(manifest, Disk(pieces))  # and can be mended
            assert taker.full_digest() == maker.full_digest()
        except ModelError:
            assert taker.full_digest() == before
            outcomes.append("unchanged")
        else:
            assert taker.full_digest() == maker.full_digest()
            outcomes.append("replaced")
    unchanged, half = outcomes.count("unchanged"), outcomes.count("half")
    assert outcomes == ["unchanged"] * unchanged + ["half"] * half + ["replaced"], "in this order"
    assert (unchanged > count, half >= count - 1) == (True, True)


def test_new_masters_can_be_looked_up_and_copied_anywhere() -> None:
    """By optimizers that know nothing of lazy parameters, and into tensors that are not contiguous."""
    ours, theirs = masters(0), masters(1)
    theirs["odd.bias"] = ours["odd.bias"].clone()
    manifest, pieces = manifest_of(theirs), pieces_of(theirs)
    wanted = differing(ours, manifest)
    new = assemble(ours, manifest, {number: pieces[number] for number in wanted})
    assert shapes_of(new) == shapes_of(theirs)
    assert list(new) == sorted(theirs)
    for name, tensor in theirs.items():
        assert bits(new[name]) == bits(tensor)
        target = torch.zeros(tensor.shape)
        copy_parameter(new, name, target)
        assert bits(target) == bits(tensor)
        if tensor.dim() == 2:
            turned = torch.zeros(tensor.shape[::-1]).t()
            copy_parameter(new, name, turned)
            assert bits(turned) == bits(tensor)
    assert new["odd.bias"] is ours["odd.bias"]


def test_equal_replicas_have_equal_manifests() -> None:
    encoded = {wire.encode(manifest_of(build("AdamW", seed=seed)._optimizer.masters)) for seed in (1, 1, 2)}
    assert len(encoded) == 2
