"""All options of the programs in one place: defaults, rules and explanations.

Sources in order of priority: explicit arguments, then environment variables `PSYCHE_<NAME>`, then the default written here. An
environment variable never overrides an argument. A value that breaks a rule is an error with one sentence, whatever its source.
The command line takes all names, help texts and defaults from these classes.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import AliasChoices, BaseModel, Field, JsonValue, PlainValidator, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from psyche_core.config.schema import RunId
from psyche_core.errors import ConfigError

ENVIRONMENT_PREFIX = "PSYCHE_"
RAW_IDENTITY = "RAW_IDENTITY_SECRET_KEY"
"""Environment variable with an identity's secret key, also read with the prefix."""

_SECONDS: dict[str, JsonValue] = {"unit": "SECONDS"}
"""Placeholder for the value in a command's help, read by `cli.options`. A field without a unit is shown as a plain number."""

_WRITE_LOG = "File to append the log lines to that --logs console shows, whatever --logs says."
Logs = Literal["auto", "console", "json", "none"]
_LOGS = "auto: live panel on a terminal, otherwise lines; console: lines; json: one event per line; none: nothing"


def _micro_batch_size(value: Any) -> Any:
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    if value == "auto" or (type(value) is int and value >= 1):
        return value

    message = "must be auto or a whole number of at least 1"
    raise ValueError(message)


MicroBatchSize = Annotated[int | Literal["auto"], PlainValidator(_micro_batch_size)]
_MICRO_BATCH_SIZE = (
    "Sequences per forward pass, or auto for as many as fit into memory. It changes memory use and speed, but not results. It is "
    "reduced automatically when memory runs out."
)
ComputeDtype = Literal["float32", "bfloat16"]
_COMPUTE_DTYPE = "Number format of matrix products; weights and their gradients stay float32."
Attention = Literal["auto", "sdpa", "eager"]
_ATTENTION = "sdpa: torch's fused attention; eager: unfused attention; auto: sdpa if the model supports it."
_GRADIENT_CHECKPOINTING = "Recompute activations in the backward pass instead of storing them: less memory, more time."
_DATA_PARALLELISM = "Processes that divide the sequences of a share among them. The weights are divided among them too."
_TENSOR_PARALLELISM = (
    "Processes that compute each sequence together; each has a part of every layer. For Llama, Qwen2, Qwen3 and DeepSeek-V3. "
    "With both options there are data times tensor processes, including this one. Results are the same except for rounding."
)
_SHARDING = "Plugin that divides the model among processes: dtensor (part of torch) or deepspeed."
_SIDECAR_BIND = (
    "HOST:PORT where processes on other machines connect (`psyche sidecar --help`); HOST alone means port 34567. Use a trusted "
    "network: everyone who can reach this address can disturb training. Without this option all processes run on this machine."
)
_SIDECAR_LOCAL_RANKS = "Number of processes on this machine, including this one; default: all of them."
_SIDECAR_FILE = "File with the shared secret of the processes, at least 16 bytes (`openssl rand -hex 32`)."
_EVENTS_DIR = (
    "Folder for this program's events, as JSON lines: FOLDER/RUN/ROLE-ID.TIME.jsonl, a new file for each epoch. "
    "`psyche web --events FOLDER` shows them as pages, `psyche replay` plays them."
)
_KEEP_EVENT_FILES = "Number of this program's newest files to keep in --events-dir; 0 keeps all."
_WEB_PORT = "Port of a web page that shows the run live; 0 picks a free one. Default: no page. Needs the extra `web`."
_WEB_HOST = (
    "Address to serve the page on; 0.0.0.0 for every interface. Put a web server with TLS in front of a page for the internet."
)
_TOKENS = (
    "File of tokens that visitors of the page must know, one a line: TOKEN for everything, RUN TOKEN for one run. Without it "
    "everybody who reaches the page may read it (`openssl rand -hex 24 > tokens && chmod 600 tokens`)."
)


class _ProgramSettings(BaseSettings):
    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX, extra="forbid", frozen=True, env_ignore_empty=True, validate_default=False
    )


