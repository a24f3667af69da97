"""Every check that an optimizer must pass."""

from psyche_optim_majority_vote.optimizer import MajorityVote
from psyche_optim_majority_vote.settings import MajorityVoteSettings

from psyche_core.interfaces import Model
from psyche_core.testing.optimizer import OptimizerConformance
from psyche_core.testing.registration import RegistrationConformance


class TestMajorityVote(OptimizerConformance):
    capabilities = frozenset({"exact"})

    def make_optimizer(self, model: Model) -> MajorityVote:
        return MajorityVote(MajorityVoteSettings(weight_decay=0.1), model)


class TestRegistration(RegistrationConformance):
    kind, name = "optimizer", "MajorityVote"
