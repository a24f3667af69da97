"""The tables of the canonical image: every field of the coordinator's state, its place and its meaning.

Encoding, decoding, offsets and docs/reference/canonical-image.md are all made from these tables. The model settings that the
coordinator's rules use have fields of their own; the other keys of `[model.LLM]` belong to plugins and are stored, as canonical
CBOR, in `model.tables`. Every change of a table needs a new VERSION. The kinds in `kinds` and `records` decide which bytes are
invalid.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from psyche_core.config import run_config
from psyche_core.config.rules import MAX_TABLES_BYTES, model_tables
from psyche_core.config.run_config import CHECKPOINTS, Choice, CoordinatorConfig, ModelConfig
from psyche_core.config.schema import MAX_CHECKPOINTERS, MAX_RUN_ID_BYTES, OWN_TABLES
from psyche_core.coordinator.canonical_image.kinds import (
    FLAG,
    U8,
    U16,
    U32,
    U64,
    Bitmap,
    Bytes,
    Constant,
    Enumeration,
    FieldError,
    Hex,
    Kind,
    Padding,
    Text,
    members,
)
from psyche_core.coordinator.canonical_image.records import Blob, List, Optional, Record
from psyche_core.coordinator.round.bloom_filter import BLOOM_BYTES
from psyche_core.coordinator.round.requeue import MAX_INTERVALS
from psyche_core.coordinator.state import (
    MAX_ACCOUNTS,
    MAX_CHALLENGED_INTERVALS,
    MAX_END_INTERVALS,
    MAX_ENDS,
    MAX_UNREADY,
    STORED_ROUNDS,
    Account,
    Client,
    CoordinatorState,
    EndReason,
    Epoch,
    EpochEnd,
    EpochRates,
    OpenChallenge,
    Progress,
    Root,
    Round,
    Unready,
)
from psyche_core.errors import ConfigError, WireError
from psyche_core.types import (
    MAX_CLIENTS,
    MAX_WITNESSES,
    MAX_WORDS_BYTES,
    BatchId,
    ClientState,
    NodeIdentity,
    RunState,
    WitnessStatement,
)
from psyche_core.verification.challenge import Stage
from psyche_core.verification.drawing import TIE_BREAKERS
from psyche_core.verification.epoch import MOST_OPEN
from psyche_core.verification.standing import MEDIAN_OF, Standing
from psyche_core.wire import codec

MAGIC = b"PsycheSt"
VERSION = 5

CHECKPOINT_KINDS = ("Ephemeral", "Dummy", "Hub", "P2P", "Gcs", "P2PGcs")
"""Kinds of checkpoints in the order of their numbers, which are those of the reference implementation."""

RUN_STATE = Enumeration("RunState", members(RunState))
CLIENT_STATE = Enumeration("ClientState", members(ClientState))
END_REASON = Enumeration("EndReason", {0: None, **members(EndReason)})
STAGE = Enumeration("Stage", {number: stage for number, stage in members(Stage).items() if stage is not Stage.CLOSED})
CHECKPOINT_KIND = Enumeration("CheckpointKind", dict(enumerate(CHECKPOINT_KINDS)))

Fields = Sequence[tuple[str, Kind, str]]
_Table = TypeVar("_Table", CoordinatorConfig, ModelConfig)


def _padding(size: int) -> tuple[str, Kind, str]:
    return ("padding", Padding(size), "")


def _validated(table: type[_Table], plain: dict[str, Any], *path: str) -> _Table:
    """Return a validated table of the run configuration. Raises FieldError for the field at `path`."""
    try:
        return run_config.from_plain(table, plain)
    except ConfigError as error:
        text = "; ".join(str(error).splitlines())
        raise FieldError(f"expected a valid configuration: {text}", *path) from error


IDENTITY = Record(
    "NodeIdentity",
    NodeIdentity,
    [
        ("signer", Bytes(32), "Ed25519 public key that signs for the backend"),
        ("p2p", Bytes(32), "Ed25519 public key of the transport endpoint"),
    ],
)

INTERVAL = Record(
    "BatchId",
    BatchId,
    [("first", U64, "first sample"), ("last", U64, "last sample, inclusive, below 2^63 - 1")],
)

RATES = Record(
    "EpochRates",
    EpochRates,
    [
        ("earning_total_shared", U64, "points shared among an epoch's workers"),
        ("slashing_per_client", U64, "points noted against each ejected client"),
    ],
)

PROGRESS = Record(
    "Progress",
    Progress,
    [
        ("step", U64, "next step to train, from 1"),
        ("data_index", U64, "first sample never yet assigned"),
        ("epoch", U32, "ended epochs"),
        _padding(4),
    ],
)

_CONFIG_FIELDS: Fields = [
    ("warmup_time", U64, "seconds"),
    ("cooldown_time", U64, "seconds"),
    ("max_round_train_time", U64, "seconds"),
    ("round_witness_time", U64, "seconds"),
    ("epoch_time", U64, "seconds"),
    ("global_batch_size_warmup_tokens", U64, "tokens"),
    ("total_steps", U32, "steps of the run"),
    ("rounds_per_epoch", U32, "0 for no limit"),
    ("init_min_clients", U16, "members to start an epoch"),
    ("min_clients", U16, "healthy clients to go on"),
    ("witness_nodes", U16, "0 for everybody, at most 32"),
    ("global_batch_size_start", U16, "samples of a round"),
    ("global_batch_size_end", U16, "samples of a round"),
    ("verification_percent", U8, "per cent"),
    ("waiting_for_members_extra_time", U8, "seconds"),
    ("restart_from_checkpoint", FLAG, "1 to go back to the stored checkpoint where no member holds a model"),
    _padding(3),
    ("checkpointers", List(Hex(32), MAX_CHECKPOINTERS), "signers that may say where the model is; none: the epoch elects one"),
]


def _config(**plain: Any) -> CoordinatorConfig:
    return _validated(CoordinatorConfig, plain)


CONFIG = Record("CoordinatorConfig", _config, _CONFIG_FIELDS)


def _checkpoint_fields(checkpoint: Choice) -> dict[str, Any]:
    """Return the kind of a checkpoint and its two texts: repo_id and revision, or bucket and prefix."""
    table = CHECKPOINTS.get(checkpoint.name)
    if table is None:
        return {"kind": checkpoint.name, "first": "", "second": None}

    first, second = table.model_fields
    settings = checkpoint.settings or {}
    return {"kind": checkpoint.name, "first": settings.get(first), "second": settings.get(second)}


def _checkpoint(*, kind: str, first: str, second: str | None) -> Choice:
    table = CHECKPOINTS[kind]
    if table is None:
        if first or second is not None:
            raise FieldError(f"expected zero for the kind {kind}, which has no texts", "first" if first else "second")
        return Choice(kind)

    names = tuple(table.model_fields)
    return Choice(kind, {names[0]: first} if second is None else {names[0]: first, names[1]: second})


CHECKPOINT = Record(
    "Checkpoint",
    _checkpoint,
    [
        ("kind", CHECKPOINT_KIND, "where members load the model from"),
        ("first", Text(64), "repo_id, or bucket of Gcs and P2PGcs; zero for Ephemeral"),
        ("second", Optional(Text(64)), "revision, or prefix of Gcs and P2PGcs"),
        ("padding", Padding(6), ""),
    ],
    split=_checkpoint_fields,
)


def _model_fields(model: ModelConfig) -> dict[str, Any]:
    llm = model.LLM
    return {
        "max_seq_len": llm.max_seq_len,
        "cold_start_warmup_steps": llm.cold_start_warmup_steps,
        "checkpoint": llm.checkpoint,
        "tables": _tables(model),
    }


def _tables(model: ModelConfig) -> bytes:
    """Return the canonical CBOR of the model's keys that have no field of their own. Raises FieldError."""
    try:
        return model_tables(model)
    except ConfigError as error:
        raise FieldError(str(error), "tables") from error


