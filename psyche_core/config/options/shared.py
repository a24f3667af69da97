"""Options that several programs have in common: classes from which the programs' own classes inherit.

A command shows them after its own options. An option of one program alone belongs in that program's class, and a text of options
whose rules differ from program to program in `common`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, JsonValue

from psyche_core.config.options import common, groups
from psyche_core.config.options.loading import ProgramSettings


def _http_url(value: str) -> str:
    if re.match(r"https?://[^\s/]+", value) is None:
        message = "must be a URL, such as http://127.0.0.1:4318/v1/metrics"
        raise ValueError(message)

    return value


HttpUrl = Annotated[str, AfterValidator(_http_url)]


def rust_spelling(option: str) -> dict[str, JsonValue]:
    """The Rust programs' spelling of an option of OTLP, as `json_schema_extra`."""
    return {"aliases": [f"--oltp-{option}"]}


class ComputeOptions(ProgramSettings):
    """How a program that trains uses its machine."""

    device: str = Field(
        default="auto",
        json_schema_extra=groups.COMPUTE,
        description="auto, cpu, mps, cuda, cuda:N, or cuda:X,Y to divide each batch among several GPUs.",
    )
    compute_dtype: common.ComputeDtype = Field(
        default="float32", json_schema_extra=groups.COMPUTE, description=common.COMPUTE_DTYPE
    )
    attention: common.Attention = Field(default="auto", json_schema_extra=groups.COMPUTE, description=common.ATTENTION)
    gradient_checkpointing: bool = Field(
        default=False, json_schema_extra=groups.COMPUTE, description=common.GRADIENT_CHECKPOINTING
    )
    data_parallelism: int = Field(
        default=1,
        ge=1,
        le=1024,
        json_schema_extra=groups.DEVICES,
        description="Processes that divide the sequences of a share among them. The weights are divided among them too.",
    )
    tensor_parallelism: int = Field(
        default=1,
        ge=1,
        le=1024,
        json_schema_extra=groups.DEVICES,
        description=(
            "Processes that compute each sequence together; each has a part of every layer. For Llama, Qwen2, Qwen3 and "
            "DeepSeek-V3. With both options there are data times tensor processes, including this one. Results are the same "
            "except for rounding."
        ),
    )
    sharding: str = Field(
        default="dtensor",
        json_schema_extra=groups.DEVICES,
        description="Plugin that divides the model among processes: dtensor (part of torch) or deepspeed.",
    )
    sidecar_bind: str | None = Field(
        default=None,
        json_schema_extra=groups.DEVICES,
        description=(
            "HOST:PORT where processes on other machines connect (`psyche sidecar --help`); HOST alone means port 34567. Use a "
            "trusted network: everyone who can reach this address can disturb training. Without this option all processes run on "
            "this machine."
        ),
    )
    sidecar_local_ranks: int | None = Field(
        default=None,
        ge=1,
        json_schema_extra=groups.DEVICES,
        description="Number of processes on this machine, including this one; default: all of them.",
    )
    sidecar_secret_file: Path | None = Field(
        default=None,
        json_schema_extra=groups.DEVICES,
        description="File with the shared secret of the processes, at least 16 bytes (`openssl rand -hex 32`).",
    )
    torch_threads: int | None = Field(
        default=None, ge=1, json_schema_extra=groups.COMPUTE, description="CPU threads for torch; default: chosen by torch."
    )


class LogOptions(ProgramSettings):
    """Where a program's events, log lines and figures go on its own machine."""

    log: common.LogLevels | None = Field(
        default=None, json_schema_extra=groups.SCREEN | {"unit": "FILTERS"}, description=common.LOG
    )
    events_file: Path | None = Field(
        default=None, json_schema_extra=groups.SCREEN, description="File to append every event to, as JSON lines."
    )
    write_log: Path | None = Field(
        default=None,
        json_schema_extra=groups.SCREEN,
        description="File to append the lines to that --logs console shows, and warnings, whatever --logs says.",
    )
    metrics_local_port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        json_schema_extra=groups.TELEMETRY,
        description=(
            "Port of 127.0.0.1 that serves this program's figures: /metrics for Prometheus, / as JSON, /healthz; 0 picks a free "
            "one. Needs the extra `metrics`."
        ),
    )


class OtlpOptions(ProgramSettings):
    """Where a program's telemetry goes: an OpenTelemetry collector."""

    otlp_metrics_url: HttpUrl | None = Field(
        default=None,
        json_schema_extra=groups.TELEMETRY | rust_spelling("metrics-url"),
        description=(
            "URL of an OpenTelemetry collector for this program's figures, by OTLP over HTTP; it usually ends in /v1/metrics. "
            "Needs the extra `otlp`."
        ),
    )
    otlp_tracing_url: HttpUrl | None = Field(
        default=None,
        json_schema_extra=groups.TELEMETRY | rust_spelling("tracing-url"),
        description="The same for rounds, as spans; it usually ends in /v1/traces.",
    )
    otlp_logs_url: HttpUrl | None = Field(
        default=None,
        json_schema_extra=groups.TELEMETRY | rust_spelling("logs-url"),
        description="The same for events and log lines; it usually ends in /v1/logs.",
    )
    otlp_auth_header: str | None = Field(
        default=None,
        repr=False,
        json_schema_extra=groups.TELEMETRY | rust_spelling("auth-header"),
        description=(
            "Value of the header Authorization for these URLs. Other users of this machine can read command lines; "
            "PSYCHE_OTLP_AUTH_HEADER in the environment is better."
        ),
    )
    otlp_report_interval: float = Field(
        default=60.0,
        ge=1,
        json_schema_extra=groups.TELEMETRY | common.SECONDS | rust_spelling("report-interval"),
        description="Time between two reports of figures.",
    )


class ReportingOptions(LogOptions, OtlpOptions):
    """Also: a folder of events, and an OpenTelemetry collector."""

    events_dir: Path | None = Field(
        default=None,
        json_schema_extra=groups.SCREEN,
        description=(
            "Folder for this program's events, as JSON lines: FOLDER/RUN/ROLE-ID.TIME.jsonl, a new file for each epoch. "
            "`psyche web --events FOLDER` shows them as pages, `psyche replay` plays them."
        ),
    )
    keep_event_files: int = Field(
        default=0,
        ge=0,
        json_schema_extra=groups.SCREEN,
        description="Number of this program's newest files to keep in --events-dir, besides its first one since its start, which "
        "says whose they are; 0 keeps all.",
    )
