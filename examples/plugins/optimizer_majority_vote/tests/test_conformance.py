"""Every check that an optimizer must pass."""

from psyche_optim_lion_vote.optimizer import LionVote
from psyche_optim_lion_vote.settings import LionVoteSettings

from psyche_core.interfaces import Model
from psyche_core.testing.optimizer import OptimizerConformance
from psyche_core.testing.registration import RegistrationConformance


class TestLionVote(OptimizerConformance):
    capabilities = frozenset({"exact"})

    def make_optimizer(self, model: Model) -> LionVote:
        return LionVote(LionVoteSettings(weight_decay=0.1), model)


class TestRegistration(RegistrationConformance):
    kind, name = "optimizer", "LionVote"
