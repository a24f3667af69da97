"""The tables of a run configuration as frozen, strict models: which keys exist, and their types and ranges.

Keys and enumeration names are those of `state.toml` and `data.toml` of the reference implementation. Unknown keys, numbers
written as strings, floats that are not finite and strings over their limit are errors (the reference ignores unknown keys and
truncates strings). Enumerations are externally tagged and become a `Choice`. Rules between keys are in `rules`; settings of
optimizers and data locations belong to their plugins.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
)

from psyche_core.config.choice import PLUGIN_NAME
from psyche_core.config.choice import Choice as Choice
from psyche_core.config.sentences import did_you_mean, nested_error, problems_of, shown

MAX_RUN_ID_BYTES = 32
MAX_STRING_BYTES = 64
MAX_URL_BYTES = 192

MAX_CHECKPOINTERS = 16
WAITING_SECONDS = 5
"""Default of waiting_for_members_extra_time: once enough members wait, others have a few seconds to come, too."""

MAX_RELAYS = 8
MAX_RELAY_BYTES = 255

_RELAY_URL = re.compile(r"https?://[A-Za-z0-9.:\[\]-]+/?")
_EVERY_ADDRESS_URL = re.compile(r"https?://([0.]+|\[[0:]+\])(:[0-9]*)?/?")
_UNSEEN = frozenset({"Cc", "Cf", "Zl", "Zp"})
"""Unicode categories of characters that control how text is shown."""

_PUBLIC_KEY = re.compile(r"[0-9a-f]{64}")

U8 = Annotated[int, Field(ge=0, le=2**8 - 1)]
U16 = Annotated[int, Field(ge=0, le=2**16 - 1)]
U32 = Annotated[int, Field(ge=0, le=2**32 - 1)]
U64 = Annotated[int, Field(ge=0, le=2**64 - 1)]
Rate = Annotated[float, Field(ge=0.0)]
Score = Annotated[float, Field(gt=0.0, le=1.0)]

OWN_TABLES = ("network", "verification")
"""Tables of `[model]` that the reference does not have. Coordinators store them beside the keys of `[model.LLM]`."""


class Table(BaseModel):
    """Base of every table: immutable, no unknown keys, no silent conversions, only finite floats."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def _limited_text(value: str, *, at_most: int) -> str:
    size = len(value.encode())
    if size > at_most:
        message = f"must be at most {at_most} bytes of UTF-8, got {size}"
        raise ValueError(message)
    if "\0" in value:
        message = "must not contain NUL characters"
        raise ValueError(message)

    return value


def _short_text(value: Any) -> Any:
    return _limited_text(value, at_most=MAX_STRING_BYTES) if isinstance(value, str) else value


def check_run_id(value: str) -> str:
    """Return the name of a run that is started or joined. Raises ValueError with the rule that it breaks.

    Files are named after the run: checkpoints, states, keys and results. Coordinators and the wire take other names, too, so that
    runs that exist elsewhere can still be read.
    """
    if not value:
        message = "must not be empty"
        raise ValueError(message)

    _limited_text(value, at_most=MAX_RUN_ID_BYTES)
    if value in (".", "..") or "/" in value or "\\" in value:
        message = "must not be . or .. or contain / or \\, because files are named after the run"
        raise ValueError(message)
    if any(unicodedata.category(character) in _UNSEEN for character in value):
        message = "must not contain control characters or invisible ones"
        raise ValueError(message)

    return value


def _run_id(value: Any) -> Any:
    return check_run_id(value) if isinstance(value, str) else value


def _plugin_name(value: Any) -> Any:
    if isinstance(value, str) and not PLUGIN_NAME.fullmatch(value):
        message = "must be a name of letters, digits, _ and -, at most 64, starting with a letter"
        raise ValueError(message)

    return value


def _public_key(value: Any) -> Any:
    if isinstance(value, str) and not _PUBLIC_KEY.fullmatch(value):
        message = "must be an Ed25519 public key, written as 64 lower-case hex digits"
        raise ValueError(message)

    return value


