"""The command lines of a testnet's programs, after the name `psyche`, and what clients import."""

from __future__ import annotations

from pathlib import Path

from psyche_core.config.options.testnet import TestnetSettings
from psyche_core.config.run_config import DataFile, RunFile
from psyche_core.data.text_corpus import VALIDATION_FOLDER
from psyche_core.models.hf.model_types import MODEL_TYPES

HOST = "127.0.0.1"


def server_arguments(
    settings: TestnetSettings, *, state: Path, out: Path, serves_data: bool, metrics_port: int | None = None
) -> list[str]:
    """The server's command line, after the name of the program. state: run file. out: folder of the results; both absolute."""
    return [
        *("server", "run", "--state", str(state), "--host", HOST),
        *(("--data-config", str(settings.config_path.absolute() / "data.toml")) if serves_data else ()),
        *("--backend", settings.backend, "--server-port", str(settings.server_port)),
        *(("--log", settings.log) if settings.log is not None else ()),
        *(("--with-relay", "--relay-port", str(settings.relay_port)) if settings.with_relay else ()),
        *("--logs", "json", "--events-file", str(out / "events" / "server.jsonl")),
        *_metrics(metrics_port),
    ]


def client_arguments(
    settings: TestnetSettings,
    name: str,
    *,
    run_id: str,
    key: Path,
    data: DataFile | None,
    out: Path,
    measures: bool,
    metrics_port: int | None = None,
) -> list[str]:
    """A client's command line, without its backend's options. key: its file. out: folder of the results, absolute.

    measures: it also measures validation loss and keeps checkpoints.
    """
    more: list[str] = []
    if measures:
        more = ["--checkpoint-dir", str(out / "checkpoint")]
        if settings.publish_journal:
            more += ["--publish-journal", str(out / "journals")]
        if settings.write_distro_data is not None:
            more += ["--write-distro-data", str(settings.write_distro_data.absolute())]
        if settings.eval_tasks is not None:
            more += ["--eval-tasks", settings.eval_tasks]
            if settings.eval_include_path is not None:
                more += ["--eval-include-path", str(settings.eval_include_path.absolute())]
        if settings.show_text:
            more += ["--prompt-task"]
        validation = settings.validation_data or held_out(data)
        if validation is not None:
            more += ["--validation-data", str(validation.absolute())]
            more += ["--validation-sequences", str(settings.validation_sequences)]
            if data is not None:
                more += ["--validation-token-size", data.token_size]
    return [
        *("client", "train", "--run-id", run_id, "--backend", settings.backend),
        *("--identity-secret-key-path", str(key), "--bind-p2p-interface", HOST),
        *("--device", settings.device, "--torch-threads", str(settings.torch_threads)),
        *("--micro-batch-size", str(settings.micro_batch_size), "--compute-dtype", settings.compute_dtype),
        *("--attention", settings.attention, *(["--gradient-checkpointing"] if settings.gradient_checkpointing else [])),
        *("--cache-dir", str(out / "cache"), "--base", str(settings.run_base)),
        *("--logs", "json", "--events-file", str(out / "events" / f"{name}.jsonl"), *more),
        *(("--log", settings.log) if settings.log is not None else ()),
        *_metrics(metrics_port),
        *(("--optim-stats-steps", str(settings.optim_stats_steps)) if settings.optim_stats_steps is not None else ()),
    ]


def client_modules(settings: TestnetSettings, run: RunFile) -> list[str]:
    """Modules that every client imports, for a process from which clients are forked; none if they must not be forked.

    No plugin's: its author does not know that it must start no thread and open no file when it is imported. Libraries of other
    devices than the CPU do not work after a fork.
    """
    if settings.device != "cpu":
        return []

    modules = ["psyche_core.cli.commands.member.client", "psyche_core.ui.display"]
    modules += ["psyche_core.client.setup.assemble", "psyche_core.training.trainer"]
    return [*modules, "psyche_core.builtin.hf_models"] if run.model.LLM.architecture in MODEL_TYPES else modules


def _metrics(port: int | None) -> list[str]:
    return [] if port is None else ["--metrics-local-port", str(port)]


def held_out(data: DataFile | None) -> Path | None:
    """The path of the server's held-out text; None if its data file holds out none."""
    if data is None or data.text is None or data.text.held_out == 0:
        return None

    return data.dir / VALIDATION_FOLDER
