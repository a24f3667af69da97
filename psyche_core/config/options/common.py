"""Types, units and explanations of options that several programs have."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, JsonValue, PlainValidator
from pydantic_settings import NoDecode

from psyche_core.config.options.log_filters import checked_filters

SECONDS: dict[str, JsonValue] = {"unit": "SECONDS"}
"""Placeholder for the value in a command's help, read by `cli.options`. A field without a unit is shown as a plain number."""

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


def tracker_names(value: Any) -> tuple[str, ...]:
    """Names given one by one, or separated by commas, each once."""
    parts = [value] if isinstance(value, str) else list(value)
    return tuple(dict.fromkeys(name.strip() for part in parts for name in str(part).split(",") if name.strip()))


TrackerNames = Annotated[tuple[str, ...], NoDecode, BeforeValidator(tracker_names)]
TRACKER = (
    "Tracker that keeps this client's figures, by plugin name: wandb, tensorboard, mlflow. May be given several times, or "
    "several names separated by commas. A tracker has further options, shown when it is named. It never delays training."
)
OPTIM_STATS = (
    "Every so many steps report statistics of the optimizer for each group of tensors: norms of weights, update and own "
    "momentum, and how many signs agree. They go to events, trackers and the metrics port, and change nothing. Default: never."
)
WEB_PORT = "Port of a web page that shows the run live; 0 picks a free one. Default: no page. Needs the extra `web`."
WEB_HOST = (
    "Address to serve the page on; 0.0.0.0 for every interface. Put a web server with TLS in front of a page for the internet."
)
WEB_PER_ADDRESS = (
    "Most connections of one IP address to the page at once, of 200 in all; a browser needs a few. Behind a web server all "
    "visitors come from its address: give 200 then, and limit visitors there."
)
TOKENS = (
    "File of tokens that visitors of the page must know, one a line: TOKEN for everything, RUN TOKEN for one run. Without it "
    "everybody who reaches the page may read it (`openssl rand -hex 24 > tokens && chmod 600 tokens`)."
)