class ClientSettings(_ProgramSettings):
    """All options of `psyche client train`."""

    run_id: RunId = Field(description="Name of the run, at most 32 bytes. The server must host this run.")
    server_addr: str | None = Field(
        default=None,
        description=(
            "Address of the coordinator in the backend's format, if the backend needs one. For tcp: `host:port#KEY`, as the "
            "server prints it when it starts. KEY is the server's public key, which authenticates the server. It may be left "
            "out for a server on this machine. `host:port#insecure` does not authenticate the server."
        ),
    )
    identity_secret_key_path: Path | None = Field(
        default=None,
        description=(
            "File with this client's 32-byte Ed25519 key. Only its owner may have permission to read it. Default: a key derived "
            "from the wallet if the backend has one, otherwise a new key, and so a new identity, at each start. Instead, the "
            "environment variable RAW_IDENTITY_SECRET_KEY may hold the key, as 64 hex digits."
        ),
    )
    raw_identity_secret_key: SecretStr | None = Field(
        default=None,
        description="The key itself.",
        validation_alias=AliasChoices(ENVIRONMENT_PREFIX + RAW_IDENTITY, RAW_IDENTITY),
        repr=False,
        json_schema_extra={"option": False},
    )
    backend: str = Field(default="tcp", description="Coordinator backend, by plugin name.")
    reconnect_seconds: float = Field(
        default=300.0,
        ge=0,
        json_schema_extra=_SECONDS,
        description=("How long to try to reach the coordinator before giving up, at the start and after each lost connection."),
    )
    transport: str = Field(default="quic", description="Transport between clients, by plugin name.")
    bind_p2p_interface: str = Field(
        default="auto",
        description=(
            "What to bind for peers: an address, or the name of a network interface (eth0, lo) for its addresses of both IP "
            "families. auto: the interface from which the server is reached."
        ),
    )
    bind_p2p_port: int = Field(
        default=0, ge=0, le=65535, json_schema_extra={"short": "-b"}, description="Port to bind for peers; 0 picks a free one."
    )
    device: str = Field(
        default="auto", description="auto, cpu, mps, cuda, cuda:N, or cuda:X,Y to divide each batch among several GPUs."
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
    torch_threads: int | None = Field(default=None, ge=1, description="CPU threads for torch; default: chosen by torch.")
    checkpoint_dir: Path | None = Field(
        default=None, description="Folder for checkpoints. One is saved at each epoch's end and at a clean exit."
    )
    journal_size: int | None = Field(
        default=None,
        ge=1_000_000,
        description=(
            "Maximum size in bytes of the journal of rounds beside the checkpoints. When it is reached, a checkpoint is saved "
            "early. Default: twice the size of the model."
        ),
    )
    keep_steps: int = Field(
        default=3,
        ge=1,
        description="Number of epoch-end checkpoints to keep in that folder. Checkpoints within an epoch do not count.",
    )
    model_store: str | None = Field(
        default=None,
        description=(
            "Where to store the model if this client is elected to do so after an epoch: hf://OWNER/NAME (created if missing; "
            "needs HF_TOKEN or a login), gs://BUCKET/PREFIX, s3://BUCKET/PREFIX, or file:///FOLDER (all members must be able to "
            "read that folder)."
        ),
    )
    hub_repo: str | None = Field(
        default=None,
        description=(
            "The same for a repository of the Hub (owner/name) or an existing folder that all members can read. A relative "
            "folder starts at --base."
        ),
    )
    gcs_bucket: str | None = Field(
        default=None, description="The same for a bucket: NAME (Google Cloud Storage), s3://NAME or file:///FOLDER."
    )
    gcs_prefix: str | None = Field(default=None, description="Folder in the bucket of --gcs-bucket.")
    delete_old_steps: bool = Field(
        default=False,
        description="Also delete models that this client stored, except the newest --keep-steps. The Hub keeps its history.",
    )
    cache_dir: Path | None = Field(
        default=None,
        description=(
            "Folder for temporary files and downloads; may be deleted between runs. It needs a few times the size of the model. "
            "Default: the system's cache folder."
        ),
    )
    max_concurrent_parameter_requests: int = Field(
        default=8, ge=1, le=64, description="Pieces of a model to fetch from other members at the same time."
    )
    max_concurrent_downloads: int = Field(
        default=8, ge=1, le=1024, description="Results of other members to fetch at the same time."
    )
    validation_data: Path | None = Field(
        default=None, description="Held-out tokens for measuring the loss: a token file or a folder of them."
    )
    validation_token_size: Literal["TwoBytes", "FourBytes"] = Field(
        default="TwoBytes", description="Bytes per held-out token, as in data.toml."
    )
    validation_sequences: int = Field(default=64, ge=1, description="Number of held-out sequences for each measurement.")
    eval_tasks: str | None = Field(
        default=None,
        description=(
            "Benchmarks to measure while the run trains, separated by commas: any tasks of lm-evaluation-harness, such as "
            "arc_easy,hellaswag. They run at low priority while the model is not needed, and never delay a round. Needs the "
            "extra `eval`."
        ),
    )
    eval_seed: int = Field(default=42, ge=0, lt=2**32, description="Seed of the choice of examples in evaluations.")
    eval_task_max_docs: int | None = Field(default=None, ge=1, description="Most documents of each benchmark; default: all.")
    eval_fewshot: int = Field(default=0, ge=0, description="Examples before each question of a benchmark.")
    eval_include_path: Path | None = Field(
        default=None, description="Folder with benchmarks of your own, as YAML files of lm-evaluation-harness."
    )
    prompt_task: bool = Field(
        default=False,
        description="Show what the model writes after a few prompts: at the start, at most every half minute, and at the end.",
    )
    logs: Logs = Field(default="auto", description=_LOGS)
    events_file: Path | None = Field(default=None, description="File to append every event to, as JSON lines.")
    events_dir: Path | None = Field(default=None, description=_EVENTS_DIR)
    keep_event_files: int = Field(default=0, ge=0, description=_KEEP_EVENT_FILES)
    write_log: Path | None = Field(default=None, description=_WRITE_LOG)
    dummy_training_delay_secs: float = Field(
        default=0.0,
        ge=0,
        le=86400,
        json_schema_extra=_SECONDS,
        description="Wait this long after computing each step, to try a run with slow members.",
    )
    base: Path = Field(
        default_factory=Path.cwd,
        description=(
            "Folder on this machine at which relative paths of the run's configuration (model, data) start. Only the server has "
            "the run file's own folder. Default: the current folder."
        ),
    )

    @field_validator("server_addr")
    @classmethod
    def _address_is_not_empty(cls, value: str | None) -> str | None:
        if value is None:
            return None
        if not value.strip():
            message = (
                "must not be empty; write host:port#KEY as the server prints it, or 127.0.0.1:20000 for a server on this machine"
            )
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
            "File with the server's 32-byte Ed25519 key; its public key is part of the address for clients. Only its owner may "
            "have permission to read it (`openssl rand 32 > server.key && chmod 600 server.key`). Default: server.key in "
            "--save-state-dir, created at the first start; without that option a new key at each start."
        ),
    )
    save_state_dir: Path | None = Field(
        default=None,
        description=(
            "Folder for the run's state. Every change is on disk before it is sent to clients. A server that is started again "
            "with the same folder continues the run, and clients reconnect automatically. Only one server at a time may use a "
            "folder. Without this option the run is lost when the server stops."
        ),
    )
    allow_list: Path | None = Field(
        default=None,
        description=(
            "File with the public keys of the clients that may take part: 64 hex digits per line, # for comments. The file is "
            "read again when it changes; clients that are no longer in it are removed from the run. A client prints its key "
            "with `psyche client show-identity`. Default: all clients may take part."
        ),
    )
    withdraw_on_disconnect: bool = Field(
        default=True, description="Remove a client from the epoch if it stays disconnected for longer than --reconnect-seconds."
    )
    reconnect_seconds: float = Field(
        default=10.0,
        ge=0,
        json_schema_extra=_SECONDS,
        description="How long a disconnected client may take to reconnect. It is 20 after a restart of the server.",
    )
    with_relay: bool = Field(
        default=False,
        description=(
            "Also run a relay, so that members behind routers reach each other. Only members of the run may use it. It listens "
            "on the address of --host."
        ),
    )
    relay_port: int = Field(
        default=3340,
        ge=0,
        le=65535,
        description="TCP port of the relay, and UDP port of its address observer; 0 picks a free one.",
    )
    relay_url: str | None = Field(
        default=None,
        description=(
            "URL of the relay for members, such as http://relay.example.org:3340. Default: made from --host and --relay-port."
        ),
    )
    relay_tls_cert: Path | None = Field(
        default=None,
        description=(
            "File with the relay's TLS certificate and its chain, in PEM; it must be one that browsers accept. Without TLS, "
            "members' keys, addresses and traffic volumes can be read on the way; what they send cannot."
        ),
    )
    relay_tls_key: Path | None = Field(default=None, description="File with the private key of --relay-tls-cert, in PEM.")
    restart_from_checkpoint: bool = Field(
        default=False,
        description=(
            "Continue from the stored checkpoint a run that has lost its model (no member has the current model or that of an "
            "earlier epoch's end). Later training is lost. It is an error if the run has not lost its model."
        ),
    )
    checkpoint: str | None = Field(
        default=None,
        description=(
            "New location of the stored checkpoint, as a URL (hf://OWNER/NAME, gs://BUCKET/PREFIX, s3://…, file:///FOLDER). Use "
            "it for a run in --save-state-dir that must continue from its stored checkpoint and cannot, because members report "
            "that the checkpoint is not the signed model. It is an error while the run trains."
        ),
    )
    init_warmup_time: int | None = Field(
        default=None,
        ge=1,
        description="Warmup time until the first round, instead of the run's warmup_time: the first downloads take longest.",
    )
    init_min_clients: int | None = Field(
        default=None, ge=1, description="Clients needed for the first epoch, instead of the run's init_min_clients."
    )
    logs: Logs = Field(default="auto", description="auto and console: lines; json: one event per line; none: nothing")
    events_file: Path | None = Field(default=None, description="File to append every event to, as JSON lines.")
    events_dir: Path | None = Field(default=None, description=_EVENTS_DIR)
    keep_event_files: int = Field(default=0, ge=0, description=_KEEP_EVENT_FILES)
    web_port: int | None = Field(default=None, ge=0, le=65535, description=_WEB_PORT)
    web_host: str = Field(default="127.0.0.1", description=_WEB_HOST)
    token_file: Path | None = Field(default=None, description=_TOKENS)


