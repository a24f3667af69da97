"""Public state beside the masters: in digests and manifests, from member to member; and nothing changes where there is none."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Literal

import pytest
import torch

from psyche_core.builtin.adamw import AdamW
from psyche_core.builtin.adamw_settings import AdamWSettings
from psyche_core.errors import ModelError, WireError
from psyche_core.p2p.manifest import Manifest, cut, decode, encode
from psyche_core.testing.toy_model import TOY_SHAPES, ToyModel, toy_samples
from psyche_core.training.digest import full_digest
from psyche_core.training.shared_tensors import PREFIX, shared_digest, shared_tensors
from psyche_core.training.trainer import Trainer
from psyche_optim_distro.optimizer import DistroOptimizer
from psyche_optim_distro.settings import DistroSettings


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Member(Trainer):
    def __init__(self, *, seed: int = 0, second_stage: Literal["rmsprop"] | None = "rmsprop") -> None:
        model = ToyModel(seed=seed)
        settings = DistroSettings(
            compression_topk=8, compression_chunk=16, quantize_1bit=True, weight_decay=0.1, second_stage=second_stage
        )
        self.optimizer = DistroOptimizer(settings, model)
        super().__init__(model=model, optimizer=self.optimizer, learning_rate=lambda _: 0.01, micro_batch_size=1)

    def step(self, number: int, *, sample: int | None = None) -> bytes:
        return self.train(number, toy_samples(number if sample is None else sample)).payload

    def manifest(self, step: int = 5) -> Manifest:
        hashes = tuple(hashlib.sha256(self.read_piece(piece)).digest() for piece in cut(self.table))
        return Manifest("run", step, self.table, hashes)


def play(*members: Member, first: int = 1, steps: int = 5) -> None:
    """Everybody trains, and applies what all sent."""
    for number in range(first, first + steps):
        payloads = [member.step(number, sample=100 * number + slot) for slot, member in enumerate(members)]
        for slot, member in enumerate(members):
            member.apply(number, payloads[slot:] + payloads[:slot], own_accepted=True)


def fetch(taker: Member, maker: Member) -> None:
    """The taker installs what differs, read from the maker."""
    manifest = decode(encode(maker.manifest()), expected=taker.table)
    pieces = cut(manifest.table)
    taker.install(manifest, {number: maker.read_piece(pieces[number]) for number in taker.differing(manifest)})


def some_state(member: Member) -> torch.Tensor:
    state: torch.Tensor = member.optimizer.public_state["mean_square.layers.2.mlp.weight"]
    return state


# ---------------------------------------------------------------------------------------------------------------- without


def test_an_optimizer_without_public_state_shares_exactly_its_masters() -> None:
    """Its digests and manifests are those of versions that did not know of public state."""
    model = ToyModel()
    for optimizer in (AdamW(AdamWSettings(), model), Member(second_stage=None).optimizer):
        assert optimizer.public_state == {}
        assert shared_tensors(optimizer) is optimizer.masters
        assert shared_digest(optimizer) == full_digest(optimizer.masters)
    trainer = Member(second_stage=None)
    masters = trainer.optimizer.masters
    trainer.optimizer.load_parameters(
        {name: torch.arange(masters[name].numel()).view(shape) / 8 for name, shape in TOY_SHAPES.items()}
    )
    assert [parameter.name for parameter in trainer.table] == sorted(TOY_SHAPES)
    encoded = hashlib.sha256(encode(trainer.manifest())).hexdigest()
    assert (trainer.full_digest().hex(), encoded) == WITHOUT_STATE


WITHOUT_STATE = (
    "c93252f6477904164808588812d82f2697a1ad6b124772fdd933d38df9156cc0",
    "cb7305cf2a8ade404b3edd81f6a7faf208f507fa7ec7d3c45543c2fadc4a5872",
)
"""Of the version before public state (commit d5e857c): full digest, and SHA-256 of the encoded manifest."""


def test_a_state_of_zeros_has_the_digest_of_the_masters_alone() -> None:
    """So a checkpoint without public state has the digest that was signed for it."""
    member = Member()
    assert member.full_digest() == full_digest(member.optimizer.masters)
    some_state(member)[0, 0] = -0.0
    assert member.full_digest() != full_digest(member.optimizer.masters), "a negative zero is not zero bit for bit"


# ------------------------------------------------------------------------------------------------------------------- with


def test_digests_and_manifests_differ_where_only_the_state_differs() -> None:
    one, other = Member(), Member()
    play(one, other)
    assert one.full_digest() == other.full_digest() != full_digest(one.optimizer.masters)
    assert encode(one.manifest()) == encode(other.manifest())
    state = some_state(other)
    state[1, 2] = torch.nextafter(state[1, 2], torch.tensor(9.0))
    assert full_digest(one.optimizer.masters) == full_digest(other.optimizer.masters)
    assert one.full_digest() != other.full_digest()
    (number,) = one.differing(other.manifest())
    assert cut(one.table)[number].name == f"{PREFIX}mean_square.layers.2.mlp.weight"


def test_the_state_is_a_part_of_the_table_under_a_prefix() -> None:
    member = Member()
    names = [parameter.name for parameter in member.table]
    assert names == sorted([*TOY_SHAPES, f"{PREFIX}correction", *(f"{PREFIX}mean_square.{name}" for name in TOY_SHAPES)])
    assert member.parameter_count == sum(torch.Size(shape).numel() for shape in TOY_SHAPES.values())


def test_a_manifest_without_the_state_is_refused() -> None:
    """And one with a state where we have none: the members have different optimizers."""
    with_state, without = Member(), Member(second_stage=None)
    for ours, theirs in ((with_state, without), (without, with_state)):
        with pytest.raises(WireError):
            decode(encode(theirs.manifest()), expected=ours.table)
        with pytest.raises(ModelError, match="does not match our parameters"):
            ours.differing(theirs.manifest())


@pytest.mark.parametrize("second_stage", ["rmsprop", None])
def test_a_parameter_with_a_reserved_name_is_refused_when_the_trainer_is_built(second_stage: Literal["rmsprop"] | None) -> None:
    """Also with an optimizer without public state: load_shared would leave the parameter out."""
    model = ToyModel({f"{PREFIX}correction": (3,), "w": (4,)})
    optimizer = DistroOptimizer(DistroSettings(compression_topk=2, quantize_1bit=True, second_stage=second_stage), model)
    with pytest.raises(
        ModelError, match=r"^the model's parameter public_state/correction begins with public_state/, which is .*rename"
    ):
        Trainer(model=model, optimizer=optimizer, learning_rate=lambda _: 0.01, micro_batch_size=1)


def test_a_joiner_stays_equal_for_60_steps() -> None:
    """It takes masters and state from one member, had other ones before, and trains and applies with them."""
    members = [Member(), Member()]
    play(*members, steps=7)
    joiner = Member(seed=9)
    play(joiner, steps=3)
    fetch(joiner, members[0])
    assert joiner.full_digest() == members[0].full_digest()
    for number in range(8, 68):
        play(*members, joiner, first=number, steps=1)
        assert len({member.full_digest() for member in (*members, joiner)}) == 1


def test_a_joiner_without_the_state_would_not_stay_equal() -> None:
    """What the state is carried for: the same masters alone lead elsewhere."""
    one, other = Member(), Member()
    play(one)
    other.optimizer.load_parameters({name: master.clone() for name, master in one.optimizer.masters.items()})
    assert full_digest(one.optimizer.masters) == full_digest(other.optimizer.masters)
    play(one, other, first=6, steps=1)
    assert full_digest(one.optimizer.masters) != full_digest(other.optimizer.masters)


def test_state_alone_can_be_mended() -> None:
    """Only its piece is fetched, and the masters keep their values."""
    one, other = Member(), Member()
    play(one, other)
    some_state(other).mul_(2)
    manifest = one.manifest()
    wanted = other.differing(manifest)
    assert len(wanted) == 1
    other.install(manifest, {number: one.read_piece(cut(one.table)[number]) for number in wanted})
    assert other.full_digest() == one.full_digest()


def test_a_false_state_that_does_not_match_the_manifest_changes_nothing() -> None:
    """A liar names the right manifest, and serves another state."""
    honest, taker = Member(), Member(seed=3)
    play(honest)
    manifest, before = honest.manifest(), taker.full_digest()
    pieces: Mapping[int, bytes] = {piece.number: honest.read_piece(piece) for piece in cut(honest.table)}
    lied = next(piece for piece in cut(honest.table) if piece.name == f"{PREFIX}mean_square.embed.weight")
    with pytest.raises(ModelError, match=r"public_state/mean_square\.embed\.weight.* does not match the hash"):
        taker.install(manifest, {**pieces, lied.number: bytes(lied.byte_count)})
    assert taker.full_digest() == before


def test_what_forgets_private_state_keeps_the_public_one() -> None:
    member = Member()
    play(member)
    member.step(6)
    before = member.full_digest()
    member.forget()
    assert member.full_digest() == before
    assert not any(bool(delta.any()) for delta in member.optimizer.delta.values())
