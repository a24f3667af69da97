"""Conformance of a model architecture. A plugin's whole test is:

    class TestTinyGru(ModelConformance):
        create = staticmethod(create_tiny_gru)
        config = TINY  # {"model_type": "tiny_gru", "vocab_size": 61, ...}

Models are built small, with random weights, on the CPU and with one thread. Speed and quality are not judged.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch

from psyche_core.errors import ModelError
from psyche_core.hookspecs import ModelContext
from psyche_core.interfaces.data import IGNORED_LABEL, Samples
from psyche_core.interfaces.model import Model
from psyche_core.testing.conformance import Conformance
from psyche_core.testing.contracts import CONTRACTS, Contract
from psyche_core.testing.needs_pytest import pytest
from psyche_core.testing.sentences import assert_close, difference, differences, raises, shown


class ModelConformance(Conformance):
    """The requirements for every `Model`. Subclass it; override the attributes below, and `create`, the registration's factory.

    Attributes:
        config: written to config.json of the source folder; keep it under a million parameters.
        max_seq_len: longest sequence in the tests.
        prepared_samples: whether the model supports labels and packed texts; a model that does not must reject them.
    """

    contract: ClassVar[Contract] = CONTRACTS["model"]
    config: ClassVar[Mapping[str, Any]]
    max_seq_len: ClassVar[int] = 16
    prepared_samples: ClassVar[bool] = False

    @staticmethod
    def create(context: ModelContext) -> Model:
        """The factory under test; write `create = staticmethod(your_factory)`."""
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def one_thread(self) -> Iterator[None]:
        """Sums are equal only in one order of summation, so torch uses one thread."""
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        yield
        torch.set_num_threads(before)

    @pytest.fixture
    def source(self, tmp_path: Path) -> Path:
        """A folder with config.json and no weights."""
        folder = tmp_path / "source"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(dict(self.config)), encoding="utf-8")
        return folder

    @pytest.fixture
    def model(self, source: Path) -> Model:
        """A new model with random weights."""
        return self.build(source)

    def build(self, source: Path, *, seed: bytes = bytes(32)) -> Model:
        """A model on the CPU."""
        return self.create(ModelContext(source=source, max_seq_len=self.max_seq_len, seed=seed, device="cpu"))

    def samples(self, model: Model, *, count: int = 5, sequence_length: int = 12, seed: int = 0) -> Samples:
        """Random tokens of the model's vocabulary."""
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(model.vocab_size, (count, sequence_length), generator=generator)  # (B, T)
        tokens = b"".join(int(token).to_bytes(4, "little") for token in ids.flatten())
        return Samples(tokens, count, sequence_length, 4)

    def test_parameters_are_float_tensors_in_order_of_name(self, model: Model) -> None:
        """Names ascend; values are floating point, contiguous and finite; no tensor appears twice."""
        names = list(model.parameters)
        assert names, "parameters must have the trainable weights, got none"
        assert names == sorted(names), f"parameters must be in ascending order of name, got {shown(names)}; sort them"
        for name, tensor in model.parameters.items():
            assert tensor.is_floating_point(), f"parameters must be floating point, got {tensor.dtype} for {name}"
            assert tensor.is_contiguous(), f"parameters must be contiguous, got strides {tensor.stride()} for {name}"
            wrong = int((~tensor.isfinite()).sum())
            assert wrong == 0, f"parameters must be finite, got {wrong} values of {name} that are NaN or infinite"
        places = len({tensor.data_ptr() for tensor in model.parameters.values()})
        assert places == len(names), (
            f"tied weights must appear once in parameters, got {len(names)} names for {places} tensors in memory"
        )

    def test_same_context_gives_the_same_bits(self, source: Path) -> None:
        """Members of a run that starts from random weights must have equal weights, whatever ran in their process before."""
        first = self.build(source)
        torch.rand(3)
        assert_equal_weights(
            first, self.build(source), "the same ModelContext must give the same bits, for every member of a run"
        )

    def test_another_seed_gives_other_weights(self, source: Path) -> None:
        """Equal weights would mean that the seed is not used."""
        first, second = self.build(source), self.build(source, seed=b"\x01" * 32)
        assert any(not torch.equal(tensor, second.parameters[name]) for name, tensor in first.parameters.items()), (
            "another ModelContext.seed must give other random weights, got equal ones; use the seed"
        )

    def test_building_leaves_the_global_random_state_alone(self, source: Path) -> None:
        """A plugin must not disturb the program that embeds it."""
        before = torch.get_rng_state()
        self.build(source)
        assert torch.equal(torch.get_rng_state(), before), (
            "building a model must leave torch's global random state alone, and it changed; draw the weights in "
            "torch.random.fork_rng()"
        )

    def test_untrained_loss_is_near_uniform(self, model: Model) -> None:
        """Nats per predicted token: about log(vocabulary) on random tokens. Catches sums, bits and unshifted labels."""
        uniform = float(torch.log(torch.tensor(float(model.vocab_size))))
        loss = model.loss(self.samples(model), micro_batch_size=5)
        assert loss == pytest.approx(uniform, rel=0.25), (
            f"loss must be the mean in nats per predicted token, of an untrained model about log({model.vocab_size}) = "
            f"{uniform:.3g}, got {shown(loss)}; is it a sum, in bits, or are labels not shifted?"
        )

    def test_gradients_are_deterministic(self, model: Model) -> None:
        """The second call drops the first gradient and computes an equal one, bit for bit."""
        samples = self.samples(model)
        loss, first = model.gradients(samples, micro_batch_size=2), gradients_of(model)
        again, second = model.gradients(samples, micro_batch_size=2), gradients_of(model)
        assert again == loss, f"gradients must return the same loss for the same samples, bit for bit, {loss!r}, got {again!r}"
        assert all(torch.equal(tensor, second[name]) for name, tensor in first.items()), (
            "gradients must drop old gradients and give the same ones for the same samples, bit for bit; of the second call: "
            f"{differences(first, second)}"
        )

    def test_gradients_is_the_slope_of_loss(self, model: Model) -> None:
        """A small step along the gradient changes `loss` by the amount that the gradient predicts."""
        samples = self.samples(model)
        before = model.gradients(samples, micro_batch_size=5)
        alone = model.loss(samples, micro_batch_size=5)
        assert before == pytest.approx(alone, abs=1e-5), (
            f"gradients must return the same mean as loss, {shown(alone)}, got {shown(before)}"
        )
        gradients = gradients_of(model)
        squared_norm = squared_norm_of(gradients)
        step = 0.02 / squared_norm
        shift(model, gradients, -step / 2)
        low = model.loss(samples, micro_batch_size=5)
        shift(model, gradients, step)
        high = model.loss(samples, micro_batch_size=5)
        assert high - low == pytest.approx(step * squared_norm, rel=0.1), (
            f"a step along the gradient must change loss by what the gradient predicts, {step * squared_norm:.4g}, got "
            f"{high - low:.4g}; is .grad that of the mean which loss returns?"
        )

    @pytest.mark.parametrize("micro_batch_size", [1, 2, 3, 64])
    def test_micro_batches_change_nothing(self, model: Model, micro_batch_size: int) -> None:
        """5 sequences in micro batches of 2 weigh 2:2:1, in loss and gradient."""
        samples = self.samples(model, count=5)
        whole, expected = model.gradients(samples, micro_batch_size=5), gradients_of(model)
        split = model.gradients(samples, micro_batch_size=micro_batch_size)
        wanted = f"micro batches of {micro_batch_size} must change nothing: each counts by its number of predictions"
        assert split == pytest.approx(whole, abs=1e-5), f"{wanted}; gradients must return {shown(whole)}, got {shown(split)}"
        for name, gradient in gradients_of(model).items():
            assert_close(gradient, expected[name], f"{wanted}; the gradient of {name} is another", rtol=1e-5, atol=1e-5)
        split = model.loss(samples, micro_batch_size=micro_batch_size)
        assert split == pytest.approx(whole, abs=1e-5), f"{wanted}; loss must return {shown(whole)}, got {shown(split)}"

    def test_loss_leaves_gradients_and_weights_alone(self, model: Model) -> None:
        """Evaluation between two rounds must not affect training."""
        model.gradients(self.samples(model), micro_batch_size=5)
        gradients, weights = gradients_of(model), weights_of(model)
        model.loss(self.samples(model, seed=1), micro_batch_size=5)
        assert all(torch.equal(tensor, gradients[name]) for name, tensor in gradients_of(model).items()), (
            f"loss must leave the gradients as they are, and changed them: {differences(gradients, gradients_of(model))}"
        )
        assert all(torch.equal(tensor, weights[name]) for name, tensor in weights_of(model).items()), (
            f"loss must leave the weights as they are, and changed them: {differences(weights, weights_of(model))}"
        )

    @pytest.mark.parametrize("call", ["gradients", "loss"])
    def test_ids_out_of_the_vocabulary_are_refused(self, model: Model, call: str) -> None:
        """A wrong data set gives a clear error message, not an index error of a kernel."""
        samples = Samples(model.vocab_size.to_bytes(4, "little") * 4, 1, 4, 4)
        wanted = f"{call} must raise ModelError for ids outside the vocabulary, here {model.vocab_size}"
        with raises(ModelError, wanted, match=str(model.vocab_size)):
            getattr(model, call)(samples, micro_batch_size=1)

    def test_two_byte_and_four_byte_tokens_read_alike(self, model: Model) -> None:
        """Ids from 32768 up must not turn negative in two bytes; small vocabularies at least read little-endian."""
        ids = [0, model.vocab_size - 1, 1, min(300, model.vocab_size - 1)]
        short = Samples(b"".join(token.to_bytes(2, "little") for token in ids), 1, 4, 2)
        long = Samples(b"".join(token.to_bytes(4, "little") for token in ids), 1, 4, 4)
        two, four = model.loss(short, micro_batch_size=1), model.loss(long, micro_batch_size=1)
        assert two == four, (
            f"tokens of two and of four bytes are unsigned, little-endian, and must give the same loss for the ids {ids}, got "
            f"{shown(two)} and {shown(four)}"
        )

    def test_ignored_labels_count_for_nothing(self, model: Model) -> None:
        """A row without a label to predict does not change loss or gradient of the other row.

        A batch without any label is rejected.
        """
        samples = self.samples(model, count=2)
        one, other = texts_of(samples)
        labels = struct.pack("<12i", *[IGNORED_LABEL] * 12), struct.pack("<12i", *one)
        marked = replace(samples, tokens=packed_tokens(other) + packed_tokens(one), labels=b"".join(labels))
        if not self.prepared_samples:
            assert_refused(model, marked)
            return

        loss = model.gradients(text_samples(one), micro_batch_size=1)
        assert_same_slope(model, marked, loss, gradients_of(model))
        assert_refused(model, replace(marked, labels=labels[0] * 2))

    def test_only_labelled_tokens_are_predicted(self, model: Model) -> None:
        """With one label per row, the loss is that token's; the label of a row's first token has no effect."""
        (text,) = texts_of(self.samples(model, count=1))
        labels = [IGNORED_LABEL] * 12
        labels[0], labels[7] = text[0], text[7]
        marked = replace(text_samples(text), labels=struct.pack("<12i", *labels))
        if not self.prepared_samples:
            assert_refused(model, marked)
            return

        upto = [model.loss(text_samples(text[:length]), micro_batch_size=1) * (length - 1) for length in (7, 8)]
        loss = model.loss(marked, micro_batch_size=1)
        assert loss == pytest.approx(upto[1] - upto[0], abs=1e-4), (
            f"tokens with IGNORED_LABEL must have no loss and labels are shifted by the model, so the loss is that of token 7 "
            f"alone, {upto[1] - upto[0]:.5g}, got {shown(loss)}"
        )

    def test_packed_texts_count_as_if_alone(self, model: Model) -> None:
        """Texts of 5 and 4 tokens and padding in one row: 4 + 3 predictions, none across texts, none of padding."""
        (row,) = texts_of(self.samples(model, count=1))
        packed = replace(text_samples(row), sequence_lengths=((5, 4),))
        positions = struct.pack("<12I", *range(5), *range(4), *range(3))
        if not self.prepared_samples:
            assert_refused(model, packed)
            assert_refused(model, replace(text_samples(row), position_ids=positions))
            return

        parts = []
        for text in (row[:5], row[5:9]):
            loss = model.gradients(text_samples(text), micro_batch_size=1)
            parts.append((len(text) - 1, loss, gradients_of(model)))
        loss = sum(count * loss for count, loss, _ in parts) / 7
        (_, _, first), (_, _, second) = parts
        expected = {name: (4 * first[name] + 3 * second[name]) / 7 for name in first}
        assert_same_slope(model, packed, loss, expected)
        assert_same_slope(model, replace(packed, position_ids=positions), loss, expected)

    def test_descent_learns_a_fixed_batch(self, model: Model) -> None:
        """Ten steps of gradient descent on one batch, each long enough to lower a linear loss by 0.02."""
        samples = self.samples(model)
        before = model.loss(samples, micro_batch_size=5)
        for _ in range(10):
            model.gradients(samples, micro_batch_size=5)
            gradients = gradients_of(model)
            shift(model, gradients, -0.02 / squared_norm_of(gradients))
        after = model.loss(samples, micro_batch_size=5)
        assert after < before - 0.1, (
            f"ten steps of gradient descent on one batch must lower its loss by more than 0.1, got {shown(before)} before and "
            f"{shown(after)} after"
        )

    def test_saved_model_is_built_again_with_the_same_bits(self, model: Model, source: Path) -> None:
        """`save` writes the parameters given, not the compute weights; the same factory reads them."""
        masters = {name: tensor.detach().float() + 0.5 for name, tensor in model.parameters.items()}
        target = source.parent / "saved"
        model.save(target, parameters=masters)
        again = self.build(target, seed=b"\x02" * 32)
        for name, tensor in again.parameters.items():
            assert torch.equal(tensor.detach(), masters[name].to(tensor.dtype)), (
                "save must write the parameters that it is given, and the same factory must read them from there, bit for bit; "
                f"{name}: {difference(masters[name].to(tensor.dtype), tensor.detach())}"
            )
        left = [path.name for path in source.parent.iterdir() if "saved" in path.name]
        assert left == ["saved"], f"save must leave no temporary files beside its folder, got {shown(left)}"

    def test_saving_replaces_an_older_checkpoint(self, model: Model, source: Path) -> None:
        """Nothing of the older checkpoint remains."""
        target = source.parent / "saved"
        target.mkdir()
        (target / "stale.txt").write_text("old")
        model.save(target, parameters=model.parameters)
        assert not (target / "stale.txt").exists(), (
            "save must replace the folder, and a file of the older checkpoint is still there; the folder appears complete or not "
            "at all"
        )
        assert_equal_weights(model, self.build(target), "what save wrote must be read with the same bits")

    def test_refused_save_leaves_the_older_checkpoint(self, model: Model, source: Path) -> None:
        """Parameters of a wrong shape are rejected before anything is replaced."""
        target = source.parent / "saved"
        model.save(target, parameters=model.parameters)
        name = next(iter(model.parameters))
        wrong = {**model.parameters, name: torch.zeros(1, 2, 3)}
        with raises(ModelError, f"save must raise ModelError for parameters of a wrong shape, here of {name}", match=r"shape"):
            model.save(target, parameters=wrong)
        assert_equal_weights(model, self.build(target), "a refused save must leave the older checkpoint as it was")

    def test_missing_configuration_is_named(self, tmp_path: Path) -> None:
        """An empty source folder is a ModelError about config.json."""
        with raises(ModelError, "a source folder without config.json must be a ModelError that names it", match=r"config\.json"):
            self.build(tmp_path)