def _model(*, max_seq_len: int, cold_start_warmup_steps: int, checkpoint: Choice, tables: bytes) -> ModelConfig:
    try:
        plain = codec.decode(tables, max_bytes=MAX_TABLES_BYTES)
    except WireError as error:
        raise FieldError(f"expected canonical CBOR: {error}", "tables", "content") from error
    if not isinstance(plain, dict):
        raise FieldError("expected a table of the model's keys without a field of their own", "tables", "content")

    own = {
        "max_seq_len": max_seq_len,
        "cold_start_warmup_steps": cold_start_warmup_steps,
        "checkpoint": checkpoint.to_toml(),
    }
    others = {name: plain.pop(name) for name in OWN_TABLES if name in plain}
    model = _validated(ModelConfig, {"LLM": {**plain, **own}, **others}, "tables", "content")
    if _tables(model) != tables:
        raise FieldError("expected the model's tables in the form `encode` gives them", "tables", "content")

    return model


MODEL = Record(
    "ModelConfig",
    _model,
    [
        ("max_seq_len", U32, "tokens of a sample"),
        ("cold_start_warmup_steps", U32, "steps of rising learning rate after a cold start"),
        ("checkpoint", CHECKPOINT, ""),
        (
            "tables",
            Blob(MAX_TABLES_BYTES),
            "canonical CBOR of the other keys of model.LLM, and of the tables model.network and model.verification",
        ),
    ],
    split=_model_fields,
)


