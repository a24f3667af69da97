"""Conformance of an optimizer. A plugin's whole test is:

    class TestSparseSign(OptimizerConformance):
        def make_optimizer(self, model):
            return SparseSign(Settings(), model)

Every optimizer goes through the overlapped schedule of protocol section 3 (apply s - 2 before training s), with members that
have no share in a round and payloads that are not accepted, on a toy model with odd shapes. The only test of training quality is
that the loss falls.
"""

from __future__ import annotations

from psyche_core.testing.optimizer.conformance import OptimizerConformance
from psyche_core.testing.optimizer.replicas import Replica, copy_shared, digest, play_rounds, shared

__all__ = ["OptimizerConformance", "Replica", "copy_shared", "digest", "play_rounds", "shared"]