def texts_of(samples: Samples) -> list[list[int]]:
    """Token ids of each row of samples with 4-byte tokens."""
    ids = struct.unpack(f"<{samples.count * samples.sequence_length}I", samples.tokens)
    length = samples.sequence_length
    return [list(ids[start : start + length]) for start in range(0, len(ids), length)]


def packed_tokens(ids: Sequence[int]) -> bytes:
    """Token ids in 4 bytes each."""
    return struct.pack(f"<{len(ids)}I", *ids)


def text_samples(ids: Sequence[int]) -> Samples:
    """One plain row."""
    return Samples(packed_tokens(ids), 1, len(ids), 4)


def assert_refused(model: Model, samples: Samples) -> None:
    """Check that the samples raise ModelError, in `gradients` and in `loss`."""
    for call in (model.gradients, model.loss):
        wanted = f"{call.__name__} must raise ModelError for samples that the model does not support or without any prediction"
        with raises(ModelError, wanted):
            call(samples, micro_batch_size=1)


def assert_same_slope(model: Model, samples: Samples, loss: float, expected: Mapping[str, torch.Tensor]) -> None:
    """Check that loss and gradient of the samples are the expected ones, up to rounding."""
    wanted = "ignored labels and padding must not count, and each packed text counts as if it had its own row"
    came = model.gradients(samples, micro_batch_size=1)
    assert came == pytest.approx(loss, abs=1e-5), f"{wanted}; gradients must return {shown(loss)}, got {shown(came)}"
    came = model.loss(samples, micro_batch_size=1)
    assert came == pytest.approx(loss, abs=1e-5), f"{wanted}; loss must return {shown(loss)}, got {shown(came)}"
    for name, gradient in gradients_of(model).items():
        assert_close(gradient, expected[name], f"{wanted}; the gradient of {name} is another", rtol=1e-4, atol=1e-5)


