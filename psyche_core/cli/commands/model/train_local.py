"""`psyche train-local`: a run's model and optimizer in one process, for authors of models."""

from __future__ import annotations

import functools
from typing import Any

import click

from psyche_core.cli.lazy import example
from psyche_core.cli.metrics_port import metrics_sinks
from psyche_core.cli.missing_tokens import make_missing_tokens
from psyche_core.cli.options import ENVIRONMENT_NOTE, TrackerOptions, settings_options
from psyche_core.cli.otlp_export import otlp_sinks
from psyche_core.cli.program import log_to_stderr, open_report, run_program
from psyche_core.cli.trackers import running_trackers
from psyche_core.config.options.loading import load_settings
from psyche_core.config.options.train_local import TrainLocalSettings


@click.command(
    "train-local",
    cls=TrackerOptions,
    context_settings={"max_content_width": 110},
    epilog=example(
        "psyche train-local --state examples/local_testnet/state.toml --data examples/local_testnet/data",
        "psyche train-local --state state.toml --data tokens --validation-data tokens/validation --members 4 --steps 200",
        "psyche train-local --state state.toml --data tokens --tracker tensorboard",
        "psyche train-local --model HuggingFaceTB/SmolLM2-135M --data-path tokens --total-batch 8 --micro-batch 2",
        note="Results are applied two steps late, as in a run. " + ENVIRONMENT_NOTE,
    ),
)
@settings_options(TrainLocalSettings)
def train_local(**given: Any) -> int:
    """Train a run's model on this machine alone: no server, no network, the same steps. One process does all of it.

    With --state the run is that of a run file; with --model and --data it is made from the options.
    """
    own = {name: value for name, value in given.items() if name in TrainLocalSettings.model_fields}
    settings = load_settings(TrainLocalSettings, own)
    log_to_stderr(settings.log)
    make_missing_tokens(settings.data, settings.validation_data)
    from psyche_core.cli.screens import open_program_display
    from psyche_core.client.setup import train_local as program
    from psyche_core.plugins import PluginRegistry

    title = settings.model or "train-local" if settings.state is None else settings.state.stem
    registry = PluginRegistry.discover()
    with (
        open_program_display(settings.logs, kind="client", title=title) as display,
        running_trackers(settings.tracker, given, registry) as trackers,
        metrics_sinks(settings.metrics_local_port) as figures,
        otlp_sinks(settings) as telemetry,
        open_report(
            display.sink, *trackers, *figures, *telemetry, events_file=settings.events_file, write_log=settings.write_log
        ) as report,
    ):
        ended = run_program(functools.partial(program.train_local, settings, registry, report))
    return 0 if ended.success else 1
