"""The data server's key in the run's model: in the state that members get, the key follows the data server's address.

So a client that knows the coordinator can verify the data server. The run's file has only the address.
"""

from __future__ import annotations

from psyche_core.config.run_config import Choice, ModelConfig


def with_data_key(model: ModelConfig, key: bytes | None) -> ModelConfig:
    """Return the model whose data server is published with this key; None: without a key, as in the run's file."""
    llm = model.LLM
    if llm.data_location.name != "Server":
        return model

    table = llm.data_location.settings or {}
    place = str(table.get("location", "")).partition("#")[0]
    location = Choice("Server", {**table, "location": place if key is None else f"{place}#{key.hex()}"})
    return model.model_copy(update={"LLM": llm.model_copy(update={"data_location": location})})
