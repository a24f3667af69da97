from psyche_model_tiny_gru.model import create_tiny_gru

from psyche_core.testing.model import ModelConformance

TINY = {"model_type": "tiny_gru", "vocab_size": 61, "hidden_size": 16}


class TestTinyGru(ModelConformance):
    create = staticmethod(create_tiny_gru)
    config = TINY