class TestnetSettings(_ProgramSettings):
    """All options of `psyche testnet start`."""

    __test__ = False  # not a test class, although pytest would collect it because of its name

    config_path: Path = Field(description="Folder with state.toml and, if the server serves the data, data.toml.")
    num_clients: int = Field(ge=1, le=256, description="Client processes to start.")
    backend: str = Field(default="tcp", description="Coordinator backend to host, by plugin name.")
    server_port: int = Field(default=20000, ge=0, le=65535, description="Port of the server; 0 picks a free one.")
    with_relay: bool = Field(
        default=False,
        description="The server also runs a relay, which the clients use, as with `psyche server run --with-relay`.",
    )
    relay_port: int = Field(
        default=3340,
        ge=0,
        le=65535,
        description="With --with-relay: TCP port of the relay, and UDP port of its address observer; 0 picks a free one.",
    )
    out: Path | None = Field(default=None, description="Folder for report, events, logs, keys and checkpoints; runs/<run_id>.")
    validation_data: Path | None = Field(
        default=None,
        description="Held-out tokens for the first client; default: data/validation in the config folder, if it exists.",
    )
    validation_sequences: int = Field(default=64, ge=1, description="Number of held-out sequences for each measurement.")
    device: str = Field(default="cpu", description="Device of every client: cpu, cuda, …")
    micro_batch_size: MicroBatchSize = Field(default=8, description=_MICRO_BATCH_SIZE)
    compute_dtype: ComputeDtype = Field(default="float32", description=_COMPUTE_DTYPE)
    attention: Attention = Field(default="auto", description=_ATTENTION)
    gradient_checkpointing: bool = Field(default=False, description=_GRADIENT_CHECKPOINTING)
    torch_threads: int = Field(default=1, ge=1, description="CPU threads of each client.")
    random_kill_num: int = Field(
        default=0, ge=0, description="Number of clients to kill (kill -9) and restart at each interval; 0: none."
    )
    random_kill_interval: float = Field(
        default=120.0,
        gt=0,
        json_schema_extra=_SECONDS,
        description="Time between kills; longer while too few clients have restarted for the run to continue.",
    )
    random_kill_seconds: float | None = Field(
        default=None,
        gt=0,
        json_schema_extra=_SECONDS,
        description="How long after the first step clients are killed; default: until the end.",
    )
    random_kill_seed: int | None = Field(
        default=None, description="Seed that selects the clients to kill; default: a random one, which is printed."
    )
    allowed_to_kill: str | None = Field(
        default=None, description="Numbers of the clients that may be killed, for instance 1,2; default: all."
    )
    lose_route_after: int | None = Field(
        default=None,
        ge=1,
        description="After this step, make the first route to the coordinator fail, to test that nothing is lost. For backends "
        "with several routes (solana: RPC providers).",
    )
    eval_tasks: str | None = Field(
        default=None, description="Benchmarks that the first client measures, as `psyche client train --eval-tasks`."
    )
    eval_include_path: Path | None = Field(
        default=None, description="Folder with benchmarks of your own, as YAML files of lm-evaluation-harness."
    )
    show_text: bool = Field(
        default=False, description="At the end show what the model wrote before and after training (--prompt-task of a client)."
    )
    first_client_checkpoint: str | None = Field(
        default=None,
        description="Model to begin with, instead of the run file's: a repository of the Hub (owner/name), or a folder.",
    )
    hf_token: str | None = Field(
        default=None,
        repr=False,
        description="Token of the Hub for the clients. Other users of this machine can read command lines; HF_TOKEN in the "
        "environment is better.",
    )
    time_limit: float | None = Field(
        default=None,
        gt=0,
        json_schema_extra=_SECONDS,
        description="Fail if the run takes longer.",
    )
    require_steps: int = Field(default=0, ge=0, description="Fail unless this many steps were trained and applied.")
    require_epochs: int = Field(default=0, ge=0, description="Fail unless all clients completed this many epochs.")
    require_loss_drop: float = Field(
        default=0.0,
        ge=0,
        json_schema_extra={"unit": "NATS"},
        description="Fail unless the validation loss falls by at least this much.",
    )
    logs: Logs = Field(
        default="auto",
        description="auto: live panel on a terminal, otherwise lines; console: lines; json: one event per line, with its "
        "program's name; none: nothing",
    )

    web_port: int | None = Field(default=None, ge=0, le=65535, description=_WEB_PORT)
    web_host: str = Field(default="127.0.0.1", description=_WEB_HOST)
    token_file: Path | None = Field(default=None, description=_TOKENS)

    @field_validator("allowed_to_kill")
    @classmethod
    def _numbers_with_commas(cls, value: str | None) -> str | None:
        if value is not None and not all(part.strip().isdecimal() for part in value.split(",")):
            message = "must be numbers of clients separated by commas, for instance 1,2"
            raise ValueError(message)

        return value

    @property
    def mortal(self) -> frozenset[int] | None:
        """Numbers of the clients that may be killed, or None for all."""
        return None if self.allowed_to_kill is None else frozenset(map(int, self.allowed_to_kill.split(",")))


