"""Reads the accounts of the other implementation of Psyche, so that the same command can show its runs. Read-only.

Its coordinator account is an image of 119,160 bytes: discriminator, version, metadata, coordinator, members, nonce. Phase,
progress, members, balances, configuration and model are read; rounds and witnesses are not. Bytes of unused variants have no
meaning and are skipped. Another size, discriminator or version, checked in this order, raises WireError. In a text that is not
UTF-8, invalid bytes are replaced.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any

from solders.pubkey import Pubkey

from psyche_core.errors import WireError
from psyche_core.types import ClientState, RunState

PROGRAM_ID = Pubkey.from_string("4SHugWqSXwKE5fqDchkJcPEqnoZE22VYKtSTVm7axbT7")
ACCOUNT_BYTES = 119_160
ACCOUNT_MAGIC = bytes.fromhex("ef21b1372c9b562b")
INSTANCE_BYTES = 173
INSTANCE_MAGIC = bytes.fromhex("9c099910af181ffc")
VERSION = 1

CONFIG_AT, PROGRESS_AT, CLIENTS_AT, EXITED_AT, MEMBERS_AT = 968, 1032, 57_496, 75_936, 94_424
MODEL_AT = 416
_CLIENT_BYTES, _MEMBER_BYTES, _SLOTS = 72, 96, 256

_CONFIG = struct.Struct("<QQQQQQIHHHHHBB")
_CONFIG_NAMES = (
    "warmup_time",
    "cooldown_time",
    "max_round_train_time",
    "round_witness_time",
    "global_batch_size_warmup_tokens",
    "epoch_time",
    "total_steps",
    "init_min_clients",
    "min_clients",
    "witness_nodes",
    "global_batch_size_start",
    "global_batch_size_end",
    "verification_percent",
    "waiting_for_members_extra_time",
)
_ARCHITECTURES = ("HfLlama", "HfDeepseek", "HfAuto", "Torchtitan")
_DATA_TYPES = ("Pretraining", "Finetuning")
_LOCATIONS = ("Dummy", "Server", "Local", "Http", "WeightedHttp", "Preprocessed")
_CHECKPOINTS = ("Ephemeral", "Dummy", "Hub", "P2P", "Gcs", "P2PGcs")
_SCHEDULES = ("Constant", "Linear", "Cosine", "WarmupStableDecay")
_OPTIMIZERS = ("Dummy", "AdamW", "Distro")


def parse_instance(data: bytes) -> dict[str, Any]:
    """A run's instance: authorities, account, name. Raises WireError."""
    if len(data) != INSTANCE_BYTES or data[:8] != INSTANCE_MAGIC:
        message = f"this is no run's instance of the reference: {len(data)} bytes that begin with {data[:8].hex()}"
        raise WireError(message)

    length = int.from_bytes(data[105:109], "little")
    if length > INSTANCE_BYTES - 109:
        message = f"the run's name would have {length} bytes, more than there are"
        raise WireError(message)

    return {
        "main_authority": Pubkey(data[9:41]),
        "join_authority": Pubkey(data[41:73]),
        "account": Pubkey(data[73:105]),
        "run_id": data[109 : 109 + length].decode("utf-8", "replace"),
    }


def parse_account(data: bytes) -> dict[str, Any]:
    """The account of a run's state, as values for display. Raises WireError."""
    if len(data) != ACCOUNT_BYTES:
        message = f"expected a coordinator account of the reference of {ACCOUNT_BYTES:,} bytes, got {len(data):,}"
        raise WireError(message)
    if data[:8] != ACCOUNT_MAGIC:
        message = f"expected the discriminator {ACCOUNT_MAGIC.hex()}, got {data[:8].hex()}"
        raise WireError(message)
    version = _u64(data, 8)
    if version != VERSION:
        message = f"expected version {VERSION} of the reference's account, got {version}"
        raise WireError(message)

    epoch, step, start_index = struct.unpack_from("<H2xIQ", data, PROGRESS_AT)
    return {
        "nonce": _u64(data, 119_152),
        "client_version": _text(data, 119_050, 96),
        "name": _text(data, 16, 64),
        "description": _text(data, 80, 280),
        "num_parameters": _u64(data, 360),
        "vocab_size": _u64(data, 368),
        "run_id": _text(data, 376, 32),
        "run_state": _named(RunState, data[408]),
        "since": _u64(data, 94_408),
        "pending_pause": data[94_416] != 0,
        "progress": {"epoch": epoch, "step": step, "epoch_start_data_index": start_index},
        "config": dict(zip(_CONFIG_NAMES, _CONFIG.unpack_from(data, CONFIG_AT), strict=True)),
        "model": _model(data, MODEL_AT),
        "clients": _clients(data, CLIENTS_AT),
        "exited_clients": _clients(data, EXITED_AT),
        **_members(data),
    }


