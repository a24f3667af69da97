"""Configurations and states for random runs: every limit small, so that a few commands reach it.

All is drawn from one `random.Random`, so a number names a run. Some runs begin midway, with a queue, accounts or a
history that would take thousands of commands to get.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from random import Random
from typing import Any

from psyche_core.config.run_config import CoordinatorConfig, ModelConfig
from psyche_core.coordinator.round.requeue import MAX_INTERVALS
from psyche_core.coordinator.state import (
    MAX_ACCOUNTS,
    MAX_END_INTERVALS,
    MAX_ENDS,
    MAX_UNREADY,
    Account,
    CoordinatorState,
    EpochEnd,
    EpochRates,
    Progress,
    Unready,
)
from psyche_core.types import BatchId, RunState

POINTS = (0, 1, 7, 100, 10**9, 2**64 - 1)

LLM: dict[str, Any] = {
    "max_seq_len": 64,
    "cold_start_warmup_steps": 0,
    "architecture": "HfLlama",
    "checkpoint": {"Hub": {"repo_id": "owner/model"}},
    "data_type": "Pretraining",
    "data_location": {"Server": "127.0.0.1:20001"},
    "lr_schedule": {"Constant": {"base_lr": 0.001, "warmup_init_lr": 0.0, "warmup_steps": 2}},
    "optimizer": {"Distro": {"compression_decay": 0.99, "compression_topk": 4, "compression_chunk": 64, "quantize_1bit": True}},
}

CHECKPOINTS: tuple[Any, ...] = (
    {"Hub": {"repo_id": "owner/model"}},
    {"Hub": {"repo_id": "ü" * 32, "revision": "main"}},
    {"Gcs": {"bucket": "b"}},
    {"Gcs": {"bucket": "b", "prefix": ""}},
    {"Dummy": {"repo_id": ""}},
    {"P2P": {"repo_id": "x"}},
    {"P2PGcs": {"bucket": "c", "prefix": "d/e"}},
)


def config(random: Random, members: int, checkpointers: tuple[str, ...] = (), **keys: Any) -> CoordinatorConfig:
    """A configuration that breaks no rule. keys: given, not drawn."""
    least = random.randint(1, max(1, members // 2))
    start = random.choice([1, 2, 3, 5, 8, 40])
    drawn = {
        "warmup_time": random.choice([5, 20]),
        "cooldown_time": random.choice([1, 5]),
        "max_round_train_time": random.choice([3, 30]),
        "round_witness_time": random.choice([1, 10]),
        "epoch_time": random.choice([60, 400, 100_000]),
        "global_batch_size_warmup_tokens": random.choice([0, 64, 64 * 30, 64 * 500, 2**63]),
        "total_steps": random.choice([3, 24, 1000, 2**32 - 1]),
        "rounds_per_epoch": random.choice([0, 0, 2, 5]),
        "init_min_clients": random.randint(least, members),
        "min_clients": least,
        "witness_nodes": random.choice([0, 0, random.randint(1, least)]),
        "global_batch_size_start": start,
        "global_batch_size_end": start + random.choice([0, 1, 7, 33]),
        "verification_percent": random.choice([0, 0, 0, 10, 50, 100, 100]),
        "waiting_for_members_extra_time": random.choice([1, 3]),
        "restart_from_checkpoint": random.choice([False, True]),
        "checkpointers": checkpointers,
    }
    return CoordinatorConfig.model_validate({**drawn, **keys})


def model(random: Random, **keys: Any) -> ModelConfig:
    """A model that breaks no rule."""
    drawn = {
        "checkpoint": random.choice(CHECKPOINTS),
        "max_seq_len": random.choice([1, 64, 2**32 - 1]),
        "data_location": {"Server": "x" * random.choice([1, 60])},
    }
    if random.random() < 0.1:
        drawn["data_location"] = {"WeightedHttp": {"urls": ["https://example.org/" + "y" * 50] * 20}}
    return ModelConfig.model_validate({"LLM": {**LLM, **drawn, **keys}})


def midway(random: Random, state: CoordinatorState, signers: list[bytes]) -> CoordinatorState:
    """A run that waits for members after a long history. signers: of those who may join it."""
    step = random.randint(1, state.config.total_steps)
    data_index = random.choice([5000, 10**9, 2**62])
    ends = _ends(random, step - 1, data_index)
    return replace(
        state,
        run_state=RunState.WaitingForMembers,
        progress=Progress(epoch=random.choice([0, 7, 2**31]), step=step, data_index=data_index),
        from_checkpoint=random.choice([False, False, True]),
        generation=random.choice([0, 9]),
        stored=random.choice([state.stored, *ends]),
        ends=ends,
        unready=_unready(random, signers),
        requeue=_queue(random),
        future_rates=EpochRates(random.choice(POINTS), random.choice(POINTS)),
        accounts=_accounts(random, signers),
        lost_samples=random.choice([0, 3]),
    )


def _queue(random: Random) -> tuple[BatchId, ...]:
    count = random.choice([0, 1, 20, MAX_INTERVALS - 3, MAX_INTERVALS])
    intervals, at = [], random.choice([0, 1])
    for _ in range(count):
        last = at + random.choice([0, 0, 1, 5])
        intervals.append(BatchId(at, last))
        at = last + 2
    return tuple(intervals)


def _ends(random: Random, step: int, data_index: int) -> tuple[EpochEnd, ...]:
    """Signed ends up to this step, often one of the step itself."""
    steps = sorted({random.randint(0, step) for _ in range(random.choice([0, 1, MAX_ENDS - 1]))} | {step})
    return tuple(
        EpochEnd(
            step=at,
            data_index=random.randint(3000, data_index),
            digest=hashlib.sha256(b"%d" % at).digest(),
            queue=tuple(BatchId(3 * number, 3 * number + 1) for number in range(random.choice([0, 5, MAX_END_INTERVALS]))),
            lost=random.choice([0, 11]),
        )
        for at in steps[random.choice([0, 0, 1]) :]
    )


def _unready(random: Random, signers: list[bytes]) -> tuple[Unready, ...]:
    """Signers that were late before; the list may be full."""
    strangers = [hashlib.sha256(b"late %d" % number).digest() for number in range(random.choice([0, 2, MAX_UNREADY - 1]))]
    late = [*strangers, *random.sample(signers, min(len(signers), random.choice([0, 1, 3])))]
    random.shuffle(late)
    return tuple(Unready(signer, random.choice([1, 2, 3, 255])) for signer in late[:MAX_UNREADY])


def _accounts(random: Random, signers: list[bytes]) -> tuple[Account, ...]:
    count = random.choice([0, 3, MAX_ACCOUNTS - len(signers) - 2, MAX_ACCOUNTS - 3])
    strangers = [hashlib.sha256(f"stranger {number}".encode()).digest() for number in range(count)]
    known = random.sample(signers, random.randint(0, min(len(signers), 2)))
    balances = [(signer, random.choice(POINTS), random.choice(POINTS)) for signer in {*strangers, *known}]
    return tuple(Account(*balance) for balance in sorted(balances))