def _standing_fields(standing: Standing) -> dict[str, Any]:
    high = sum(1 << place for place, one in enumerate(standing.high) if one)
    return {
        "strikes": standing.strikes,
        "scores": len(standing.high),
        "high": high,
        "watched_before": standing.watched_before,
    }


def _standing(*, strikes: int, scores: int, high: int, watched_before: int) -> Standing:
    if scores > MEDIAN_OF:
        raise FieldError(f"expected at most {MEDIAN_OF}, got {scores}", "scores")
    if high >> scores:
        raise FieldError(f"expected no bit beyond the {scores} scores, got {high}", "high")

    return Standing(strikes, watched_before, tuple(bool(high >> place & 1) for place in range(scores)))


STANDING = Record(
    "Standing",
    _standing,
    [
        ("strikes", U8, "in this epoch"),
        ("scores", U8, f"passed challenges that are remembered, at most {MEDIAN_OF}"),
        ("high", U8, "bit i: the score of the i-th of them was high, the oldest first"),
        _padding(1),
        ("watched_before", U32, "its shares of rounds below this one are challenged in any case, 0 for none"),
    ],
    split=_standing_fields,
)

CLIENT = Record(
    "Client",
    Client,
    [
        ("id", IDENTITY, ""),
        ("exited_height", U32, "round in which it stopped being healthy, 0 before"),
        ("accepted_rounds", U32, "in this epoch"),
        ("state", CLIENT_STATE, "health"),
        ("rejoins", U8, "how often it came back in this epoch"),
        ("missed", U8, "score of missed duties"),
        ("lost_rounds", U8, "bit h % 8: its share of round h is counted as lost"),
        ("end_digest", Bytes(32), "full digest of its masters at this epoch's end, zero before it said so"),
        ("standing", STANDING, "strikes and scores of its checked shares"),
    ],
)

