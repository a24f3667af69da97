"""Options of `psyche testnet start`."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, field_validator, model_validator

from psyche_core.config.options import common, groups
from psyche_core.config.options.loading import ProgramSettings


class TestnetSettings(ProgramSettings):
    """All options of `psyche testnet start`."""

    __test__ = False  # not a test class, although pytest would collect it because of its name

    config_path: Path = Field(
        json_schema_extra=groups.RUN, description="Folder with state.toml and, if the server serves the data, data.toml."
    )
    base: Path | None = Field(
        default=None,
        json_schema_extra=groups.RUN,
        description="Folder at which relative paths of the run file start; default: that of --config-path.",
    )
    num_clients: int = Field(ge=1, le=256, json_schema_extra=groups.RUN, description="Client processes to start.")
    backend: str = Field(default="tcp", json_schema_extra=groups.RUN, description="Coordinator backend to host, by plugin name.")
    transport: str = Field(
        default="quic", json_schema_extra=groups.NETWORK, description="Transport between the clients, by plugin name."
    )
    server_port: int = Field(
        default=20000, ge=0, le=65535, json_schema_extra=groups.NETWORK, description="Port of the server; 0 picks a free one."
    )
    with_relay: bool = Field(
        default=False,
        json_schema_extra=groups.NETWORK,
        description="The server also runs a relay, which the clients use, as with `psyche server run --with-relay`.",
    )
    relay_port: int = Field(
        default=3340,
        ge=0,
        le=65535,
        json_schema_extra=groups.NETWORK,
        description="With --with-relay: TCP port of the relay, and UDP port of its address observer; 0 picks a free one.",
    )
    out: Path | None = Field(
        default=None,
        json_schema_extra=groups.RUN,
        description="Folder for report, events, logs, keys and checkpoints; runs/<run_id>.",
    )
    overwrite: bool = Field(
        default=False,
        json_schema_extra=groups.RUN,
        description="Delete an earlier testnet's run in the folder of --out; without this option such a folder is refused.",
    )
    validation_data: Path | None = Field(
        default=None,
        json_schema_extra=groups.EVALUATION,
        description="Held-out tokens for the first client; default: data/validation in the config folder, if it exists.",
    )
    validation_sequences: int = Field(
        default=64, ge=1, json_schema_extra=groups.EVALUATION, description="Number of held-out sequences for each measurement."
    )
    device: str = Field(default="cpu", json_schema_extra=groups.COMPUTE, description="Device of every client: cpu, cuda, …")
    micro_batch_size: common.MicroBatchSize = Field(
        default=8, json_schema_extra=groups.COMPUTE, description=common.MICRO_BATCH_SIZE
    )
    compute_dtype: common.ComputeDtype = Field(
        default="float32", json_schema_extra=groups.COMPUTE, description=common.COMPUTE_DTYPE
    )
    attention: common.Attention = Field(default="auto", json_schema_extra=groups.COMPUTE, description=common.ATTENTION)
    gradient_checkpointing: bool = Field(
        default=False, json_schema_extra=groups.COMPUTE, description=common.GRADIENT_CHECKPOINTING
    )
    torch_threads: int = Field(default=1, ge=1, json_schema_extra=groups.COMPUTE, description="CPU threads of each client.")
    random_kill_num: int = Field(
        default=0,
        ge=0,
        json_schema_extra=groups.FAULTS,
        description="Number of clients to kill (kill -9) and restart at each interval; 0: none.",
    )
    random_kill_interval: float = Field(
        default=120.0,
        gt=0,
        json_schema_extra=groups.FAULTS | common.SECONDS,
        description="Time between kills; longer while too few clients have restarted for the run to continue.",
    )
    random_kill_seconds: float | None = Field(
        default=None,
        gt=0,
        json_schema_extra=groups.FAULTS | common.SECONDS,
        description="How long after the first step clients are killed; default: until the end.",
    )
    random_kill_seed: int | None = Field(
        default=None,
        json_schema_extra=groups.FAULTS,
        description="Seed that selects the clients to kill; default: a random one, which is printed.",
    )
    allowed_to_kill: str | None = Field(
        default=None,
        json_schema_extra=groups.FAULTS,
        description="Numbers of the clients that may be killed, for instance 1,2; default: all.",
    )
    lose_route_after: int | None = Field(
        default=None,
        ge=1,
        json_schema_extra=groups.FAULTS,
        description="After this step, make the first route to the coordinator fail, to test that nothing is lost. For backends "
        "with several routes (solana: RPC providers).",
    )
    eval_tasks: str | None = Field(
        default=None,
        json_schema_extra=groups.EVALUATION,
        description="Benchmarks that the first client measures, as `psyche client train --eval-tasks`.",
    )
    eval_include_path: Path | None = Field(
        default=None,
        json_schema_extra=groups.EVALUATION,
        description="Folder with benchmarks of your own, as YAML files of lm-evaluation-harness.",
    )
    publish_journal: bool = Field(
        default=False,
        json_schema_extra=groups.CHECKPOINTS,
        description="The first client publishes its journals in the folder journals/ of --out (its --publish-journal), for "
        "`psyche audit`.",
    )
    optim_stats_steps: int | None = Field(
        default=None,
        ge=1,
        json_schema_extra=groups.TELEMETRY | {"aliases": ["--optim-stats"]},
        description=f"In all clients. {common.OPTIM_STATS}",
    )
    write_distro_data: Path | None = Field(
        default=None,
        json_schema_extra=groups.DIAGNOSIS,
        description="Folder for all results that the first client applies in each step (its --write-distro-data).",
    )
    metrics_local_port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        json_schema_extra=groups.TELEMETRY,
        description=(
            "Ports of 127.0.0.1 that serve the programs' figures (--metrics-local-port of each): this one the server's, the next "
            "ones the clients'; 0 picks free ones. They are printed. Needs the extra `metrics`."
        ),
    )
    show_text: bool = Field(
        default=False,
        json_schema_extra=groups.EVALUATION,
        description="At the end show what the model wrote before and after training (--prompt-task of a client).",
    )
    first_client_checkpoint: str | None = Field(
        default=None,
        json_schema_extra=groups.RUN,
        description="Model to begin with, instead of the run file's: a repository of the Hub (owner/name), or a folder.",
    )
    hf_token: str | None = Field(
        default=None,
        repr=False,
        json_schema_extra=groups.RUN,
        description="Token of the Hub for the clients. Other users of this machine can read command lines; HF_TOKEN in the "
        "environment is better.",
    )
    time_limit: float | None = Field(
        default=None,
        gt=0,
        json_schema_extra=groups.RESULT | common.SECONDS,
        description="Fail if the run takes longer.",
    )
    require_steps: int = Field(
        default=0, ge=0, json_schema_extra=groups.RESULT, description="Fail unless this many steps were trained and applied."
    )
    require_epochs: int = Field(
        default=0, ge=0, json_schema_extra=groups.RESULT, description="Fail unless all clients completed this many epochs."
    )
    require_loss_drop: float = Field(
        default=0.0,
        ge=0,
        json_schema_extra=groups.RESULT | {"unit": "NATS"},
        description="Fail unless the validation loss falls by at least this much.",
    )
    allow_lost_shares: bool = Field(
        default=False,
        json_schema_extra=groups.RESULT,
        description="Do not fail for a result that came too late, as on a busy machine: its samples are trained again.",
    )
    logs: common.Logs = Field(
        default="auto",
        json_schema_extra=groups.SCREEN,
        description="auto: live panel on a terminal, otherwise lines; tui: full screen, also --tui; console: lines; json: one "
        "event per line, with its program's name; none: nothing",
    )

    log: common.LogLevels | None = Field(
        default=None,
        json_schema_extra=groups.SCREEN | {"unit": "FILTERS"},
        description=f"Of all programs, in logs/. {common.LOG}",
    )
    web_port: int | None = Field(default=None, ge=0, le=65535, json_schema_extra=groups.WEB, description=common.WEB_PORT)
    web_host: str = Field(default="127.0.0.1", json_schema_extra=groups.WEB, description=common.WEB_HOST)
    web_per_address: int = Field(default=20, ge=1, le=200, json_schema_extra=groups.WEB, description=common.WEB_PER_ADDRESS)
    token_file: Path | None = Field(default=None, json_schema_extra=groups.WEB, description=common.TOKENS)
    tracker: common.TrackerNames = Field(default=(), json_schema_extra=groups.TELEMETRY, description=common.TRACKER)

    @field_validator("allowed_to_kill")
    @classmethod
    def _numbers_with_commas(cls, value: str | None) -> str | None:
        if value is not None and not all(part.strip().isdecimal() for part in value.split(",")):
            message = "must be numbers of clients separated by commas, for instance 1,2"
            raise ValueError(message)

        return value

    @model_validator(mode="after")
    def _relay_options_belong_to_a_relay(self) -> Self:
        if "relay_port" in self.model_fields_set and not self.with_relay:
            message = "--relay-port is for the relay beside the server, which starts with --with-relay only"
            raise ValueError(message)

        return self

    @property
    def run_base(self) -> Path:
        """Folder at which relative paths of the run file start."""
        return (self.config_path if self.base is None else self.base).absolute()

    @property
    def mortal(self) -> frozenset[int] | None:
        """Numbers of the clients that may be killed, or None for all."""
        return None if self.allowed_to_kill is None else frozenset(map(int, self.allowed_to_kill.split(",")))
