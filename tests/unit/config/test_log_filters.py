"""Filters of log lines are read as RUST_LOG is, and wrong ones are one sentence."""

from __future__ import annotations

import logging

import pytest
from pydantic import BaseModel

from psyche_core.config.options.client import ClientSettings
from psyche_core.config.options.loading import load_settings
from psyche_core.config.options.log_filters import LogFilters, parse_log_filters
from psyche_core.config.options.server import ServerSettings
from psyche_core.config.options.testnet import TestnetSettings
from psyche_core.config.options.train_local import TrainLocalSettings
from psyche_core.errors import ConfigError

W, D, OFF = logging.WARNING, logging.DEBUG, logging.CRITICAL + 1


@pytest.mark.parametrize(
    ("text", "filters"),
    [
        ("info", LogFilters(logging.INFO, {})),
        ("warn,psyche=debug", LogFilters(W, {"psyche": D})),
        ("psyche.p2p=debug", LogFilters(None, {"psyche.p2p": D})),
        (" WARN , psyche::p2p = Trace ,", LogFilters(W, {"psyche.p2p": D})),
        ("off,psyche", LogFilters(OFF, {"psyche": D})),
        ("error,warning", LogFilters(W, {})),
        ("psyche_core.x-y=off", LogFilters(None, {"psyche_core.x-y": OFF})),
    ],
)
def test_filters(text: str, filters: LogFilters) -> None:
    assert parse_log_filters(text) == filters


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("psyche=loud", "'loud' is no level; levels are off, error, warn"),
        ("info,[span]=debug", r"'\[span\]' is no name of a logger"),
        ("=debug", "'' is no name of a logger"),
        (",", "must be levels or filters, such as info"),
        ("psyche..x=info", "is no name of a logger"),
        ("a\x1b[2J=info", r"'a\\x1b\[2J' is no name"),
    ],
)
def test_a_wrong_filter_is_one_sentence_that_names_the_option(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=rf"^--log: got .*; .*{said}"):
        load_settings(ClientSettings, {"run_id": "r", "log": text})


@pytest.mark.parametrize("settings", [ClientSettings, ServerSettings, TestnetSettings, TrainLocalSettings])
def test_every_program_that_runs_long_takes_them(settings: type[BaseModel]) -> None:
    assert "log" in settings.model_fields
