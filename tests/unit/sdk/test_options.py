"""Every option of `psyche client train` does something in a program, or is refused with what to use instead.

An option takes effect if the client's own parts read it, which a run shows: the settings note who reads which of their values.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sdk_parts import DATA, make_net, make_run

import psyche_core as psyche
from psyche_core.config.options.client import ClientSettings
from psyche_core.sdk.arguments import settings as settings_module
from psyche_core.sdk.arguments.settings import EmbeddedSettings

EVENTS = r"use callbacks= or client\.events\(\)"
FIGURES = r"use client\.metrics, or callbacks="
REFUSED: dict[str, tuple[Any, str]] = {
    "logs": ("json", EVENTS),
    "log": ("psyche=debug", r"set the levels of Python's loggers, such as logging\.getLogger\('psyche'\)\.setLevel\('DEBUG'\)"),
    "write_log": ("log", EVENTS),
    "events_file": ("events.jsonl", EVENTS),
    "events_dir": ("events", EVENTS),
    "keep_event_files": (3, EVENTS),
    "metrics_local_port": (8999, FIGURES),
    "otlp_metrics_url": ("http://127.0.0.1:4318/v1/metrics", FIGURES),
    "otlp_tracing_url": ("http://127.0.0.1:4318/v1/traces", EVENTS),
    "otlp_logs_url": ("http://127.0.0.1:4318/v1/logs", EVENTS),
    "otlp_auth_header": ("secret", EVENTS),
    "otlp_report_interval": (5.0, EVENTS),
    "tracker": (("wandb",), EVENTS),
    "raw_identity_secret_key": ("ab" * 32, "use key="),
    "server_addr": ("127.0.0.1:20000", "give the address as the first argument"),
    "identity_secret_key_path": ("me.key", "use key="),
}
"""A value of each, and what a program uses."""

ARGUMENTS = {"run_id", "backend", "transport", "checkpoint_dir", "device", "micro_batch_size", "base"}
"""Options that are arguments of a Client under the same name."""

RUNS: dict[str, dict[str, Any]] = {
    "one process": {
        "reconnect_seconds": 30.0,
        "bind_p2p_interface": "127.0.0.1",
        "bind_p2p_port": 0,
        "compute_dtype": "float32",
        "attention": "auto",
        "gradient_checkpointing": False,
        "data_parallelism": 1,
        "tensor_parallelism": 1,
        "sidecar_local_ranks": 1,
        "torch_threads": 1,
        "journal_size": 10**6,
        "publish_journal": Path("published"),
        "keep_steps": 2,
        "model_store": "file:///{folder}/stored",
        "delete_old_steps": True,
        "cache_dir": Path("cache"),
        "max_concurrent_parameter_requests": 2,
        "max_concurrent_downloads": 2,
        "validation_data": Path("held_out"),
        "validation_token_size": "TwoBytes",
        "validation_sequences": 1,
        "optim_stats_steps": 1,
        "write_gradients_dir": Path("own"),
        "write_distro_data": Path("accepted"),
        "dummy_training_delay_secs": 0.001,
    },
    "evaluations": {
        "hub_repo": "stored",
        "eval_tasks": "none-such",
        "eval_seed": 1,
        "eval_task_max_docs": 2,
        "eval_fewshot": 1,
        "eval_include_path": Path("held_out"),
        "prompt_task": True,
    },
    "bucket": {"gcs_bucket": "file:///{folder}/stored", "gcs_prefix": "models"},
    "several processes": {
        "data_parallelism": 2,
        "sharding": "none-such",
        "sidecar_bind": "127.0.0.1",
        "sidecar_secret_file": Path("secret"),
    },
}
"""Options of runs that show together that all others are read. Paths are below the test's folder."""


def read_by_the_client(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The options that modules below the SDK have asked for. It grows."""
    asked: set[str] = set()

    class Noted(EmbeddedSettings):
        def __getattribute__(self, name: str) -> Any:
            if name in ClientSettings.model_fields and sys._getframe(1).f_globals["__name__"].startswith("psyche_core.client."):
                asked.add(name)
            return super().__getattribute__(name)

    monkeypatch.setattr(settings_module, "EmbeddedSettings", Noted)
    return asked


def placed(value: Any, folder: Path) -> Any:
    """The value with its place below a folder."""
    if isinstance(value, Path):
        return folder / value
    return value.format(folder=str(folder).lstrip("/")) if isinstance(value, str) else value


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with held-out tokens, a place for models, and a secret of several processes."""
    (tmp_path / "held_out").mkdir()
    np.array(DATA[:2], dtype="<u2").tofile(tmp_path / "held_out" / "tokens.ds")
    (tmp_path / "stored").mkdir()
    (tmp_path / "secret").write_text("ab" * 16)
    (tmp_path / "secret").chmod(0o600)
    return tmp_path


def marked(name: str) -> Any:
    """A run as a parameter. The library of evaluations reads its list of all tasks for half a minute."""
    return pytest.param(RUNS[name], id=name, marks=[pytest.mark.soak, pytest.mark.slow] if name == "evaluations" else [])


@pytest.mark.parametrize("options", [marked(name) for name in RUNS])
async def test_what_is_not_refused_is_used(options: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = read_by_the_client(monkeypatch)
    missing = pytest.raises(psyche.errors.PluginMissing, match="none-such")
    given = {name: placed(value, folder) for name, value in options.items()}
    with missing if "sharding" in options else contextlib.nullcontext():
        await psyche.train_async(
            make_run(clients=1, steps=4, steps_per_epoch=2),
            model=make_net(),
            data=DATA,
            device="cpu",
            base=folder,
            checkpoint_dir=folder / "checkpoints",
            options=given,
        )
    assert set(options) <= asked, "of these nobody asks, so they do nothing"
    assert "events_dir" not in asked, "only the command asks for it"
    for value in options.values():
        assert not isinstance(value, Path) or any((folder / value).parent.glob(value.name)), value


def test_every_option_is_in_one_of_the_tables() -> None:
    used = {name for options in RUNS.values() for name in options}
    assert used | ARGUMENTS | set(REFUSED) == set(ClientSettings.model_fields)
    assert not used & ARGUMENTS
    assert not (used | ARGUMENTS) & set(REFUSED)


@pytest.mark.parametrize("name", REFUSED)
def test_what_only_the_command_can_do_is_refused_with_what_to_use(name: str) -> None:
    value, instead = REFUSED[name]
    with pytest.raises(psyche.errors.ConfigError, match=f"^options: {name} is for the command line; {instead}$"):
        psyche.Client("127.0.0.1:20000", run_id="tiny", options={name: value})
    with pytest.raises(TypeError, match=f"^Client has no argument {name}=; it is for the command line; {instead}$"):
        psyche.Client("127.0.0.1:20000", run_id="tiny", **{name: value})


@pytest.mark.parametrize("name", sorted(ARGUMENTS - {"run_id"}))
def test_an_argument_of_its_own_is_no_option(name: str) -> None:
    with pytest.raises(psyche.errors.ConfigError, match=f"^options: {name} is an argument of its own$"):
        psyche.Client("127.0.0.1:20000", run_id="tiny", options={name: "x"})


@pytest.mark.parametrize("name", ["RAW_IDENTITY_SECRET_KEY", "PSYCHE_RAW_IDENTITY_SECRET_KEY"])
def test_a_key_by_the_name_of_its_environment_variable_is_refused_and_not_shown(name: str) -> None:
    with pytest.raises(psyche.errors.ConfigError, match=f"^options: {name} is for the command line; use key=$"):
        psyche.Client("127.0.0.1:20000", run_id="tiny", options={name: "ab" * 32})
