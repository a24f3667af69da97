"""`data.toml`: read, or refused with ConfigError. What is read can be used: paths can be looked for, the seed has 32 bytes."""

from __future__ import annotations

from pathlib import Path
from random import Random

from psyche_core.config.run_config import parse_data_file
from psyche_core.errors import ConfigError
from tests.fuzz.mutation import change_toml

__all__ = ["DOCUMENTED", "MAX_BYTES", "MEMORY", "TARGET", "mutate", "seeds"]

DOCUMENTED = (ConfigError,)
MAX_BYTES = 1024
MEMORY = (4000, 1_000_000)

_EXAMPLE = Path(__file__).parents[3] / "examples" / "local_testnet" / "data.toml"
_NOWHERE = Path("/nonexistent")


def seeds() -> list[bytes]:
    text = "\n".join(line for line in _EXAMPLE.read_text().splitlines() if line and not line.startswith("#"))
    plain = "dir = 'x'\ntoken_size = 'FourBytes'\nseq_len = 2048\nshuffle_seed = [" + ", ".join(map(str, range(32))) + "]\n"
    return [text.encode(), plain.encode()]


def mutate(data: bytes, random: Random) -> bytes:
    return change_toml(data, random)


def TARGET(data: bytes) -> None:
    data_file = parse_data_file(data.decode(errors="replace"), source="data.toml").resolved(_NOWHERE)
    assert len(data_file.seed) == 32
    assert data_file.token_bytes in (2, 4)
    assert "\0" not in str(data_file.dir)
    assert data_file.text is None or "\0" not in str(data_file.text.tokenizer)
