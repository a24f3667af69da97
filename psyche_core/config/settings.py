"""All options of the programs in one place: defaults, rules and explanations.

Sources in order of priority: explicit arguments, then environment variables `PSYCHE_<NAME>`, then the default written here. An
environment variable never overrides an argument. A value that breaks a rule is an error with one sentence, whatever its source.
The command line takes all names, help texts and defaults from these classes.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, Field, JsonValue, PlainValidator, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from psyche_core.config.schema import RunId
from psyche_core.errors import ConfigError

ENVIRONMENT_PREFIX = "PSYCHE_"

_SECONDS: dict[str, JsonValue] = {"unit": "SECONDS"}
"""Placeholder for the value in a command's help, read by `cli.options`. A field without a unit is shown as a plain number."""

Logs = Literal["auto", "console", "json", "none"]
_LOGS = "auto: live panel on a terminal, lines elsewhere; console: lines; json: one event per line; none: nothing"


def _micro_batch_size(value: Any) -> Any:
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    if value == "auto" or (type(value) is int and value >= 1):
        return value

    message = "must be auto or a whole number from 1"
    raise ValueError(message)


MicroBatchSize = Annotated[int | Literal["auto"], PlainValidator(_micro_batch_size)]
_MICRO_BATCH_SIZE = (
    "Sequences per forward pass, or auto for as many as memory has room for; bounds memory, not results, and becomes smaller by "
    "itself when memory runs out."
)
ComputeDtype = Literal["float32", "bfloat16"]
_COMPUTE_DTYPE = "Number format of matrix products; weights and their gradients stay float32."
Attention = Literal["auto", "sdpa", "eager"]
_ATTENTION = "sdpa: torch's fused attention; eager: step by step; auto: sdpa where the model has it."
_GRADIENT_CHECKPOINTING = "Compute activations again in the backward pass in place of keeping them: less memory, more time."
_DATA_PARALLELISM = "Processes that each work on their own part of a share's sequences, weights divided among them."
_TENSOR_PARALLELISM = (
    "Processes that share each sequence's work, with a part of every layer each: for Llama, Qwen2, Qwen3 and DeepSeek-V3. "
    "Both together: data times tensor processes, this one included. Results do not depend on either, beyond rounding."
)
_SHARDING = "How the model is divided, by plugin name: dtensor (torch's own), or deepspeed."
_SIDECAR_BIND = (
    "HOST:PORT where processes of other machines join (`python -m psyche_core.training.sidecar --help`). Who can reach it can "
    "disturb training: a trusted network only. Without it all processes run here, and nobody else can join."
)
_SIDECAR_LOCAL_RANKS = "How many of the processes run on this machine, this one included; all when not given."
_SIDECAR_FILE = "File with the secret, 16 bytes or more, that those who join must have, too (`openssl rand -hex 32`)."


class _ProgramSettings(BaseSettings):
    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX, extra="forbid", frozen=True, env_ignore_empty=True, validate_default=False
    )