def weights_of(model: Model) -> dict[str, torch.Tensor]:
    """Copies of the compute weights by name."""
    return {name: tensor.detach().clone() for name, tensor in model.parameters.items()}


def gradients_of(model: Model) -> dict[str, torch.Tensor]:
    """Copies of the gradients by name; every parameter must have one."""
    without = [name for name, tensor in model.parameters.items() if tensor.grad is None]
    assert not without, f"gradients must store a gradient in .grad of every parameter, {len(without)} have none: {shown(without)}"
    return {name: tensor.grad.clone() for name, tensor in model.parameters.items()}


def squared_norm_of(gradients: Mapping[str, torch.Tensor]) -> float:
    """Squared L2 norm over all tensors together."""
    return sum(float(gradient.double().square().sum()) for gradient in gradients.values())


def shift(model: Model, direction: Mapping[str, torch.Tensor], step: float) -> None:
    """Move the weights by step * direction, as an optimizer writes compute weights."""
    with torch.no_grad():
        for name, tensor in model.parameters.items():
            tensor.add_(direction[name], alpha=step)


def assert_equal_weights(first: Model, second: Model, wanted: str = "two models must have equal weights") -> None:
    """Check that two models have equal parameter names and bits. wanted: what a failure says that the contract wants."""
    one, other = dict(first.parameters), dict(second.parameters)
    assert list(one) == list(other), f"{wanted}, got the names {shown(list(other))} instead of {shown(list(one))}"
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), f"{wanted}, got for {name}: {difference(tensor.detach(), other[name].detach())}"
