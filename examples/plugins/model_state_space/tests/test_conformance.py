"""Every check that a model must pass."""

import json
from pathlib import Path

from psyche_model_state_space.model import create_model

from psyche_core.hookspecs import ModelContext
from psyche_core.testing.model import ModelConformance
from psyche_core.testing.registration import RegistrationConformance

CONFIG = {"model_type": "state_space", "vocab_size": 61, "hidden_size": 16, "state_size": 24, "num_layers": 2}


class TestStateSpace(ModelConformance):
    create = staticmethod(create_model)
    config = CONFIG


class TestRegistration(RegistrationConformance):
    kind, name = "model", "StateSpace"

    def context(self, settings: None, folder: Path) -> ModelContext:
        (folder / "config.json").write_text(json.dumps(CONFIG))
        return ModelContext(source=folder, max_seq_len=8, seed=bytes(32), device="cpu")