class WebSettings(_ProgramSettings):
    """All options of `psyche web`."""

    events: Path | None = Field(
        default=None,
        description=(
            "Folder of one run's event files (*.jsonl), or of runs: what `psyche testnet start --out`, --events-dir or "
            "--events-file wrote. Runs and members that come later are shown too, and files are followed as they grow."
        ),
    )
    server_addr: str | None = Field(
        default=None,
        description=(
            "Address of a coordinator to follow, as for `psyche client train`: phases, members and points, but no losses, which "
            "are in members' event files only. Needs --run-id. The page joins nothing and sends nothing."
        ),
    )
    run_id: RunId | None = Field(default=None, description="Name of the run at --server-addr.")
    backend: str = Field(default="tcp", description="Backend of the coordinator to follow, by plugin name.")
    reconnect_seconds: float = Field(
        default=300.0,
        ge=0,
        json_schema_extra=_SECONDS,
        description="How long to try to reach the coordinator before giving up, at the start and after each lost connection.",
    )
    web_port: int = Field(default=8420, ge=0, le=65535, description="Port of the page; 0 picks a free one.")
    web_host: str = Field(default="127.0.0.1", description=_WEB_HOST)
    token_file: Path | None = Field(default=None, description=_TOKENS)


class ReplaySettings(_ProgramSettings):
    """All options of `psyche replay`."""

    speed: float = Field(
        default=10.0,
        ge=0,
        json_schema_extra={"unit": "TIMES"},
        description="How many times faster than the run was; 1 for its own speed, 0 for as fast as this machine can.",
    )
    from_step: int | None = Field(default=None, ge=0, description="Begin at this step; everything before is shown at once.")
    max_pause: float = Field(
        default=5.0,
        ge=0,
        json_schema_extra=_SECONDS,
        description="Longest wait between two events: a night in which a run was paused is played in this time.",
    )
    logs: Literal["auto", "console", "none"] = Field(
        default="auto", description="auto: live panel on a terminal, otherwise lines; console: lines; none: nothing"
    )
    web_port: int | None = Field(default=None, ge=0, le=65535, description="Play on a web page at this port, too; 0 picks one.")
    web_host: str = Field(default="127.0.0.1", description=_WEB_HOST)
    token_file: Path | None = Field(default=None, description=_TOKENS)