class ClientSettings(_ProgramSettings):
    """All options of `psyche client train`."""

    run_id: RunId = Field(description="Run to take part in, at most 32 bytes; the server must host the same.")
    server_addr: str | None = Field(
        default=None,
        description=(
            "The coordinator as the backend names it, if it needs that; for tcp `host:port#KEY`, as the server prints it when it "
            "starts. KEY is the server's public key: whoever answers must prove to hold it. A server on this machine may go "
            "without; `host:port#insecure` trusts whoever answers."
        ),
    )
    identity_secret_key_path: Path | None = Field(
        default=None,
        description=(
            "File with our 32-byte Ed25519 key, that only we can read. Without it: one that follows from our wallet, where the "
            "backend has one, else a "
            "new one, and we are somebody new each time."
        ),
    )
    backend: str = Field(default="tcp", description="Coordinator backend, by plugin name.")
    reconnect_seconds: float = Field(
        default=300.0,
        ge=0,
        json_schema_extra=_SECONDS,
        description=(
            "Seconds to try to reach the coordinator before giving up: at the start, when its server is not up yet, and each "
            "time it is lost."
        ),
    )
    transport: str = Field(default="quic", description="Transport between clients, by plugin name.")
    bind_p2p_interface: str = Field(
        default="auto", description="Address to bind for peers; auto: the local address that reaches the server."
    )
    bind_p2p_port: int = Field(default=0, ge=0, le=65535, description="Port to bind for peers; 0 picks a free one.")
    device: str = Field(
        default="auto", description="auto, cpu, mps, cuda, cuda:N, or cuda:X,Y for several GPUs that share each batch."
    )
    micro_batch_size: MicroBatchSize = Field(default=8, description=_MICRO_BATCH_SIZE)
    compute_dtype: ComputeDtype = Field(default="float32", description=_COMPUTE_DTYPE)
    attention: Attention = Field(default="auto", description=_ATTENTION)
    gradient_checkpointing: bool = Field(default=False, description=_GRADIENT_CHECKPOINTING)
    data_parallelism: int = Field(default=1, ge=1, le=1024, description=_DATA_PARALLELISM)
    tensor_parallelism: int = Field(default=1, ge=1, le=1024, description=_TENSOR_PARALLELISM)
    sharding: str = Field(default="dtensor", description=_SHARDING)
    sidecar_bind: str | None = Field(default=None, description=_SIDECAR_BIND)
    sidecar_local_ranks: int | None = Field(default=None, ge=1, description=_SIDECAR_LOCAL_RANKS)
    sidecar_secret_file: Path | None = Field(default=None, description=_SIDECAR_FILE)
    torch_threads: int | None = Field(default=None, ge=1, description="CPU threads for torch; as torch likes when not given.")
    checkpoint_dir: Path | None = Field(
        default=None, description="Folder to save a checkpoint in at each epoch's end, and when we leave in order."
    )
    journal_size: int | None = Field(
        default=None,
        ge=1_000_000,
        description=(
            "Bytes that the journal of rounds beside the checkpoints may have before a checkpoint is saved early; twice the "
            "model when not given."
        ),
    )
    keep_steps: int = Field(
        default=3,
        ge=1,
        description="Newest checkpoints of epochs' ends to keep in that folder; one saved in mid-epoch does not count.",
    )
    model_store: str | None = Field(
        default=None,
        description=(
            "Where to store the model when it is our turn after an epoch: hf://OWNER/NAME (made when it does not exist; needs "
            "HF_TOKEN or a login), gs://BUCKET/PREFIX, s3://BUCKET/PREFIX, or file:///FOLDER, a folder that all members can read."
        ),
    )
    hub_repo: str | None = Field(
        default=None,
        description=(
            "The same for a repository of the Hub (owner/name), or an existing folder that all members can read; a relative one "
            "starts at --base."
        ),
    )
    gcs_bucket: str | None = Field(
        default=None, description="The same for a bucket of Google Cloud Storage; s3://NAME for one of S3, file:///FOLDER."
    )
    gcs_prefix: str | None = Field(default=None, description="Folder in the bucket of --gcs-bucket.")
    delete_old_steps: bool = Field(
        default=False, description="Delete our stored models, too, but the newest --keep-steps. The Hub keeps its history."
    )
    cache_dir: Path | None = Field(
        default=None,
        description=(
            "Folder for what can be had again: models that are sent and fetched need room there, a few model sizes at most. "
            "The system's cache folder when not given."
        ),
    )
    max_concurrent_parameter_requests: int = Field(
        default=8, ge=1, le=64, description="Pieces of a model to fetch from other members at the same time."
    )
    max_concurrent_downloads: int = Field(
        default=8, ge=1, le=1024, description="Results of other members to fetch at the same time."
    )
    validation_data: Path | None = Field(
        default=None, description="Held-out tokens (token file or folder of them) to measure the loss on."
    )
    validation_token_size: Literal["TwoBytes", "FourBytes"] = Field(
        default="TwoBytes", description="Bytes of a held-out token, as in data.toml."
    )
    validation_sequences: int = Field(default=64, ge=1, description="Sequences of it to use each time.")
    logs: Logs = Field(default="auto", description=_LOGS)
    events_file: Path | None = Field(default=None, description="File to append every event to, as JSON lines.")
    base: Path = Field(
        default_factory=Path.cwd,
        description=(
            "Folder that relative paths of the run's configuration (model, data) start from on this machine, in place of the "
            "folder of the run file, which only its server has; where we are when not given."
        ),
    )

    @field_validator("server_addr")
    @classmethod
    def _address_is_not_empty(cls, value: str | None) -> str | None:
        if value is None:
            return None
        if not value.strip():
            message = "must not be empty; write host:port#KEY as the server prints it, or 127.0.0.1:20000 for one on this machine"
            raise ValueError(message)

        return value.strip()

    @field_validator("run_id", mode="before")
    @classmethod
    def _run_id_without_quotes(cls, value: Any) -> Any:
        """Remove quotes around the name: quoting it twice (`'"name"'`) is a frequent mistake in unit files and compose files."""
        return value.strip().strip("\"'") if isinstance(value, str) else value


