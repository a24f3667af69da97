"""The data server's key in the run's model: in the state that members are told it follows the place of their data server.

So a client that knows the coordinator can verify the data server. The run's file has the place alone.
"""

from __future__ import annotations

from psyche_core.config.run_config import Choice, ModelConfig


def with_data_key(model: ModelConfig, key: bytes | None) -> ModelConfig:
    """The model whose data server is published with this key; without a key for None, as in the run's file."""
    llm = model.LLM
    if llm.data_location.name != "Server":
        return model

    table = llm.data_location.settings or {}
    place = str(table.get("location", "")).partition("#")[0]
    location = Choice("Server", {**table, "location": place if key is None else f"{place}#{key.hex()}"})
    return model.model_copy(update={"LLM": llm.model_copy(update={"data_location": location})})
