"""States built by hand, in which no field has its default: for tests of their images."""

from __future__ import annotations

import hashlib
from functools import cache
from typing import Any

from hypothesis import strategies as st

from psyche_core.config.rules import MAX_TABLES_BYTES
from psyche_core.config.run_config import CoordinatorConfig, ModelConfig
from psyche_core.coordinator.state import (
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
from psyche_core.types import BatchId, ClientState, NodeIdentity, RunState, WitnessStatement
from psyche_core.verification.challenge import Stage
from psyche_core.verification.standing import Standing
from psyche_core.wire import codec

SMALL = {
    "clients": 3,
    "rounds": 4,
    "batches": 2,
    "statements": 2,
    "pending": 2,
    "requeue": 2,
    "accounts": 2,
    "checkpointers": 2,
    "ends": 2,
    "queue": 2,
    "unready": 2,
    "challenges": 3,
}
FULL = {
    "clients": 256,
    "rounds": 4,
    "batches": 513,
    "statements": 32,
    "pending": 256,
    "requeue": 512,
    "accounts": 512,
    "checkpointers": 16,
    "ends": 4,
    "queue": 64,
    "unready": 256,
    "challenges": 128,
}


def key(*numbers: object) -> bytes:
    """32 bytes that belong to these numbers."""
    return hashlib.sha256(repr(numbers).encode()).digest()


def identity(*numbers: object) -> NodeIdentity:
    return NodeIdentity(signer=key("signer", *numbers), p2p=key("p2p", *numbers))


def intervals(count: int, first: int) -> tuple[BatchId, ...]:
    return tuple(BatchId(first + 5 * place, first + 5 * place + place % 4) for place in range(count))


def model(*, filling: int = 0, checkpoint: Any = None) -> ModelConfig:
    """A model whose opaque keys are longer by about `filling` bytes."""
    table = {
        "max_seq_len": 2048,
        "cold_start_warmup_steps": 7,
        "architecture": "HfLlama",
        "checkpoint": checkpoint or {"P2PGcs": {"bucket": "b" * 64, "prefix": "é" * 32}},
        "data_type": "Finetuning",
        "data_location": {"Server": "127.0.0.1:20001"},
        "lr_schedule": {"Constant": {"base_lr": 0.001, "warmup_init_lr": 0.0, "warmup_steps": 2}},
        "optimizer": {"Distro": {"compression_topk": 4, "note": "x" * filling}},
    }
    return ModelConfig.model_validate({"LLM": table})


CONFIG_BITS = {
    **dict.fromkeys(("warmup_time", "cooldown_time", "max_round_train_time", "round_witness_time", "epoch_time"), 64),
    **dict.fromkeys(("global_batch_size_warmup_tokens",), 64),
    **dict.fromkeys(("total_steps", "rounds_per_epoch"), 32),
    **dict.fromkeys(("init_min_clients", "min_clients", "witness_nodes"), 16),
    **dict.fromkeys(("global_batch_size_start", "global_batch_size_end"), 16),
    **dict.fromkeys(("verification_percent", "waiting_for_members_extra_time"), 8),
}


@cache
def synthetic(
    *,
    clients: int,
    rounds: int,
    batches: int,
    statements: int,
    pending: int,
    requeue: int,
    accounts: int,
    checkpointers: int,
    ends: int,
    queue: int,
    unready: int,
    challenges: int,
) -> CoordinatorState:
    """A state in which no two neighbouring fields are equal, with so many slots in use in every list."""

    def statement(height: int, slot: int) -> WitnessStatement:
        about = (height, slot)
        return WitnessStatement(
            epoch=2**32 - 3,
            height=height,
            index=slot,
            participants=key("participants", *about),
            broadcast_bloom=b"".join(key("bloom", part, *about) for part in range(10)),
            merkle_root=key("root", *about),
            model_digest=key("digest", *about),
            words=key("words", *about) * (6 if clients == 256 else 1),
        )

    def round_(height: int) -> Round:
        return Round(
            height=height,
            step=2**40 + height,
            seed=2**64 - 1 - height,
            slots=tuple(range(0, clients, 1 + height % 2)),
            batches=intervals(batches, 2**50 + height),
            statements=tuple(statement(height, slot) for slot in reversed(range(statements))),
            drain=height % 2 == 1,
            voided=tuple(range(height % 2, clients, 2)),
            history=key("history", height),
            recomputing=tuple(range(1 - height % 2, clients, 3)),
        )

    def challenge(place: int) -> OpenChallenge:
        slots = tuple(slot for slot in range(clients) if slot != place % clients)[: 4 if clients == 256 else 2]
        return OpenChallenge(
            height=2**30 + place // clients,
            trainer=place % clients,
            verifier=slots[0],
            since=2**30 + 7 + place,
            share=intervals(8 if clients == 256 else 2, 2**49 + place),
            stage=Stage(1 + place % 5),
            complained=True,
            roots=tuple(Root(slot, key("commitment", place, slot)) for slot in slots),
            judges=slots[1:],
            missed=slots[-1:],
        )

    def end(step: int) -> EpochEnd:
        return EpochEnd(
            step,
            data_index=2**56 + step,
            digest=key("end", step),
            queue=intervals(queue, step),
            lost=2**57 + step,
            history=key("history", step),
        )

    members = [
        Client(
            identity(slot),
            ClientState(slot % 4),
            exited_height=9 + slot,
            accepted_rounds=2**32 - 1 - slot,
            rejoins=slot % 5,
            missed=255 - slot % 7,
            lost_rounds=255 - slot % 5,
            end_digest=key("end digest", slot),
            standing=Standing(255 - slot % 3, 2**32 - 4 - slot, (slot % 2 == 0, True, False, True, True)[: 1 + slot % 5]),
        )
        for slot in range(clients)
    ]
    epoch = Epoch(
        clients=tuple(members),
        rounds=tuple(round_(2**31 + place) for place in range(rounds)),
        start_step=2**41,
        start_time=1_700_000_001,
        ending=EndReason.MissedQuorum,
        cold_start=True,
        ready=tuple(range(0, clients, 2)),
        ceded=tuple(range(1, clients, 3)),
        lacking=tuple(range(0, clients, 3)),
        held_step=2**43,
        ready_since=1_700_000_004,
        unplayed=clients == 256,
        repeats=1,
        seed=2**63 + 1,
        rates=EpochRates(earning_total_shared=2**64 - 5, slashing_per_client=3),
        challenges=tuple(challenge(place) for place in range(challenges if clients > 2 else 0)),
    )
    filling = MAX_TABLES_BYTES - len(tables(model(filling=1000))) + 1000 if clients == 256 else 0
    listed = [key("checkpointer", place).hex() for place in range(checkpointers)]
    numbers = {name: 2**bits - 2 - place for place, (name, bits) in enumerate(CONFIG_BITS.items())}
    return CoordinatorState(
        run_id="é" * 16 if clients == 256 else "a-run",
        config=CoordinatorConfig.model_validate({**numbers, "restart_from_checkpoint": True, "checkpointers": listed}),
        model=model(filling=filling),
        instance=key("instance"),
        run_state=RunState.RoundWitness,
        progress=Progress(epoch=2**32 - 2, step=2**42, data_index=2**51),
        epoch=epoch,
        since=1_700_000_002,
        pending=tuple(identity("pending", place) for place in range(pending)),
        minimum_since=1_700_000_003,
        pending_pause=True,
        requeue=intervals(requeue, 11),
        lost_samples=2**52,
        from_checkpoint=clients == 256,
        model_lost=True,
        generation=2**32 - 6,
        history=key("history"),
        stored=end(2**44),
        ends=tuple(end(2**45 + place) for place in range(ends)),
        unready=tuple(Unready(key("unready", place), 2**32 - 1 - place) for place in range(unready)),
        future_rates=EpochRates(earning_total_shared=5, slashing_per_client=2**64 - 7),
        accounts=tuple(
            Account(signer, earned=2**53 + place, slashed=2**54 + place)
            for place, signer in enumerate(sorted(key("account", place) for place in range(accounts)))
        ),
    )


def tables(config: ModelConfig) -> bytes:
    """What `model.tables` holds."""
    own = {"max_seq_len", "cold_start_warmup_steps", "checkpoint"}
    return codec.encode({name: value for name, value in config.model_dump()["LLM"].items() if name not in own})


def numbers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(0, 2**bits - 1) | st.sampled_from([0, 1, 2**bits - 1])


keys = st.binary(min_size=32, max_size=32)

plain_values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=3),
    max_leaves=8,
)
names = st.from_regex(r"[A-Za-z][A-Za-z0-9_-]{0,12}", fullmatch=True)
choices = names | st.builds(
    lambda name, table: {name: table}, names, st.text("a/:é", max_size=20) | st.dictionaries(names, plain_values, max_size=3)
)


@st.composite
def batches_of(draw: st.DrawFn, *, at_most: int = 4) -> tuple[BatchId, ...]:
    """Ascending, disjoint intervals."""
    ends = sorted(draw(st.sets(st.integers(0, 2**63 - 2), max_size=2 * at_most)))
    return tuple(BatchId(first, last) for first, last in zip(ends[::2], ends[1::2], strict=False))


ends = st.builds(EpochEnd, step=numbers(64), data_index=numbers(64), digest=keys, queue=batches_of(), lost=numbers(64))