class ServerSettings(_ProgramSettings):
    """All options of `psyche server run`."""

    state: Path = Field(description="Run file (state.toml): run_id, [config], [model].")
    data_config: Path | None = Field(
        default=None, description="Data file (data.toml); needed when the run's data_location is Server."
    )
    server_port: int = Field(default=0, ge=0, le=65535, description="Port to listen on; 0 picks a free one.")
    host: str = Field(default="127.0.0.1", description="Address to listen on; 0.0.0.0 for every interface.")
    backend: str = Field(default="tcp", description="Coordinator backend to host, by plugin name.")
    identity_secret_key_path: Path | None = Field(
        default=None,
        description=(
            "File with the server's 32-byte Ed25519 key, whose public half clients are given, that only we can read "
            "(`openssl rand 32 > server.key && chmod 600 server.key`). "
            "Without it: server.key in --save-state-dir, made at the first start; without that a new key at each start."
        ),
    )
    save_state_dir: Path | None = Field(
        default=None,
        description=(
            "Folder to keep the run's state in. Every change is on disk before a client hears of it; started again with the same "
            "folder, the server goes on where it was, and clients come back by themselves. One server at a time uses a folder. "
            "Without it a stopped run is lost."
        ),
    )
    allow_list: Path | None = Field(
        default=None,
        description=(
            "File with the public keys that may take part, 64 hex digits a line, # for comments; read again when it changes, and "
            "who is taken off it is put out. A client's key: `psyche client show-identity`. Without it everybody may."
        ),
    )
    withdraw_on_disconnect: bool = Field(
        default=True, description="A client that is lost and does not come back in --reconnect-seconds leaves the epoch."
    )
    reconnect_seconds: float = Field(
        default=10.0,
        ge=0,
        json_schema_extra=_SECONDS,
        description="Seconds a lost client has to come back; 0: none. After a restart of the server it is 20.",
    )
    restart_from_checkpoint: bool = Field(
        default=False,
        description=(
            "Let a run that has lost its model (no member's disk has it, nor any epoch's end) begin again from the stored "
            "checkpoint; what was trained since is lost. Refused where nothing is lost."
        ),
    )
    checkpoint: str | None = Field(
        default=None,
        description=(
            "Another place of the stored checkpoint, as a URL (hf://OWNER/NAME, gs://BUCKET/PREFIX, s3://…, file:///FOLDER), for "
            "a run of --save-state-dir that goes on with one and cannot, because members say that it is not the signed model. "
            "Refused while the run trains."
        ),
    )
    init_warmup_time: int | None = Field(
        default=None,
        ge=1,
        description="Seconds of warmup until the first round, in place of the run's warmup_time: first downloads take longest.",
    )
    init_min_clients: int | None = Field(
        default=None, ge=1, description="Clients needed for the first epoch, in place of the run's init_min_clients."
    )
    logs: Logs = Field(default="auto", description="auto and console: lines; json: one event per line; none: nothing")
    events_file: Path | None = Field(default=None, description="File to append every event to, as JSON lines.")


