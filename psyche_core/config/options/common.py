"""Types, units and explanations of options that several programs have."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, JsonValue, PlainValidator
from pydantic_settings import NoDecode

from psyche_core.config.options.log_filters import checked_filters

SECONDS: dict[str, JsonValue] = {"unit": "SECONDS"}
"""Placeholder for the value in a command's help, read by `cli.options`. A field without a unit is shown as a plain number."""

WRITE_LOG = "File to append the lines to that --logs console shows, and warnings, whatever --logs says."
LogLevels = Annotated[str, AfterValidator(checked_filters)]
LOG = (
    "Which log lines to show on standard error, as in RUST_LOG: a level (off, error, warn, info, debug), levels of loggers, or "
    "both, as in info,psyche.p2p=debug. Default: warn."
)
Logs = Literal["auto", "tui", "console", "json", "none"]
LOGS = (
    "auto: live panel on a terminal, otherwise lines; tui: full screen, also --tui; console: lines; json: one event per line; "
    "none: nothing"
)


def _micro_batch_size(value: Any) -> Any:
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    if value == "auto" or (type(value) is int and value >= 1):
        return value

    message = "must be auto or a whole number of at least 1"
    raise ValueError(message)


MicroBatchSize = Annotated[int | Literal["auto"], PlainValidator(_micro_batch_size)]
MICRO_BATCH_SIZE = (
    "Sequences per forward pass, or auto for as many as fit into memory. It changes memory use and speed, but not results. It is "
    "reduced automatically when memory runs out."
)
ComputeDtype = Literal["float32", "bfloat16"]
COMPUTE_DTYPE = "Number format of matrix products; weights and their gradients stay float32."
Attention = Literal["auto", "sdpa", "eager"]
ATTENTION = "sdpa: torch's fused attention; eager: unfused attention; auto: sdpa if the model supports it."
GRADIENT_CHECKPOINTING = "Recompute activations in the backward pass instead of storing them: less memory, more time."
DATA_PARALLELISM = "Processes that divide the sequences of a share among them. The weights are divided among them too."
TENSOR_PARALLELISM = (
    "Processes that compute each sequence together; each has a part of every layer. For Llama, Qwen2, Qwen3 and DeepSeek-V3. "
    "With both options there are data times tensor processes, including this one. Results are the same except for rounding."
)
SHARDING = "Plugin that divides the model among processes: dtensor (part of torch) or deepspeed."
SIDECAR_BIND = (
    "HOST:PORT where processes on other machines connect (`psyche sidecar --help`); HOST alone means port 34567. Use a trusted "
    "network: everyone who can reach this address can disturb training. Without this option all processes run on this machine."
)
SIDECAR_LOCAL_RANKS = "Number of processes on this machine, including this one; default: all of them."
SIDECAR_FILE = "File with the shared secret of the processes, at least 16 bytes (`openssl rand -hex 32`)."


def tracker_names(value: Any) -> tuple[str, ...]:
    """Names given one by one, or separated by commas, each once."""
    parts = [value] if isinstance(value, str) else list(value)
    return tuple(dict.fromkeys(name.strip() for part in parts for name in str(part).split(",") if name.strip()))


TrackerNames = Annotated[tuple[str, ...], NoDecode, BeforeValidator(tracker_names)]
TRACKER = (
    "Tracker that keeps this client's figures, by plugin name: wandb, tensorboard. May be given several times, or several names "
    "separated by commas. A tracker has further options, shown when it is named. It never delays training."
)
METRICS_PORT = (
    "Port of 127.0.0.1 that serves this program's figures: /metrics for Prometheus, / as JSON, /healthz; 0 picks a free one. "
    "Needs the extra `metrics`."
)
OTLP_METRICS_URL = (
    "URL of an OpenTelemetry collector for this program's figures, by OTLP over HTTP; it probably ends in /v1/metrics. Needs the "
    "extra `otlp`."
)
OTLP_TRACING_URL = "The same for rounds, as spans; it probably ends in /v1/traces."
OTLP_LOGS_URL = "The same for events and log lines; it probably ends in /v1/logs."
OTLP_AUTH_HEADER = (
    "Value of the header Authorization for these URLs. Other users of this machine can read command lines; "
    "PSYCHE_OTLP_AUTH_HEADER in the environment is better."
)
OTLP_REPORT_INTERVAL = "Time between two reports of figures."


def _http_url(value: str) -> str:
    if re.match(r"https?://[^\s/]+", value) is None:
        message = "must be a URL, such as http://127.0.0.1:4318/v1/metrics"
        raise ValueError(message)

    return value


HttpUrl = Annotated[str, AfterValidator(_http_url)]


def their_spelling(option: str) -> dict[str, JsonValue]:
    """The Rust programs' spelling of an option of OTLP, as `json_schema_extra`."""
    return {"aliases": [f"--oltp-{option}"]}


EVENTS_DIR = (
    "Folder for this program's events, as JSON lines: FOLDER/RUN/ROLE-ID.TIME.jsonl, a new file for each epoch. "
    "`psyche web --events FOLDER` shows them as pages, `psyche replay` plays them."
)
KEEP_EVENT_FILES = "Number of this program's newest files to keep in --events-dir; 0 keeps all."
WEB_PORT = "Port of a web page that shows the run live; 0 picks a free one. Default: no page. Needs the extra `web`."
WEB_HOST = (
    "Address to serve the page on; 0.0.0.0 for every interface. Put a web server with TLS in front of a page for the internet."
)
TOKENS = (
    "File of tokens that visitors of the page must know, one a line: TOKEN for everything, RUN TOKEN for one run. Without it "
    "everybody who reaches the page may read it (`openssl rand -hex 24 > tokens && chmod 600 tokens`)."
)