def _relay_url(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if not _RELAY_URL.fullmatch(value):
        message = "must be the URL of a relay, http(s)://HOST[:PORT]"
        raise ValueError(message)
    if _EVERY_ADDRESS_URL.fullmatch(value):
        message = f"must be a URL at which members reach the relay, got {value}, which means every address of a machine"
        raise ValueError(message)

    return _limited_text(value, at_most=MAX_RELAY_BYTES)


ShortText = Annotated[str, BeforeValidator(_short_text)]
RunId = Annotated[str, BeforeValidator(_run_id)]
PluginName = Annotated[str, BeforeValidator(_plugin_name)]
RelayUrl = Annotated[str, BeforeValidator(_relay_url)]
PublicKey = Annotated[str, BeforeValidator(_public_key)]
Checkpointers = Annotated[tuple[PublicKey, ...], Field(strict=False, max_length=MAX_CHECKPOINTERS), PlainSerializer(list)]


class ConstantSchedule(Table):
    """`base_lr` after a linear warm-up of `warmup_steps` from `warmup_init_lr`."""

    base_lr: Annotated[float, Field(gt=0.0)]
    warmup_init_lr: Rate
    warmup_steps: U32


class DecaySchedule(ConstantSchedule):
    """Linear or cosine decay to `final_lr` at step `total_steps`."""

    final_lr: Rate
    total_steps: U32


class WarmupStableDecaySchedule(ConstantSchedule):
    """Warm-up, a stable phase at base_lr, a cosine decay, then a linear decay. Lengths are in steps."""

    cosine_decay_final_lr: Rate
    linear_decay_final_lr: Rate
    stable_steps: U32
    cosine_decay_steps: U32
    linear_decay_steps: U32


class HubRepo(Table):
    """A model repository on the hub (or a local directory of that name)."""

    repo_id: ShortText
    revision: ShortText | None = None


class GcsRepo(Table):
    """A bucket of Google Cloud Storage, and a prefix (folder) in it."""

    bucket: ShortText
    prefix: ShortText | None = None


LR_SCHEDULES: Mapping[str, type[Table] | None] = MappingProxyType(
    {
        "Constant": ConstantSchedule,
        "Linear": DecaySchedule,
        "Cosine": DecaySchedule,
        "WarmupStableDecay": WarmupStableDecaySchedule,
    }
)
CHECKPOINTS: Mapping[str, type[Table] | None] = MappingProxyType(
    {"Ephemeral": None, "Dummy": HubRepo, "Hub": HubRepo, "P2P": HubRepo, "Gcs": GcsRepo, "P2PGcs": GcsRepo}
)


def _known_choice(value: Any, variants: Mapping[str, type[Table] | None]) -> Choice:
    """Return a choice among variants that the core defines, with validated settings."""
    choice = Choice.parse(value)
    if choice.name not in variants:
        raise nested_error([(choice.name, f": unknown variant{did_you_mean(choice.name, variants)}")])

    table = variants[choice.name]
    if table is None:
        if choice.settings:
            raise nested_error([(choice.name, f" = {shown(choice.settings)}: takes no settings")])
        return Choice(choice.name)

    if isinstance(value, Mapping) and isinstance(value[choice.name], str):
        rule = f"must be a table with {', '.join(table.model_fields)}"
        raise nested_error([(choice.name, f" = {shown(value[choice.name])}: {rule}")])

    try:
        settings = table.model_validate(choice.settings or {})
    except ValidationError as error:
        below = [(f"{choice.name}.{path}", text) for path, text in problems_of(error, table)]
        raise nested_error(below) from error

    return Choice(choice.name, settings.model_dump(exclude_none=True))


def _schedule(value: Any) -> Choice:
    return _known_choice(value, LR_SCHEDULES)


def _checkpoint(value: Any) -> Choice:
    return _known_choice(value, CHECKPOINTS)


_as_toml = PlainSerializer(Choice.to_toml)
PluginChoice = Annotated[Choice, PlainValidator(Choice.parse), _as_toml]
ScheduleChoice = Annotated[Choice, PlainValidator(_schedule), _as_toml]
CheckpointChoice = Annotated[Choice, PlainValidator(_checkpoint), _as_toml]


class CoordinatorConfig(Table):
    """`[config]`. Times in seconds, batch sizes in samples (sequences) per round, `*_tokens` in tokens.

    rounds_per_epoch, restart_from_checkpoint and checkpointers do not exist in the reference.

    Attributes:
        witness_nodes: 0 elects everybody (at most 32).
        rounds_per_epoch: the epoch ends after this number of trained rounds or at epoch_time, whichever is first; 0 means only
            epoch_time.
        restart_from_checkpoint: if no member holds a model with which the run can continue, the run goes back to the stored
            checkpoint by itself instead of waiting for its owner.
        checkpointers: public keys of signers (64 lower-case hex digits each, at most 16) that may set where the model is stored,
            whether they are members or not; if the list is empty, each epoch elects one client.
    """

    warmup_time: U64
    cooldown_time: U64
    max_round_train_time: U64
    round_witness_time: U64
    epoch_time: U64
    global_batch_size_warmup_tokens: U64
    total_steps: U32
    init_min_clients: U16
    min_clients: U16
    witness_nodes: U16
    global_batch_size_start: U16
    global_batch_size_end: U16
    verification_percent: U8
    waiting_for_members_extra_time: U8 = WAITING_SECONDS
    rounds_per_epoch: U32 = 0
    restart_from_checkpoint: bool = False
    checkpointers: Checkpointers = ()


class LLMConfig(Table):
    """`[model.LLM]`. max_seq_len in tokens. architecture, data_location and optimizer are names of plugins."""

    max_seq_len: U32
    cold_start_warmup_steps: U32 = 0
    architecture: PluginName
    checkpoint: CheckpointChoice
    data_type: Literal["Pretraining", "Finetuning"]
    data_location: PluginChoice
    lr_schedule: ScheduleChoice
    optimizer: PluginChoice


class NetworkConfig(Table):
    """`[model.network]`, not in the reference: how members reach each other.

    relays: URLs of relays for members that cannot reach each other directly, at most 8, http(s)://HOST[:PORT]. Members contact no
    others. It lies beside `model.LLM` because that is the part of a run that coordinators store without reading it.
    """

    relays: Annotated[tuple[RelayUrl, ...], Field(strict=False, max_length=MAX_RELAYS), PlainSerializer(list)] = ()


class VerificationConfig(Table):
    """`[model.verification]`, not in the reference: with which scores a checked share passes. See `psyche bench verification`.

    Scores are 0 for equal gradients and 1 for unrelated ones. They depend on the model, the optimizer and members' arithmetic.

    Attributes:
        threshold: the largest with which a share passes.
        median_threshold: a member with a larger one in most of its last five checks gets a strike; at most `threshold`.
    """

    threshold: Score = 0.05
    median_threshold: Score = 0.005


class ModelConfig(Table):
    """`[model]`: a tagged union of model kinds as in the reference. There is only one kind.

    network, verification: not in the reference.
    """

    LLM: LLMConfig
    network: NetworkConfig | None = None
    verification: VerificationConfig | None = None

    @model_serializer(mode="wrap")
    def _without_nothing(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """A run without these tables looks as it did before there were any, so its documents and images stay the same."""
        plain: dict[str, Any] = serialize(self)
        for name in OWN_TABLES:
            if plain.get(name) is None:
                plain.pop(name, None)
        return plain

    @property
    def thresholds(self) -> VerificationConfig:
        """With which scores a checked share passes."""
        return self.verification or VerificationConfig()

    @property
    def relays(self) -> tuple[str, ...]:
        """The relays that the run names."""
        return () if self.network is None else self.network.relays


class ProgressConfig(Table):
    """`[progress]`, for a run that continues an earlier one.

    Attributes:
        epoch: number of ended epochs.
        step: next step to train, from 1.
        epoch_start_data_index: first sample not yet assigned.
    """

    epoch: U16 = 0
    step: U32 = 1
    epoch_start_data_index: U64 = 0


RunStateName = Literal[
    "Uninitialized", "WaitingForMembers", "Warmup", "RoundTrain", "RoundWitness", "Cooldown", "Finished", "Paused"
]


class RunFile(Table):
    """`state.toml`. run_state is only accepted because reference files have it: a server always starts by waiting for members."""

    run_id: RunId
    run_state: RunStateName = "WaitingForMembers"
    config: CoordinatorConfig
    model: ModelConfig
    progress: ProgressConfig = ProgressConfig()