class TestnetSettings(_ProgramSettings):
    """All options of `psyche testnet start`."""

    __test__ = False  # not a test class, although pytest would collect it because of its name

    config_path: Path = Field(description="Folder with state.toml and, where the server has the data, data.toml.")
    num_clients: int = Field(ge=1, le=256, description="Client processes to start.")
    backend: str = Field(default="tcp", description="Coordinator backend to host, by plugin name.")
    server_port: int = Field(default=20000, ge=0, le=65535, description="Port of the server; 0 picks a free one.")
    out: Path | None = Field(default=None, description="Folder for report, events, logs, keys and checkpoints; runs/<run_id>.")
    validation_data: Path | None = Field(
        default=None, description="Held-out tokens for the first client; the config folder's data/validation when it is there."
    )
    validation_sequences: int = Field(default=64, ge=1, description="Sequences of it to use each time.")
    device: str = Field(default="cpu", description="Device of every client: cpu, cuda, …")
    micro_batch_size: MicroBatchSize = Field(default=8, description=_MICRO_BATCH_SIZE)
    compute_dtype: ComputeDtype = Field(default="float32", description=_COMPUTE_DTYPE)
    attention: Attention = Field(default="auto", description=_ATTENTION)
    gradient_checkpointing: bool = Field(default=False, description=_GRADIENT_CHECKPOINTING)
    torch_threads: int = Field(default=1, ge=1, description="CPU threads of each client.")
    random_kill_num: int = Field(
        default=0, ge=0, description="Clients to kill (kill -9) at each interval and to start again; 0 kills nobody."
    )
    random_kill_interval: float = Field(
        default=120.0,
        gt=0,
        json_schema_extra=_SECONDS,
        description="Seconds between kills; longer where too few clients have come back for the run to go on.",
    )
    random_kill_seconds: float | None = Field(
        default=None,
        gt=0,
        json_schema_extra=_SECONDS,
        description="Seconds after the first step in which clients are killed; to the end when not given.",
    )
    random_kill_seed: int | None = Field(
        default=None, description="Seed of the choice of victims; drawn and told when not given."
    )
    allowed_to_kill: str | None = Field(
        default=None, description="Numbers of the clients that may be killed, for instance 1,2; all of them when not given."
    )
    lose_route_after: int | None = Field(
        default=None,
        ge=1,
        description="After this step, make the first of the ways to the coordinator fail, to see that nothing is lost by it; for "
        "backends with several (solana: RPC providers).",
    )
    time_limit: float | None = Field(
        default=None,
        gt=0,
        json_schema_extra=_SECONDS,
        description="Fail when the run takes longer.",
    )
    require_steps: int = Field(default=0, ge=0, description="Fail unless this many steps were trained and applied.")
    require_epochs: int = Field(default=0, ge=0, description="Fail unless this many epochs were completed by all.")
    require_loss_drop: float = Field(
        default=0.0, ge=0, json_schema_extra={"unit": "NATS"}, description="Fail unless validation loss falls by so much."
    )
    logs: Literal["auto", "console", "none"] = Field(
        default="auto", description="auto: live panel on a terminal, lines elsewhere; console: lines; none: nothing"
    )

    @field_validator("allowed_to_kill")
    @classmethod
    def _numbers_with_commas(cls, value: str | None) -> str | None:
        if value is not None and not all(part.strip().isdecimal() for part in value.split(",")):
            message = "must be numbers of clients with commas between, for instance 1,2"
            raise ValueError(message)

        return value

    @property
    def mortal(self) -> frozenset[int] | None:
        """Numbers of the clients that may be killed, or None for all."""
        return None if self.allowed_to_kill is None else frozenset(map(int, self.allowed_to_kill.split(",")))