def _clients(data: bytes, at: int) -> list[dict[str, Any]]:
    found = []
    for slot in range(_count(data, at + _SLOTS * _CLIENT_BYTES, "clients")):
        start = at + slot * _CLIENT_BYTES
        found.append(
            {
                "slot": slot,
                "address": Pubkey(data[start : start + 32]),
                "p2p": data[start + 32 : start + 64],
                "state": _named(ClientState, data[start + 64]),
                "exited_height": _u32(data, start + 68),
            }
        )
    return found


def _members(data: bytes) -> dict[str, Any]:
    """All members that ever joined, with their balances; pending members have joined for the next epoch."""
    active_now = _u64(data, 119_008)
    accounts, pending = [], []
    for place in range(_count(data, MEMBERS_AT + _SLOTS * _MEMBER_BYTES, "members")):
        start = MEMBERS_AT + place * _MEMBER_BYTES
        signer, p2p = Pubkey(data[start : start + 32]), data[start + 32 : start + 64]
        earned, slashed, active = struct.unpack_from("<QQQ", data, start + 72)
        accounts.append({"address": signer, "earned": earned, "slashed": slashed})
        if active == active_now:
            pending.append({"address": signer, "p2p": p2p})
    names = ("earning_total_shared", "slashing_per_client")
    return {
        "pending": pending,
        "accounts": accounts,
        "rates": dict(zip(names, struct.unpack_from("<QQ", data, 119_016), strict=True)),
        "future_rates": dict(zip(names, struct.unpack_from("<QQ", data, 119_032), strict=True)),
    }


def _model(data: bytes, at: int) -> dict[str, Any]:
    """The model's table: a tag of 4 bytes, then the LLM's fields from byte 8."""
    if _u32(data, at) != 0:
        return {"unknown": _u32(data, at)}

    llm = at + 8
    return {
        "LLM": {
            "max_seq_len": _u32(data, llm),
            "cold_start_warmup_steps": _u32(data, llm + 4),
            "architecture": _choice(_ARCHITECTURES, _u32(data, llm + 8)),
            "checkpoint": _checkpoint(data, llm + 12),
            "data_type": _choice(_DATA_TYPES, _u32(data, llm + 148)),
            "data_location": _location(data, llm + 152),
            "lr_schedule": _tagged(data, llm + 456, _SCHEDULES, payload=llm + 464, readers=_SCHEDULE_READERS),
            "optimizer": _tagged(data, llm + 512, _OPTIMIZERS, payload=llm + 516, readers=_OPTIMIZER_READERS),
        }
    }


def _checkpoint(data: bytes, at: int) -> Any:
    name = _choice(_CHECKPOINTS, _u32(data, at))
    payload = at + 4
    outer, inner = {"Gcs": ("bucket", "prefix"), "P2PGcs": ("bucket", "prefix")}.get(name, ("repo_id", "revision"))
    if name not in _CHECKPOINTS[1:]:
        return name

    settings = {outer: _text(data, payload + 65, 64)}
    if data[payload]:
        settings[inner] = _text(data, payload + 1, 64)
    return {name: settings}


