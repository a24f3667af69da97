"""Options of `psyche server run`."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, field_validator

from psyche_core.config.options import groups
from psyche_core.config.options.common import (
    SECONDS,
    TOKENS,
    WEB_HOST,
    WEB_PER_ADDRESS,
    WEB_PORT,
    Logs,
)
from psyche_core.config.options.shared import ReportingOptions


class ServerSettings(ReportingOptions):
    """All options of `psyche server run`."""

    state: Path = Field(json_schema_extra=groups.RUN, description="Run file (state.toml): run_id, [config], [model].")
    data_config: Path | None = Field(
        default=None,
        json_schema_extra=groups.RUN,
        description="Data file (data.toml); needed when the run's data_location is Server.",
    )
    server_port: int = Field(
        default=0, ge=0, le=65535, json_schema_extra=groups.NETWORK, description="Port to listen on; 0 picks a free one."
    )
    host: str = Field(
        default="127.0.0.1", json_schema_extra=groups.NETWORK, description="Address to listen on; 0.0.0.0 for every interface."
    )
    backend: str = Field(default="tcp", json_schema_extra=groups.RUN, description="Coordinator backend to host, by plugin name.")
    identity_secret_key_path: Path | None = Field(
        default=None,
        json_schema_extra=groups.RUN,
        description=(
            "File with the server's 32-byte Ed25519 key; its public key is part of the address for clients. Only its owner may "
            "have permission to read it (`openssl rand 32 > server.key && chmod 600 server.key`). Default: server.key in "
            "--save-state-dir, created at the first start; without that option a new key at each start."
        ),
    )
    save_state_dir: Path | None = Field(
        default=None,
        json_schema_extra=groups.RUN,
        description=(
            "Folder for the run's state. Every change is on disk before it is sent to clients. A server that is started again "
            "with the same folder continues the run, and clients reconnect automatically. Only one server at a time may use a "
            "folder. Without this option the run is lost when the server stops."
        ),
    )
    allow_list: Path | None = Field(
        default=None,
        json_schema_extra=groups.MEMBERS,
        description=(
            "File with the public keys of the clients that may take part: 64 hex digits per line, # for comments. The file is "
            "read again when it changes; clients that are no longer in it are removed from the run. A client prints its key "
            "with `psyche client show-identity`. With the backend solana: addresses of wallets, read at the start. Default: all "
            "clients may take part."
        ),
    )
    withdraw_on_disconnect: bool = Field(
        default=True,
        json_schema_extra=groups.MEMBERS,
        description="Remove a client from the epoch if it stays disconnected for longer than --reconnect-seconds.",
    )
    reconnect_seconds: float = Field(
        default=10.0,
        ge=0,
        json_schema_extra=groups.MEMBERS | SECONDS,
        description="How long a disconnected client may take to reconnect. It is 20 after a restart of the server.",
    )
    points_per_epoch: int | None = Field(
        default=None,
        ge=0,
        lt=2**64,
        json_schema_extra=groups.MEMBERS,
        description=(
            "Points that the members of each epoch share by their accepted rounds, kept in the run's state: a reputation, where "
            "no money is paid. They count for epochs that begin from now on, the first included. Where shares are checked, they "
            "are for members that have passed a check. Who is proven to have signed two results for one share loses as many. "
            "With the backend tcp. Default: as before, and no points in a new run."
        ),
    )
    with_relay: bool = Field(
        default=False,
        json_schema_extra=groups.RELAY,
        description=(
            "Also run a relay, so that members behind routers reach each other. Only members of the run may use it. It listens "
            "on the address of --host."
        ),
    )
    relay: str = Field(
        default="iroh",
        json_schema_extra=groups.RELAY,
        description="Which relay --with-relay runs: the name of a plugin, see `psyche plugins list`.",
    )
    relay_port: int = Field(
        default=3340,
        ge=0,
        le=65535,
        json_schema_extra=groups.RELAY,
        description="TCP port of the relay, and UDP port of its address observer; 0 picks a free one.",
    )
    relay_url: str | None = Field(
        default=None,
        json_schema_extra=groups.RELAY,
        description=(
            "URL of the relay for members, such as http://relay.example.org:3340. Default: made from --host and --relay-port."
        ),
    )
    relay_tls_cert: Path | None = Field(
        default=None,
        json_schema_extra=groups.RELAY,
        description=(
            "File with the relay's TLS certificate and its chain, in PEM; it must be one that browsers accept. Without TLS, "
            "members' keys, addresses and traffic volumes can be read on the way; what they send cannot."
        ),
    )
    relay_tls_key: Path | None = Field(
        default=None, json_schema_extra=groups.RELAY, description="File with the private key of --relay-tls-cert, in PEM."
    )
    restart_from_checkpoint: bool = Field(
        default=False,
        json_schema_extra=groups.RECOVERY,
        description=(
            "Continue from the stored checkpoint a run that has lost its model (no member has the current model or that of an "
            "earlier epoch's end). Later training is lost. It is an error if the run has not lost its model."
        ),
    )
    restart_from_step: int | None = Field(
        default=None,
        ge=1,
        json_schema_extra=groups.RECOVERY,
        description=(
            "Let a run in --save-state-dir return to the end of an epoch that most of its members signed, and continue before "
            "this step. Later training is lost. A member must still have that model on its disk. Use it if members report that "
            "the model is contested and you do not want to use it. It is an error while the run trains."
        ),
    )
    checkpoint: str | None = Field(
        default=None,
        json_schema_extra=groups.RECOVERY,
        description=(
            "New location of the stored checkpoint, as a URL (hf://OWNER/NAME, gs://BUCKET/PREFIX, s3://…, file:///FOLDER). Use "
            "it for a run in --save-state-dir that must continue from its stored checkpoint and cannot, because members report "
            "that the checkpoint is not the signed model. It is an error while the run trains."
        ),
    )
    init_warmup_time: int | None = Field(
        default=None,
        ge=1,
        json_schema_extra=groups.MEMBERS,
        description="Warmup time until the first round, instead of the run's warmup_time: the first downloads take longest.",
    )
    init_min_clients: int | None = Field(
        default=None,
        ge=1,
        json_schema_extra=groups.MEMBERS,
        description="Clients needed for the first epoch, instead of the run's init_min_clients.",
    )
    logs: Logs = Field(
        default="auto",
        json_schema_extra=groups.SCREEN,
        description="auto and console: lines; tui: full screen, also --tui; json: one event per line; none: nothing",
    )
    web_port: int | None = Field(default=None, ge=0, le=65535, json_schema_extra=groups.WEB, description=WEB_PORT)
    web_host: str = Field(default="127.0.0.1", json_schema_extra=groups.WEB, description=WEB_HOST)
    web_per_address: int = Field(default=20, ge=1, le=200, json_schema_extra=groups.WEB, description=WEB_PER_ADDRESS)
    token_file: Path | None = Field(default=None, json_schema_extra=groups.WEB, description=TOKENS)

    @field_validator("relay")
    @classmethod
    def _relay_is_a_name(cls, value: str) -> str:
        if "://" in value:
            message = (
                "must be the name of a plugin, such as iroh. The URL at which members reach the relay of --with-relay is "
                "--relay-url; a relay that runs elsewhere is named in the run file, in [model.network] relays"
            )
            raise ValueError(message)

        return value
