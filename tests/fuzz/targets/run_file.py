"""`state.toml`: read, or refused with ConfigError that has a sentence for every problem."""

from __future__ import annotations

from pathlib import Path
from random import Random

from psyche_core.config.run_config import from_plain, parse_run_file, to_plain
from psyche_core.errors import ConfigError
from tests.fuzz.mutation import change_toml

__all__ = ["DOCUMENTED", "LOCAL_TESTNET", "MAX_BYTES", "MEMORY", "TARGET", "mutate", "seeds"]

DOCUMENTED = (ConfigError,)
MAX_BYTES = 4096
MEMORY = (4000, 1_000_000)  # tomllib keeps flags for every part of every key

_EXAMPLE = Path(__file__).parents[3] / "examples" / "local_testnet" / "state.toml"
LOCAL_TESTNET = "\n".join(line for line in _EXAMPLE.read_text().splitlines() if line and not line.startswith("#"))


def seeds() -> list[bytes]:
    plugin = LOCAL_TESTNET.replace("[model.LLM.data_location]\nServer =", "[model.LLM.data_location.Local]\nlocation =")
    saved = "run_state = 'Paused'\n" + LOCAL_TESTNET + "\n[progress]\nepoch = 1\nstep = 9\nepoch_start_data_index = 24\n"
    return [text.encode() for text in (LOCAL_TESTNET, plugin, saved)]


def mutate(data: bytes, random: Random) -> bytes:
    return change_toml(data, random)


def TARGET(data: bytes) -> None:
    run_file = parse_run_file(data.decode(errors="replace"), source="state.toml")
    for table in (run_file.config, run_file.model):
        assert from_plain(type(table), to_plain(table)) == table