STATEMENT = Record(
    "WitnessStatement",
    WitnessStatement,
    [
        ("epoch", U32, "epoch in which it was sent"),
        ("height", U32, "round in which it was sent; it is about the one before"),
        ("index", U16, "slot of the witness"),
        _padding(2),
        ("participants", Bytes(MAX_CLIENTS // 8), "bit s % 8 of byte s // 8: the result of slot s was received and verified"),
        ("broadcast_bloom", Bytes(BLOOM_BYTES), "filter over the accepted commitments"),
        ("merkle_root", Bytes(32), "over the accepted commitments"),
        ("model_digest", Bytes(32), "after the last apply, zero for no opinion"),
        ("words", Blob(MAX_WORDS_BYTES), "two about opened challenges in each byte, none where none are due"),
    ],
)

ROUND = Record(
    "Round",
    Round,
    [
        ("step", U64, "optimizer step its training belongs to"),
        ("seed", U64, "drawn when it started"),
        ("height", U32, "number of the round in its epoch, from 0"),
        ("drain", FLAG, "1 in the round that trains nothing and settles the last one"),
        _padding(3),
        ("slots", Bitmap(MAX_CLIENTS), "slots healthy when it started"),
        ("history", Bytes(32), "digest of all decisions up to the masters of this round"),
        ("voided", Bitmap(MAX_CLIENTS), "slots whose share nobody applies, proven to have signed several results"),
        ("recomputing", Bitmap(MAX_CLIENTS), "slots that recompute a challenged share and get no samples"),
        ("batches", List(INTERVAL, MAX_INTERVALS + 1), "samples to train, ascending, disjoint"),
        ("statements", List(STATEMENT, MAX_WITNESSES), "in order of arrival, one for a slot"),
    ],
)

ROOT = Record(
    "Root",
    Root,
    [
        ("slot", U16, "who recomputed the gradient"),
        _padding(2),
        ("commitment", Bytes(32), "to the gradient's chunks"),
    ],
)

CHALLENGE = Record(
    "OpenChallenge",
    OpenChallenge,
    [
        ("height", U32, "round of the share"),
        ("since", U32, "round with which the stage began"),
        ("trainer", U16, "slot whose share is checked"),
        ("verifier", U16, "slot that recomputes it"),
        ("stage", STAGE, "what is waited for"),
        ("complained", FLAG, "1 when the verifier lacked the trainer's signs"),
        _padding(2),
        ("share", List(INTERVAL, MAX_CHALLENGED_INTERVALS), "samples; none once a proof decided about them"),
        ("roots", List(ROOT, 1 + TIE_BREAKERS), "ascending by slot"),
        ("judges", List(U16, 1 + TIE_BREAKERS), f"slots of the tie-breakers, ascending, at most {TIE_BREAKERS}"),
        ("missed", List(U16, 1 + TIE_BREAKERS), f"tie-breakers that were silent, ascending, at most {TIE_BREAKERS}"),
    ],
)

EPOCH = Record(
    "Epoch",
    Epoch,
    [
        ("start_time", U64, "unix seconds"),
        ("start_step", U64, "step at its start"),
        ("seed", U64, "drawn at its start"),
        ("rates", RATES, ""),
        ("ending", END_REASON, "why it is ending, 0 while it is not"),
        ("cold_start", FLAG, "1 when it started cold, or the next one will"),
        ("unplayed", FLAG, "1 before its first round: the rounds are those of the epoch played before"),
        ("repeats", U8, "warmups in a row that began again for members that had not reported"),
        _padding(4),
        ("ready", Bitmap(MAX_CLIENTS), "slots whose warmup witness arrived"),
        ("ceded", Bitmap(MAX_CLIENTS), "slots that were to store the model and cannot"),
        ("lacking", Bitmap(MAX_CLIENTS), "slots that cannot get the model the epoch starts with"),
        ("held_step", U64, "the newest signed step that one of them holds, 0 for none"),
        ("ready_since", Optional(U64), "unix second at which init_min_clients slots were ready"),
        ("clients", List(CLIENT, MAX_CLIENTS), "slot by slot, each signer once"),
        ("rounds", List(ROUND, STORED_ROUNDS), "last ones, oldest first, with consecutive heights"),
        ("challenges", List(CHALLENGE, MOST_OPEN), "open ones, ascending by round, then by trainer"),
    ],
)

ACCOUNT = Record(
    "Account",
    Account,
    [("signer", Bytes(32), "Ed25519 public key"), ("earned", U64, "points"), ("slashed", U64, "points")],
)

END = Record(
    "EpochEnd",
    EpochEnd,
    [
        ("step", U64, "the last one applied"),
        ("data_index", U64, "first sample never assigned by then"),
        ("digest", Bytes(32), "full digest of the masters, zero where nobody signed it"),
        ("lost", U64, "samples given up by then"),
        ("history", Bytes(32), "digest of all decisions by then"),
        ("queue", List(INTERVAL, MAX_END_INTERVALS), "samples that waited to be assigned again, ascending, disjoint"),
    ],
)

UNREADY = Record(
    "Unready",
    Unready,
    [("signer", Bytes(32), "Ed25519 public key"), ("score", U32, "of warmups in which it was not ready, 1 to 255")],
)

_STATE_FIELDS: Fields = [
    ("run_id", Text(MAX_RUN_ID_BYTES), "not empty"),
    ("instance", Bytes(32), "new for every run; on a chain the address of the state's account"),
    ("since", U64, "unix second at which run_state was entered"),
    ("minimum_since", Optional(U64), "unix second at which pending last reached init_min_clients"),
    ("lost_samples", U64, "dropped from a full queue, over the run"),
    ("progress", PROGRESS, ""),
    ("future_rates", RATES, "of the next epoch"),
    ("run_state", RUN_STATE, "phase"),
    ("pending_pause", FLAG, "1 when a pause was asked for"),
    ("from_checkpoint", FLAG, "1 while an epoch begins with the stored checkpoint's model"),
    ("model_lost", FLAG, "1 while the run waits for its owner because no member holds a model"),
    ("generation", U32, "how often the run went back"),
    ("history", Bytes(32), "digest of all decisions so far"),
    ("config", CONFIG, ""),
    ("model", MODEL, ""),
    ("epoch", EPOCH, ""),
    ("pending", List(IDENTITY, MAX_CLIENTS), "members in order of arrival, each signer once"),
    ("requeue", List(INTERVAL, MAX_INTERVALS), "samples to assign again, ascending, disjoint"),
    ("accounts", List(ACCOUNT, MAX_ACCOUNTS), "ascending by signer"),
    ("stored", END, "where the stored checkpoint stands"),
    ("ends", List(END, MAX_ENDS), "signed epoch ends, ascending by step"),
    ("unready", List(UNREADY, MAX_UNREADY), "signers that were not ready when a warmup ended, oldest first, each once"),
]

_OTHER_PROGRAM = "this is no image of a coordinator's state"
_OTHER_VERSION = "update the older side"
_HEADER_BYTES = 16

SIZE = _HEADER_BYTES + Record("CoordinatorState", CoordinatorState, _STATE_FIELDS).size
"""Size of every image in bytes."""

_HEADER: Fields = [
    ("magic", Constant(Bytes(8), MAGIC, mismatch=_OTHER_PROGRAM), f"the letters {MAGIC.decode()}"),
    ("version", Constant(U32, VERSION, mismatch=_OTHER_VERSION), "of this layout"),
    ("size", Constant(U32, SIZE, mismatch=_OTHER_VERSION), "bytes of the image"),
]

HEADER = Record("Header", dict, _HEADER)

IMAGE = Record("CoordinatorState", CoordinatorState, [*_HEADER, *_STATE_FIELDS])