class TrainLocalSettings(_ProgramSettings):
    """All options of `psyche train-local`."""

    state: Path = Field(description="Run file (state.toml): its model, optimizer, learning rates and batch sizes are used.")
    data: Path | None = Field(
        default=None, description="Token file or folder of them to train on, in place of the run's data_location."
    )
    token_size: Literal["TwoBytes", "FourBytes"] = Field(default="TwoBytes", description="Bytes of a token of --data.")
    members: int = Field(
        default=1, ge=1, le=256, description="Members that share each round's batch, one after the other in this process."
    )
    steps: int | None = Field(default=None, ge=1, description="Steps to train; the run's total_steps when not given.")
    validation_data: Path | None = Field(
        default=None, description="Held-out tokens (token file or folder of them) to measure the loss on."
    )
    validation_token_size: Literal["TwoBytes", "FourBytes"] = Field(default="TwoBytes", description="Bytes of a held-out token.")
    validation_sequences: int = Field(default=64, ge=1, description="Sequences of it to use each time.")
    validation_every: int = Field(default=100, ge=1, description="Steps from one measurement to the next.")
    checkpoint_dir: Path | None = Field(default=None, description="Folder to save the trained model in.")
    device: str = Field(
        default="auto", description="auto, cpu, mps, cuda, cuda:N, or cuda:X,Y for several that share each batch."
    )
    micro_batch_size: MicroBatchSize = Field(default=8, description=_MICRO_BATCH_SIZE)
    compute_dtype: ComputeDtype = Field(default="float32", description=_COMPUTE_DTYPE)
    attention: Attention = Field(default="auto", description=_ATTENTION)
    gradient_checkpointing: bool = Field(default=False, description=_GRADIENT_CHECKPOINTING)
    data_parallelism: int = Field(default=1, ge=1, le=1024, description=_DATA_PARALLELISM)
    tensor_parallelism: int = Field(default=1, ge=1, le=1024, description=_TENSOR_PARALLELISM)
    sharding: str = Field(default="dtensor", description=_SHARDING)
    sidecar_bind: str | None = Field(default=None, description=_SIDECAR_BIND)
    sidecar_local_ranks: int | None = Field(default=None, ge=1, description=_SIDECAR_LOCAL_RANKS)
    sidecar_secret_file: Path | None = Field(default=None, description=_SIDECAR_FILE)
    torch_threads: int | None = Field(default=None, ge=1, description="CPU threads for torch; as torch likes when not given.")
    cache_dir: Path | None = Field(default=None, description="Folder for downloads; the system's cache folder when not given.")
    logs: Logs = Field(default="auto", description=_LOGS)
    events_file: Path | None = Field(default=None, description="File to append every event to, as JSON lines.")
    base: Path | None = Field(
        default=None, description="Folder that relative paths of the run file start from; its own folder when not given."
    )

    @property
    def run_base(self) -> Path:
        """Folder at which relative paths of the run file start."""
        return self.state.parent if self.base is None else self.base


_Settings = TypeVar("_Settings", bound=BaseModel)


def load_settings(cls: type[_Settings], given: dict[str, Any]) -> _Settings:
    """Return settings from explicit arguments and the environment.

    given: values by field name; None means not given. Raises ConfigError that names each value that breaks a rule, the rule, and
    the source of the value.
    """
    explicit = {name: value for name, value in given.items() if value is not None}
    try:
        return cls(**explicit)
    except ValidationError as error:
        raise ConfigError("; ".join(_sentence(dict(problem), explicit) for problem in error.errors())) from None


def _sentence(problem: dict[str, Any], explicit: dict[str, Any]) -> str:
    name = str(problem["loc"][0]) if problem["loc"] else ""
    option, variable = "--" + name.replace("_", "-"), ENVIRONMENT_PREFIX + name.upper()
    if problem["type"] == "missing":
        return f"{option} is needed (or the environment variable {variable})"

    source = variable if name not in explicit and variable in os.environ else option
    rule = str(problem["msg"]).removeprefix("Value error, ")
    return f"{source}: got {problem['input']!r}; {rule[0].lower()}{rule[1:]}"
