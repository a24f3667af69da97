"""`[model.network]`: which relays a run names; it changes nothing where it is not there, and has its place in the image."""

from __future__ import annotations

from pathlib import Path

import pytest

from psyche_core.config.rules import model_tables
from psyche_core.config.run_config import ModelConfig, from_plain, parse_run_file, to_plain
from psyche_core.coordinator import new_state
from psyche_core.coordinator.canonical_image import decode, encode
from psyche_core.errors import ConfigError
from psyche_core.interfaces import StateUpdate

RUN = (Path(__file__).parents[3] / "examples" / "local_testnet" / "state.toml").read_text()
RELAYS = ("https://relay.example.org", "http://203.0.113.7:3340")
TABLE = f"\n[model.network]\nrelays = {list(RELAYS)}\n".replace("'", '"')


def model(text: str) -> ModelConfig:
    return parse_run_file(text, source="state.toml").model


def test_a_run_names_relays_and_they_survive_wire_and_image() -> None:
    named = model(RUN + TABLE)
    assert named.relays == RELAYS
    assert from_plain(ModelConfig, to_plain(named)) == named
    run = parse_run_file(RUN + TABLE, source="state.toml")
    state = new_state(run.run_id, run.config, run.model, now=1, instance=bytes(32))
    assert decode(encode(state)).model.relays == RELAYS
    assert StateUpdate(state, relays=("http://a", RELAYS[0])).all_relays == (*RELAYS, "http://a")


def test_without_the_table_everything_looks_as_before() -> None:
    bare = model(RUN)
    assert bare.relays == ()
    assert set(to_plain(bare)) == {"LLM"}
    assert b"network" not in model_tables(bare)


@pytest.mark.parametrize(
    "url", ["http://0.0.0.0:3340", "https://0.0.0.0", "http://[::]:3340/", "http://[0:0::0]", "http://0:3340"]
)
def test_a_relay_at_every_address_is_at_none(url: str) -> None:
    with pytest.raises(
        ConfigError, match=r"must be a URL at which members reach the relay, got http.*, which means every address"
    ):
        model(f'{RUN}\n[model.network]\nrelays = ["{url}"]\n')


@pytest.mark.parametrize("url", ["http://10.0.0.0:3340", "http://[::1]:3340", "http://0.example.org", "http://[2001:db8::]:80"])
def test_a_host_with_zeros_in_it_is_a_host(url: str) -> None:
    assert model(f'{RUN}\n[model.network]\nrelays = ["{url}"]\n').relays == (url,)


@pytest.mark.parametrize(
    "wrong", ['["relay.example.org"]', '["ftp://a"]', '"https://a"', str(["https://a"] * 9).replace("'", '"')]
)
def test_what_is_no_list_of_relays_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match=r"model\.network\.relays"):
        model(f"{RUN}\n[model.network]\nrelays = {wrong}\n")