def _location(data: bytes, at: int) -> Any:
    name, payload = _choice(_LOCATIONS, _u32(data, at)), at + 4
    match name:
        case "Server":
            return {name: _text(data, payload, 64)}
        case "Local" | "WeightedHttp" | "Preprocessed":
            return {name: _text(data, payload, 192)}
        case "Http":
            kind, inner = _u32(data, payload), payload + 4
            places: dict[int, Callable[[], Any]] = {
                0: lambda: {"SingleUrl": _text(data, inner, 192)},
                1: lambda: {
                    "NumberedFiles": {
                        "url_template": _text(data, inner, 64),
                        "start_index": _u32(data, inner + 64),
                        "n_left_pad_zeros": data[inner + 68],
                        "num_files": _u32(data, inner + 72),
                    }
                },
                2: lambda: {"Gcp": {"bucket_name": _text(data, inner, 64), "filter_directory": _text(data, inner + 64, 192)}},
            }
            place = places.get(kind, lambda: f"unknown {kind}")()
            size = _choice(("TwoBytes", "FourBytes"), _u32(data, payload + 260))
            shuffle = data[payload + 268 : payload + 300].hex() if _u32(data, payload + 264) == 1 else None
            return {name: {"location": place, "token_size_in_bytes": size, "shuffle_seed": shuffle}}
    return name


def _optional_float(data: bytes, at: int) -> float | None:
    return _float(data, at + 4) if _u32(data, at) else None


def _float(data: bytes, at: int) -> float:
    (value,) = struct.unpack_from("<f", data, at)
    return float(value)


def _fields(form: str, *names: str) -> Callable[[bytes, int], dict[str, Any]]:
    return lambda data, at: dict(zip(names, struct.unpack_from(form, data, at), strict=True))


def _distro(data: bytes, at: int) -> dict[str, Any]:
    return {
        "clip_grad_norm": _optional_float(data, at),
        "weight_decay": _optional_float(data, at + 8),
        "compression_decay": _float(data, at + 16),
        **_fields("<HH?", "compression_topk", "compression_chunk", "quantize_1bit")(data, at + 20),
    }


def _adamw(data: bytes, at: int) -> dict[str, Any]:
    return {
        "betas": list(struct.unpack_from("<ff", data, at)),
        "weight_decay": _float(data, at + 8),
        "eps": _float(data, at + 12),
        "clip_grad_norm": _optional_float(data, at + 16),
    }


_Readers = Mapping[str, Callable[[bytes, int], Any]]
_SCHEDULE_READERS: _Readers = {
    "Constant": _fields("<ddI", "base_lr", "warmup_init_lr", "warmup_steps"),
    "Linear": _fields("<dddII", "base_lr", "warmup_init_lr", "final_lr", "warmup_steps", "total_steps"),
    "Cosine": _fields("<dddII", "base_lr", "warmup_init_lr", "final_lr", "warmup_steps", "total_steps"),
    "WarmupStableDecay": _fields(
        "<ddddIIII",
        "base_lr",
        "warmup_init_lr",
        "cosine_decay_final_lr",
        "linear_decay_final_lr",
        "warmup_steps",
        "stable_steps",
        "cosine_decay_steps",
        "linear_decay_steps",
    ),
}
_OPTIMIZER_READERS: _Readers = {"AdamW": _adamw, "Distro": _distro}


def _tagged(data: bytes, at: int, names: tuple[str, ...], *, payload: int, readers: _Readers) -> Any:
    name = _choice(names, _u32(data, at))
    reader = readers.get(name)
    return name if reader is None else {name: reader(data, payload)}


def _choice(names: tuple[str, ...], number: int) -> str:
    return names[number] if number < len(names) else f"unknown {number}"


def _named(enumeration: type[RunState | ClientState], number: int) -> str:
    return enumeration(number).name if number in set(enumeration) else f"unknown {number}"


def _count(data: bytes, at: int, what: str) -> int:
    count = _u64(data, at)
    if count > _SLOTS:
        message = f"the account says it holds {count} {what}, there is room for {_SLOTS}"
        raise WireError(message)

    return count


def _text(data: bytes, at: int, size: int) -> str:
    return data[at : at + size].split(b"\0", 1)[0].decode("utf-8", "replace")


def _u32(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")


def _u64(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little")
