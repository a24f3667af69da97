"""What is particular to LionVote."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from psyche_optim_lion_vote.optimizer import LionVote
from psyche_optim_lion_vote.settings import LionVoteSettings
from pydantic import ValidationError

from psyche_core.errors import PayloadRejected
from psyche_core.testing.toy_model import ToyModel

HEADER_BYTES = 13


class Member:
    """One with a single parameter w, whose gradients are given."""

    def __init__(self, size: int = 4, *, weight_decay: float = 0.0) -> None:
        self.model = ToyModel({"w": (size,)})
        self.optimizer = LionVote(LionVoteSettings(weight_decay=weight_decay), self.model)

    @property
    def weights(self) -> torch.Tensor:
        return self.optimizer.masters["w"]

    def vote(self, gradient: Sequence[float], *, step: int = 1) -> bytes:
        self.model.parameters["w"].grad = torch.tensor(gradient)
        return self.optimizer.compress(step, learning_rate=0.5)


def test_the_majority_decides_and_a_size_counts_for_nothing() -> None:
    gradients = ([1.0, 1.0, -1.0, -1.0], [1.0, -1e-9, -1.0, 1.0], [-1e30, -1e-9, -1.0, 1.0])
    votes = [Member().vote(gradient) for gradient in gradients]
    member = Member()
    before = member.weights.clone()
    member.optimizer.apply(1, votes, learning_rate=0.5, own_accepted=False)
    assert torch.equal(member.weights, before - 0.5 * torch.tensor([1.0, -1.0, -1.0, 1.0]))


def test_a_draw_moves_nothing_but_weight_decay() -> None:
    votes = [Member().vote([1.0, 1.0, -1.0, -1.0]), Member().vote([1.0, -1.0, 1.0, -1.0])]
    member = Member(weight_decay=0.25)
    before = member.weights.clone()
    member.optimizer.apply(1, votes, learning_rate=0.5, own_accepted=False)
    assert torch.equal(member.weights, 0.875 * before - 0.5 * torch.tensor([1.0, 0.0, 0.0, -1.0]))


def test_one_member_is_lion() -> None:
    """Against the formula of the paper, in float64; with random gradients no vote is near zero."""
    random = np.random.default_rng(1)
    member = Member(64, weight_decay=0.1)
    weights = member.weights.numpy().astype(np.float64)
    momentum = np.zeros(64)
    for step in range(1, 21):
        gradient = random.normal(size=64)
        vote = member.vote(gradient.astype(np.float32).tolist(), step=step)
        member.optimizer.apply(step, [vote], learning_rate=0.01, own_accepted=True)
        weights -= 0.01 * (np.sign(0.9 * momentum + 0.1 * gradient) + 0.1 * weights)
        momentum = 0.99 * momentum + 0.01 * gradient
        np.testing.assert_allclose(member.weights.numpy(), weights, atol=1e-5)


def test_a_vote_that_was_not_accepted_is_made_up_for_by_later_votes() -> None:
    """b1 * (1 - b2) * b2**k of a gradient is in the vote k steps later: all of it and 1 - b1 of its own vote are 1."""
    accepted, refused = Member(), Member()
    for member in (accepted, refused):
        vote = member.vote([1.0, 2.0, 3.0, -4.0])
        payloads = [vote] if member is accepted else []
        member.optimizer.apply(1, payloads, learning_rate=0.5, own_accepted=member is accepted)
    later = [0.9 * sum(0.99**k for k in range(5000)) * member.optimizer.momentum["w"] for member in (accepted, refused)]
    gradient = torch.tensor([1.0, 2.0, 3.0, -4.0])
    torch.testing.assert_close(later[0], 0.9 * gradient)
    torch.testing.assert_close(later[1], gradient)


def test_what_no_member_has_seen_is_a_coin_of_each() -> None:
    """Members' coins differ; one that restarted throws the same ones; and a decided vote is never thrown."""
    size = 4000
    first, again, other = (Member(size) for _ in range(3))
    votes = [member.vote([sign, *[0.0] * (size - 1)]) for member, sign in ((first, 1.0), (again, 1.0), (other, -1.0))]
    assert votes[0] == votes[1]
    bits = [np.unpackbits(np.frombuffer(vote, np.uint8, offset=HEADER_BYTES)).astype(int) for vote in votes]
    assert (bits[0][0], bits[2][0]) == (1, 0)
    assert abs(bits[0].mean() - 0.5) < 0.05
    assert abs((bits[0] == bits[2]).mean() - 0.5) < 0.05


def test_a_payload_is_a_bit_for_each_parameter() -> None:
    model = ToyModel({"a": (3, 7), "b": (64,)})
    optimizer = LionVote(LionVoteSettings(), model)
    model.fill_gradients(1.0)
    payload = optimizer.compress(1, learning_rate=0.5)
    assert len(payload) == optimizer.max_payload_bytes == HEADER_BYTES + 3 + 8
    optimizer.check(payload)
    padded = bytearray(payload)
    padded[HEADER_BYTES + 2] |= 1
    with pytest.raises(PayloadRejected, match="padding bits behind a must be zero"):
        optimizer.check(bytes(padded))


@pytest.mark.parametrize("settings", [{"betas": (0.0, 0.99)}, {"betas": (0.9, 1.0)}, {"betas": (0.9,)}, {"weight_decay": -0.1}])
def test_settings_have_bounds(settings: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        LionVoteSettings.model_validate(settings)
