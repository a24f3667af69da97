"""Options of `psyche client train`: what one member is told on its command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import AliasChoices, Field, SecretStr, field_validator

from psyche_core.config.options import common, groups
from psyche_core.config.options.loading import ENVIRONMENT_PREFIX, RAW_IDENTITY
from psyche_core.config.options.shared import ComputeOptions, ReportingOptions
from psyche_core.config.schema import RunId


class ClientSettings(ReportingOptions, ComputeOptions):
    """All options of `psyche client train`."""

    run_id: RunId = Field(
        json_schema_extra=groups.RUN, description="Name of the run, at most 32 bytes. The server must host this run."
    )
    server_addr: str | None = Field(
        default=None,
        json_schema_extra=groups.RUN,
        description=(
            "Address of the coordinator in the backend's format, if the backend needs one. For tcp: `host:port#KEY`, as the "
            "server prints it when it starts. KEY is the server's public key, which authenticates the server. It may be left "
            "out for a server on this machine. `host:port#insecure` does not authenticate the server."
        ),
    )
    identity_secret_key_path: Path | None = Field(
        default=None,
        json_schema_extra=groups.RUN,
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
    backend: str = Field(default="tcp", json_schema_extra=groups.RUN, description="Coordinator backend, by plugin name.")
    reconnect_seconds: float = Field(
        default=300.0,
        ge=0,
        json_schema_extra=groups.RUN | common.SECONDS,
        description=("How long to try to reach the coordinator before giving up, at the start and after each lost connection."),
    )
    transport: str = Field(
        default="quic", json_schema_extra=groups.NETWORK, description="Transport between clients, by plugin name."
    )
    bind_p2p_interface: str = Field(
        default="auto",
        json_schema_extra=groups.NETWORK,
        description=(
            "What to bind for peers: an address, or the name of a network interface (eth0, lo) for its addresses of both IP "
            "families. auto: the interface from which the server is reached."
        ),
    )
    bind_p2p_port: int = Field(
        default=0,
        ge=0,
        le=65535,
        json_schema_extra=groups.NETWORK | {"short": "-b"},
        description="Port to bind for peers; 0 picks a free one.",
    )
    micro_batch_size: common.MicroBatchSize = Field(
        default=8, json_schema_extra=groups.COMPUTE, description=common.MICRO_BATCH_SIZE
    )
    checkpoint_dir: Path | None = Field(
        default=None,
        json_schema_extra=groups.CHECKPOINTS,
        description="Folder for checkpoints. One is saved at each epoch's end and at a clean exit.",
    )
    journal_size: int | None = Field(
        default=None,
        ge=1_000_000,
        json_schema_extra=groups.CHECKPOINTS,
        description=(
            "Maximum size in bytes of the journal of rounds beside the checkpoints. When it is reached, a checkpoint is saved "
            "early. Default: twice the size of the model."
        ),
    )
    publish_journal: Path | None = Field(
        default=None,
        json_schema_extra=groups.CHECKPOINTS,
        description=(
            "Folder for copies of every finished journal, from which anybody can recompute the run's weights (`psyche audit`). A "
            "copy is made when a new journal starts, and at the end; its size and how long copying took are reported. Nothing in "
            "the folder is deleted. Needs --checkpoint-dir."
        ),
    )
    keep_steps: int = Field(
        default=3,
        ge=1,
        json_schema_extra=groups.CHECKPOINTS,
        description=(
            "Number of epoch-end checkpoints to keep in that folder. Checkpoints within an epoch do not count, nor do those from "
            "which the client's two journals continue: they stay in any case."
        ),
    )
    model_store: str | None = Field(
        default=None,
        json_schema_extra=groups.STORE,
        description=(
            "Where to store the model if this client is elected to do so after an epoch: hf://OWNER/NAME (created if missing; "
            "needs HF_TOKEN or a login), gs://BUCKET/PREFIX, s3://BUCKET/PREFIX, file:///FOLDER (all members must be able to "
            "read that folder), or the URL of a plugin's store."
        ),
    )
    hub_repo: str | None = Field(
        default=None,
        json_schema_extra=groups.STORE,
        description=(
            "The same for a repository of the Hub (owner/name) or an existing folder that all members can read. A relative "
            "folder starts at --base."
        ),
    )
    gcs_bucket: str | None = Field(
        default=None,
        json_schema_extra=groups.STORE,
        description="The same for a bucket: NAME (Google Cloud Storage), s3://NAME or file:///FOLDER.",
    )
    gcs_prefix: str | None = Field(
        default=None, json_schema_extra=groups.STORE, description="Folder in the bucket of --gcs-bucket."
    )
    delete_old_steps: bool = Field(
        default=False,
        json_schema_extra=groups.STORE,
        description="Also delete models that this client stored, except the newest --keep-steps. The Hub keeps its history.",
    )
    cache_dir: Path | None = Field(
        default=None,
        json_schema_extra=groups.STORE,
        description=(
            "Folder for temporary files and downloads; may be deleted between runs. It needs a few times the size of the model. "
            "Default: the system's cache folder."
        ),
    )
    max_concurrent_parameter_requests: int = Field(
        default=8,
        ge=1,
        le=64,
        json_schema_extra=groups.NETWORK,
        description="Pieces of a model to fetch from other members at the same time.",
    )
    max_concurrent_downloads: int = Field(
        default=8,
        ge=1,
        le=1024,
        json_schema_extra=groups.NETWORK,
        description="Results of other members to fetch at the same time.",
    )
    validation_data: Path | None = Field(
        default=None,
        json_schema_extra=groups.EVALUATION,
        description="Held-out tokens for measuring the loss: a token file or a folder of them.",
    )
    validation_token_size: Literal["TwoBytes", "FourBytes"] = Field(
        default="TwoBytes", json_schema_extra=groups.EVALUATION, description="Bytes per held-out token, as in data.toml."
    )
    validation_sequences: int = Field(
        default=64, ge=1, json_schema_extra=groups.EVALUATION, description="Number of held-out sequences for each measurement."
    )
    eval_tasks: str | None = Field(
        default=None,
        json_schema_extra=groups.EVALUATION,
        description=(
            "Benchmarks to measure while the run trains, separated by commas: any tasks of lm-evaluation-harness, such as "
            "arc_easy,hellaswag. They run at low priority while the model is not needed, and never delay a round. Needs the "
            "extra `eval`."
        ),
    )
    eval_seed: int = Field(
        default=42,
        ge=0,
        lt=2**32,
        json_schema_extra=groups.EVALUATION,
        description="Seed of the choice of examples in evaluations.",
    )
    eval_task_max_docs: int | None = Field(
        default=None, ge=1, json_schema_extra=groups.EVALUATION, description="Most documents of each benchmark; default: all."
    )
    eval_fewshot: int = Field(
        default=0, ge=0, json_schema_extra=groups.EVALUATION, description="Examples before each question of a benchmark."
    )
    eval_include_path: Path | None = Field(
        default=None,
        json_schema_extra=groups.EVALUATION,
        description="Folder with benchmarks of your own, as YAML files of lm-evaluation-harness.",
    )
    prompt_task: bool = Field(
        default=False,
        json_schema_extra=groups.EVALUATION,
        description="Show what the model writes after a few prompts: at the start, at most every half minute, and at the end.",
    )
    logs: common.Logs = Field(default="auto", json_schema_extra=groups.SCREEN, description=common.LOGS)
    tracker: common.TrackerNames = Field(default=(), json_schema_extra=groups.TELEMETRY, description=common.TRACKER)
    optim_stats_steps: int | None = Field(default=None, ge=1, json_schema_extra=groups.TELEMETRY, description=common.OPTIM_STATS)
    write_gradients_dir: Path | None = Field(
        default=None,
        json_schema_extra=groups.DIAGNOSIS,
        description=(
            "Folder for this client's own result of each step, as it sends it: FOLDER/MEMBER/step-N/result.payload. Files of the "
            "same step are replaced; nothing is deleted."
        ),
    )
    write_distro_data: Path | None = Field(
        default=None,
        json_schema_extra=groups.DIAGNOSIS,
        description=(
            "Folder for all results that are applied in each step: FOLDER/MEMBER/step-N/NUMBER-HASH.payload. A full disk costs "
            "these files and one warning."
        ),
    )
    dummy_training_delay_secs: float = Field(
        default=0.0,
        ge=0,
        le=86400,
        json_schema_extra=groups.DIAGNOSIS | common.SECONDS,
        description="Wait this long after computing each step, to try a run with slow members.",
    )
    base: Path = Field(
        default_factory=Path.cwd,
        json_schema_extra=groups.RUN,
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