class TrainLocalSettings(_ProgramSettings):
    """All options of `psyche train-local`."""

    state: Path | None = Field(
        default=None, description="Run file (state.toml): its model, optimizer, learning rates and batch sizes are used."
    )
    model: str | None = Field(
        default=None,
        description="Instead of a run file: a model to train, as a folder or a repository of the Hub (owner/name). Needs --data.",
    )
    data: Path | None = Field(
        default=None,
        json_schema_extra={"aliases": ["--data-path"]},
        description="Token file or folder of them to train on, instead of the run's data_location.",
    )
    total_batch: int | None = Field(
        default=None, ge=1, le=65535, description="With --model: sequences of each step.  [default: 8]"
    )
    sequence_length: int | None = Field(
        default=None,
        ge=1,
        json_schema_extra={"unit": "TOKENS"},
        description="With --model: length of a sequence.  [default: 2048]",
    )
    optimizer: str | None = Field(
        default=None, description="With --model: AdamW, Distro, or another optimizer by plugin name.  [default: AdamW]"
    )
    learning_rate: float | None = Field(
        default=None, gt=0, description="With --model: highest learning rate of a cosine schedule.  [default: 0.0004]"
    )
    warmup_steps: int | None = Field(
        default=None, ge=0, description="With --model: steps of rising learning rate.  [default: a tenth of the steps]"
    )
    token_size: Literal["TwoBytes", "FourBytes"] = Field(default="TwoBytes", description="Bytes per token of --data.")
    members: int = Field(
        default=1,
        ge=1,
        le=256,
        description="Number of simulated members that divide each round's batch. They train one after the other in this process.",
    )
    steps: int | None = Field(
        default=None, ge=1, le=2**32 - 1, description="Steps to train; default: the run's total_steps, or 500 with --model."
    )
    validation_data: Path | None = Field(
        default=None, description="Held-out tokens for measuring the loss: a token file or a folder of them."
    )
    validation_token_size: Literal["TwoBytes", "FourBytes"] = Field(default="TwoBytes", description="Bytes per held-out token.")
    validation_sequences: int = Field(default=64, ge=1, description="Number of held-out sequences for each measurement.")
    validation_every: int = Field(default=100, ge=1, description="Number of steps between measurements.")
    checkpoint_dir: Path | None = Field(default=None, description="Folder to save the trained model in.")
    device: str = Field(
        default="auto", description="auto, cpu, mps, cuda, cuda:N, or cuda:X,Y to divide each batch among several GPUs."
    )
    micro_batch_size: MicroBatchSize = Field(
        default=8, json_schema_extra={"aliases": ["--micro-batch"]}, description=_MICRO_BATCH_SIZE
    )
    compute_dtype: ComputeDtype = Field(default="float32", description=_COMPUTE_DTYPE)
    attention: Attention = Field(default="auto", description=_ATTENTION)
    gradient_checkpointing: bool = Field(default=False, description=_GRADIENT_CHECKPOINTING)
    data_parallelism: int = Field(default=1, ge=1, le=1024, description=_DATA_PARALLELISM)
    tensor_parallelism: int = Field(default=1, ge=1, le=1024, description=_TENSOR_PARALLELISM)
    sharding: str = Field(default="dtensor", description=_SHARDING)
    sidecar_bind: str | None = Field(default=None, description=_SIDECAR_BIND)
    sidecar_local_ranks: int | None = Field(default=None, ge=1, description=_SIDECAR_LOCAL_RANKS)
    sidecar_secret_file: Path | None = Field(default=None, description=_SIDECAR_FILE)
    torch_threads: int | None = Field(default=None, ge=1, description="CPU threads for torch; default: chosen by torch.")
    cache_dir: Path | None = Field(default=None, description="Folder for downloads; default: the system's cache folder.")
    logs: Logs = Field(default="auto", description=_LOGS)
    events_file: Path | None = Field(default=None, description="File to append every event to, as JSON lines.")
    base: Path | None = Field(
        default=None,
        description="Folder at which relative paths of the run file start; default: the run file's folder, or the current folder "
        "with --model.",
    )

    @property
    def run_base(self) -> Path:
        """Folder at which relative paths of the run file start."""
        if self.base is not None:
            return self.base
        if self.state is not None:
            return self.state.parent
        return Path(self.model).resolve().parent if self.model and Path(self.model).is_dir() else Path.cwd()


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
