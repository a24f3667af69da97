"""What a testnet tells its programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from psyche_core.cli.commands.member.client import train
from psyche_core.config.options.testnet import TestnetSettings
from psyche_core.testnet.arguments import client_arguments
from psyche_core.testnet.results_folder import CHECKPOINTS, JOURNALS


@pytest.mark.parametrize("publishes", [False, True])
def test_the_client_that_keeps_checkpoints_publishes_its_journals_where_that_is_wanted(publishes: bool) -> None:
    out = Path("/results")
    settings = TestnetSettings(config_path=Path("config"), num_clients=2, publish_journal=publishes)

    def options_of(*, measures: bool) -> dict[str, str]:
        words = client_arguments(settings, "client-1", run_id="run", key=out / "key", data=None, out=out, measures=measures)
        return {word: following for word, following in zip(words, [*words[1:], ""], strict=True) if word.startswith("--")}

    first = options_of(measures=True)
    assert first["--checkpoint-dir"] == str(out / CHECKPOINTS)
    assert first.get("--publish-journal") == (str(out / JOURNALS) if publishes else None)
    assert "--publish-journal" not in options_of(measures=False)


def test_all_clients_measure_their_optimizer_and_the_first_writes_the_results_of_all() -> None:
    out = Path("/results")
    settings = TestnetSettings(config_path=Path("config"), num_clients=2, optim_stats_steps=5, write_distro_data=Path("/data"))
    for first in (True, False):
        words = client_arguments(settings, "client-1", run_id="run", key=out / "key", data=None, out=out, measures=first)
        assert words[words.index("--optim-stats-steps") + 1] == "5"
        assert ("--write-distro-data" in words) is first
        given = train.make_context("psyche", words[2:]).params
        assert (given["optim_stats_steps"], given["write_distro_data"]) == (5, Path("/data") if first else None)
