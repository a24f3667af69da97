"""The canonical image: every state has one, every image has one state, and nothing else is accepted."""

from __future__ import annotations

import hashlib
import random
from dataclasses import MISSING, fields, replace
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from psyche_core.config.rules import MAX_TABLES_BYTES
from psyche_core.config.run_config import Choice, CoordinatorConfig, ModelConfig
from psyche_core.coordinator import commands
from psyche_core.coordinator.canonical_image import SIZE, decode, encode, offset
from psyche_core.coordinator.canonical_image.layout import CHECKPOINT_KINDS, IMAGE
from psyche_core.coordinator.canonical_image.page import rows, slot_records
from psyche_core.coordinator.round.requeue import MAX_INTERVALS
from psyche_core.coordinator.state import (
    MAX_ACCOUNTS,
    MAX_END_INTERVALS,
    MAX_ENDS,
    MAX_REPEATED_WARMUPS,
    MAX_UNREADY,
    STORED_ROUNDS,
    Account,
    Client,
    CoordinatorState,
    EndReason,
    Epoch,
    EpochEnd,
    EpochRates,
    Progress,
    Round,
    Unready,
)
from psyche_core.errors import CoordinatorError, WireError
from psyche_core.types import MAX_CLIENTS, MAX_WITNESSES, BatchId, ClientState, NodeIdentity, RunState, WitnessStatement
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


# ---------------------------------------------------------------- round trips


def test_a_state_of_full_capacity_fits() -> None:
    state = synthetic(**FULL)
    image = encode(state)
    assert len(image) == SIZE
    assert decode(image) == state
    assert len(tables(state.model)) == MAX_TABLES_BYTES
    assert (FULL["clients"], FULL["batches"], FULL["statements"]) == (MAX_CLIENTS, MAX_INTERVALS + 1, MAX_WITNESSES)
    assert (FULL["rounds"], FULL["requeue"], FULL["accounts"]) == (STORED_ROUNDS, MAX_INTERVALS, MAX_ACCOUNTS)
    assert (FULL["ends"], FULL["queue"], FULL["unready"]) == (MAX_ENDS, MAX_END_INTERVALS, MAX_UNREADY)


@pytest.mark.parametrize("sizes", [SMALL, FULL], ids=["small", "full"])
def test_no_field_of_the_states_built_by_hand_has_its_default(sizes: dict[str, int]) -> None:
    """So that a field that an implementation forgets is noticed."""
    state = synthetic(**sizes)
    end, client = state.ends[0], state.epoch.clients[1]
    same = {
        f"{type(value).__name__}.{field.name}"
        for value in (state, state.epoch, state.epoch.rounds[1], client, end, state.stored, state.unready[0], state.progress)
        for field in fields(value)
        if getattr(value, field.name) == field.default
        or (field.default_factory is not MISSING and getattr(value, field.name) == field.default_factory())
    }
    assert same == ({"Epoch.unplayed"} if sizes == SMALL else {"CoordinatorState.from_checkpoint"})


def test_states_reached_by_random_commands_round_trip(play: Any, members: Any, joins: Any) -> None:
    reached: set[str] = set()
    for seed in range(8):
        run, dice = play(0, **TINY_RUN), random.Random(seed)
        for _ in range(150):
            try:
                random_command(run, dice, members, joins)
            except CoordinatorError:
                continue
            image = encode(run.state)
            assert decode(image) == run.state, f"seed {seed}"
            reached |= {run.phase, "requeue" if run.state.requeue else "no requeue"}
            reached |= {"statements" for stored in run.state.epoch.rounds if stored.statements}
            reached |= {f"exited {client.state.name}" for client in run.state.epoch.clients}
    wanted = {"WaitingForMembers", "Warmup", "RoundTrain", "RoundWitness", "Cooldown", "Paused", "requeue", "statements"}
    assert reached >= {*wanted, "exited Withdrawn"}


TINY_RUN = {
    "init_min_clients": 2,
    "min_clients": 2,
    "total_steps": 12,
    "rounds_per_epoch": 5,
    "epoch_time": 400,
    "global_batch_size_start": 3,
    "global_batch_size_end": 7,
    "global_batch_size_warmup_tokens": 64 * 30,
}


def random_command(run: Any, dice: random.Random, members: Any, joins: Any) -> None:
    """One command of a member, an owner or the clock. Raises CoordinatorError when it is refused."""
    state, number = run.state, dice.randrange(7)
    match dice.randrange(12):
        case 0 | 1 | 2:
            run.tick(after=dice.choice([0, 1, 3, 5, 10, 30, 40]))
        case 3 | 4:
            run.do(joins(members(number)))
        case 5:
            if dice.randrange(3) == 0:
                run.do(commands.Withdraw(members(number)))
        case 6:
            for slot in state.healthy_slots:
                run.do(run.ready(slot))
        case 7:
            if state.run_state in (RunState.Paused, RunState.Finished):
                run.do(commands.Resume())
            elif dice.randrange(10) == 0:
                run.do(commands.Pause())
        case 8:
            run.do(commands.HealthCheck(sender=members(number), slots=(dice.randrange(7),)))
        case 9:
            run.do(commands.Checkpoint(sender=members(number), location=Choice("Hub", {"repo_id": "r", "revision": "v"})))
        case _:
            if state.current_round is not None:
                slot = dice.choice(run.elected) if run.elected else 0
                run.do(run.statement(slot, seen=[seen for seen in run.shares(run.round.height - 1) if dice.randrange(4)]))


def numbers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(0, 2**bits - 1) | st.sampled_from([0, 1, 2**bits - 1])


def texts(at_most: int, *, at_least: int = 0) -> st.SearchStrategy[str]:
    letters = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
    return st.text(letters, min_size=at_least, max_size=at_most).filter(lambda text: len(text.encode()) <= at_most)


def subsets(count: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.sets(st.integers(0, count - 1)).map(lambda found: tuple(sorted(found))) if count else st.just(())


keys = st.binary(min_size=32, max_size=32)
identities = st.builds(NodeIdentity, signer=keys, p2p=keys)
rates = st.builds(EpochRates, earning_total_shared=numbers(64), slashing_per_client=numbers(64))
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


@st.composite
def checkpoints(draw: st.DrawFn) -> Any:
    kind = draw(st.sampled_from(CHECKPOINT_KINDS))
    if kind == "Ephemeral":
        return kind
    first, second = ("bucket", "prefix") if "Gcs" in kind else ("repo_id", "revision")
    more = draw(st.just({}) | st.fixed_dictionaries({second: texts(64)}))
    return {kind: {first: draw(texts(64)), **more}}


rate = st.floats(0.0, 1.0)
constant = {"base_lr": st.floats(1e-9, 1.0), "warmup_init_lr": rate, "warmup_steps": numbers(32)}
decay = {**constant, "final_lr": rate, "total_steps": numbers(32)}
schedules = st.one_of(
    st.fixed_dictionaries({"Constant": st.fixed_dictionaries(constant)}),
    st.fixed_dictionaries({"Cosine": st.fixed_dictionaries(decay)}),
)
models = st.fixed_dictionaries(
    {
        "max_seq_len": numbers(32),
        "cold_start_warmup_steps": numbers(32),
        "architecture": names,
        "checkpoint": checkpoints(),
        "data_type": st.sampled_from(["Pretraining", "Finetuning"]),
        "data_location": choices,
        "lr_schedule": schedules,
        "optimizer": choices,
    }
).map(lambda table: ModelConfig.model_validate({"LLM": table}))
configs = st.fixed_dictionaries(
    {
        **{name: numbers(bits) for name, bits in CONFIG_BITS.items()},
        "restart_from_checkpoint": st.booleans(),
        "checkpointers": st.lists(keys.map(bytes.hex), max_size=16),
    }
).map(CoordinatorConfig.model_validate)


@st.composite
def epochs(draw: st.DrawFn) -> Epoch:
    clients = draw(
        st.lists(
            st.builds(
                Client,
                id=identities,
                state=st.sampled_from(ClientState),
                exited_height=numbers(32),
                accepted_rounds=numbers(32),
                rejoins=numbers(8),
                missed=numbers(8),
                lost_rounds=numbers(8),
                end_digest=keys,
            ),
            max_size=5,
            unique_by=lambda client: client.id.signer,
        )
    )
    height = draw(st.integers(0, 2**32 - 5))
    rounds = []
    for place in range(draw(st.integers(0, 4))):
        statements = [
            draw(
                st.builds(
                    WitnessStatement,
                    epoch=numbers(32),
                    height=numbers(32),
                    index=st.just(slot),
                    participants=keys,
                    broadcast_bloom=st.binary(min_size=320, max_size=320),
                    merkle_root=keys,
                    model_digest=keys,
                )
            )
            for slot in draw(st.permutations(draw(subsets(len(clients)))))
        ]
        rounds.append(
            Round(
                height=height + place,
                step=draw(numbers(64)),
                seed=draw(numbers(64)),
                slots=draw(subsets(len(clients))),
                batches=draw(batches_of()),
                statements=tuple(statements),
                drain=draw(st.booleans()),
                voided=draw(subsets(len(clients))),
            )
        )
    return Epoch(
        clients=tuple(clients),
        rounds=tuple(rounds),
        start_step=draw(numbers(64)),
        start_time=draw(numbers(64)),
        ending=draw(st.none() | st.sampled_from(EndReason)),
        cold_start=draw(st.booleans()),
        ready=draw(subsets(len(clients))),
        ceded=draw(subsets(len(clients))),
        lacking=draw(subsets(len(clients))),
        held_step=draw(numbers(64)),
        ready_since=draw(st.none() | numbers(64)),
        unplayed=draw(st.booleans()),
        repeats=draw(st.integers(0, MAX_REPEATED_WARMUPS)),
        seed=draw(numbers(64)),
        rates=draw(rates),
    )


ends = st.builds(EpochEnd, step=numbers(64), data_index=numbers(64), digest=keys, queue=batches_of(), lost=numbers(64))
states = st.builds(
    CoordinatorState,
    instance=keys,
    from_checkpoint=st.booleans(),
    model_lost=st.booleans(),
    generation=numbers(32),
    stored=ends,
    ends=st.lists(ends, max_size=MAX_ENDS, unique_by=lambda end: end.step).map(
        lambda found: tuple(sorted(found, key=lambda end: end.step))
    ),
    unready=st.lists(st.builds(Unready, signer=keys, times=numbers(32)), max_size=4, unique_by=lambda entry: entry.signer).map(
        tuple
    ),
    run_id=texts(32, at_least=1),
    config=configs,
    model=models,
    run_state=st.sampled_from(RunState),
    progress=st.builds(Progress, epoch=numbers(32), step=numbers(64), data_index=numbers(64)),
    epoch=epochs(),
    since=numbers(64),
    pending=st.lists(identities, max_size=4, unique_by=lambda member: member.signer).map(tuple),
    minimum_since=st.none() | numbers(64),
    pending_pause=st.booleans(),
    requeue=batches_of(),
    lost_samples=numbers(64),
    future_rates=rates,
    accounts=st.lists(
        st.builds(Account, signer=keys, earned=numbers(64), slashed=numbers(64)),
        max_size=4,
        unique_by=lambda account: account.signer,
    ).map(lambda found: tuple(sorted(found, key=lambda account: account.signer))),
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(states)
def test_every_valid_state_round_trips(state: CoordinatorState) -> None:
    image = encode(state)
    again = decode(image)
    assert again == state
    assert type(again.model.LLM.lr_schedule.settings) is dict
    assert encode(again) == image


def test_the_image_of_a_state_built_by_hand_never_changes() -> None:
    """A failure means that the layout changed: raise VERSION and write a migration, then put the new values here."""
    state = synthetic(**SMALL)
    image = encode(state)
    assert len(image) == 182_984
    assert hashlib.sha256(image).hexdigest() == "c4eacef17bd03cfac927113c6edd279e5f54e520f8ea0bdd26c569ef9161c0c5"


# ---------------------------------------------------------------- hostile bytes


def refused_or_canonical(image: bytes) -> bool:
    """Decode; whether the image was accepted. Any exception but WireError fails the test."""
    try:
        state = decode(image)
    except WireError:
        return False
    assert encode(state) == image
    return True


def patched(image: bytes, at: int, value: bytes) -> bytes:
    return image[:at] + value + image[at + len(value) :]


def test_an_image_has_exactly_its_size() -> None:
    image = encode(synthetic(**SMALL))
    for wrong in (b"", image[:7], image[:15], image[:16], image[:-1], image + b"\0"):
        with pytest.raises(WireError, match=f"expected an image of {SIZE} bytes .* got {len(wrong)}"):
            decode(wrong)


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_changed_bytes_are_refused_or_another_canonical_image(data: Any) -> None:
    image = encode(synthetic(**data.draw(st.sampled_from([SMALL, {**SMALL, "clients": 1, "statements": 1, "pending": 0}]))))
    used = [place for place, byte in enumerate(image) if byte]
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.sampled_from(used) | st.integers(0, SIZE - 1) | st.integers(0, 400))
        one_bit = bytes([image[at] ^ 1 << data.draw(st.integers(0, 7))])
        value = data.draw(st.just(one_bit) | st.binary(min_size=1, max_size=8))
        image = patched(image, at, value)[:SIZE]
    refused_or_canonical(image)


@settings(deadline=None)
@given(st.binary(max_size=400), st.binary(max_size=400), st.integers(0, SIZE))
def test_any_bytes_raise_nothing_else(front: bytes, middle: bytes, at: int) -> None:
    good = encode(synthetic(**SMALL))
    refused_or_canonical(front)
    refused_or_canonical((good[:16] + front).ljust(SIZE, b"\0"))
    refused_or_canonical(patched(good, at, middle)[:SIZE])


def with_tables(value: Any) -> bytes:
    """An image with other bytes as the model's tables: given as they are, or anything to encode."""
    content = value if isinstance(value, bytes) else codec.encode(value)
    image = patched(encode(synthetic(**SMALL)), offset("model.tables.length"), len(content).to_bytes(4, "little"))
    return patched(image, offset("model.tables.content"), content.ljust(MAX_TABLES_BYTES, b"\0"))


@settings(deadline=None)
@given(st.data())
def test_any_tables_of_a_model_are_refused_or_canonical(data: Any) -> None:
    table = codec.decode(tables(model()), max_bytes=MAX_TABLES_BYTES)
    for name in data.draw(st.sets(st.sampled_from([*table, "checkpoint", "more"]), max_size=2)):
        table[name] = data.draw(plain_values | choices)
    if data.draw(st.booleans()):
        table = data.draw(plain_values | st.binary(max_size=60) | st.dictionaries(st.integers(0, 9), plain_values))
    refused_or_canonical(with_tables(table))


def test_tables_have_one_spelling() -> None:
    table = codec.decode(tables(model()), max_bytes=MAX_TABLES_BYTES)
    assert refused_or_canonical(with_tables(table))
    whole = {"Constant": {"base_lr": 1, "warmup_init_lr": 0.0, "warmup_steps": 2}}
    for name, spelling in (("data_location", {"Server": {"location": "here"}}), ("lr_schedule", whole)):
        with pytest.raises(WireError, match=r"model\.tables\.content at byte \d+: expected the model's tables in the form"):
            decode(with_tables({**table, name: spelling}))


def slots_of(state: Any, path: str = "") -> dict[str, Any]:
    """Where records start in the image and which they are: the image itself and every slot in use."""
    found = {"": IMAGE}
    for name, record in (
        ("epoch.clients", "Client"),
        ("pending", "NodeIdentity"),
        ("requeue", "BatchId"),
        ("accounts", "Account"),
        ("ends", "EpochEnd"),
        ("unready", "Unready"),
    ):
        items = state.epoch.clients if name == "epoch.clients" else getattr(state, name)
        found |= {f"{name}[{slot}]": slot_records(IMAGE)[record] for slot in range(len(items))}
    for at, end in (("stored", state.stored), *((f"ends[{place}]", end) for place, end in enumerate(state.ends))):
        found |= {f"{at}.queue[{slot}]": slot_records(IMAGE)["BatchId"] for slot in range(len(end.queue))}
    for place, stored in enumerate(state.epoch.rounds):
        at = f"epoch.rounds[{place}]"
        found[at] = slot_records(IMAGE)["Round"]
        found |= {f"{at}.batches[{slot}]": slot_records(IMAGE)["BatchId"] for slot in range(len(stored.batches))}
        found |= {f"{at}.statements[{slot}]": slot_records(IMAGE)["WitnessStatement"] for slot in range(len(stored.statements))}
    return found


def test_every_padding_byte_must_be_zero() -> None:
    state = synthetic(**SMALL)
    image = encode(state)
    tried = 0
    for start, record in slots_of(state).items():
        for row in rows(record):
            if not row.name.endswith("padding"):
                continue
            for byte in range(row.size):
                at = (offset(start) if start else 0) + row.offset + byte
                with pytest.raises(WireError, match=rf" at byte {at}: expected zero in padding, got 0x80"):
                    decode(patched(image, at, b"\x80"))
                tried += 1
    assert tried == 71 + 2 * 4 + 4 * (3 + 4 + 4) + 8 * 2


@pytest.mark.parametrize(
    "field",
    [
        "config.checkpointers",
        "epoch.clients",
        "epoch.rounds[3].batches",
        "epoch.rounds[0].statements",
        "pending",
        "requeue",
        "accounts",
        "ends",
        "ends[1].queue",
        "stored.queue",
        "unready",
    ],
)
def test_unused_slots_must_be_zero(field: str) -> None:
    image = encode(synthetic(**SMALL))
    used = SMALL[field.rpartition(".")[2]]
    first = offset(f"{field}[{used}]")
    last = offset(f"{field}[{FULL[field.rpartition('.')[2]] - 1}]") + (offset(f"{field}[1]") - offset(f"{field}[0]")) - 1
    for at in (first, first + 1, (first + last) // 2, last):
        with pytest.raises(
            WireError, match=rf"^.*{field.rpartition('.')[2]}\[{used}\] at byte {at}: expected zero in unused slots"
        ):
            decode(patched(image, at, b"\1"))


def test_unused_rounds_must_be_zero() -> None:
    image = encode(synthetic(**{**SMALL, "rounds": 1}))
    for at in (offset("epoch.rounds[1]"), offset("epoch.rounds[3].statements[31].model_digest") + 31):
        with pytest.raises(WireError, match=rf"^epoch\.rounds\[1\] at byte {at}: expected zero in unused slots"):
            decode(patched(image, at, b"\1"))


SIGNER = identity(0).signer


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("magic", b"X", "magic at byte 0: expected b'PsycheSt', got b'XsycheSt'; this is no image of a coordinator's state"),
        ("version", b"\1", "version at byte 8: expected 4, got 1; update the older side"),
        ("size", b"\0", f"size at byte 12: expected {SIZE}, got"),
        ("run_id", b"a\0b", "run_id at byte 17: expected nothing but zero bytes after the end of the text"),
        ("run_id", b"a\xffrun", "run_id at byte 17: expected UTF-8, got 0xff"),
        ("run_id", bytes(32), "run_id at byte 16: expected a name"),
        ("minimum_since.present", b"\0", "minimum_since.value at byte 96: expected zero where nothing is present"),
        ("minimum_since.present", b"\2", "minimum_since.present at byte 88: expected a number of 0 False, 1 True, got 2"),
        ("run_state", b"\x08", "run_state at byte 152: expected a number of 0 Uninitialized, 1 WaitingForMembers"),
        ("pending_pause", b"\2", "pending_pause at byte 153: expected a number of"),
        ("model.checkpoint.kind", b"\6", "model.checkpoint.kind at byte"),
        ("model.checkpoint.kind", b"\0", "expected zero for the kind Ephemeral"),
        ("model.checkpoint.second.present", b"\0", "model.checkpoint.second.value at byte"),
        ("model.tables.length", b"\x01\x08", "model.tables.length at byte"),
        ("model.tables.length", b"\x01\x00", "model.tables.content at byte"),
        ("model.tables.content", b"\xff", "expected canonical CBOR"),
        ("epoch.ending", b"\7", "epoch.ending at byte"),
        ("epoch.ready", b"\x08", "expected slots of the epoch, which has 3, got 3"),
        ("epoch.clients.count", b"\1\1", "epoch.clients.count at byte"),
        ("epoch.clients[1].state", b"\4", "epoch.clients[1].state at byte"),
        ("epoch.clients[1].id.signer", SIGNER, "epoch.clients[1] at byte"),
        ("epoch.rounds.count", b"\5", "expected at most 4, got 5"),
        ("epoch.rounds[2].height", b"\7", "epoch.rounds[2].height at byte"),
        ("epoch.rounds[1].drain", b"\2", "epoch.rounds[1].drain at byte"),
        ("epoch.rounds[1].slots", b"\xff", "expected slots of the epoch, which has 3, got 7"),
        ("epoch.rounds[1].slots", bytes(31) + b"\x80", "got 255"),
        ("epoch.rounds[3].batches.count", b"\2\2", "expected at most 513, got 514"),
        ("epoch.rounds[3].batches[0].last", bytes(8), "a batch is a closed interval"),
        ("epoch.rounds[3].batches[1].last", b"\xff" * 8, "a batch is a closed interval"),
        ("epoch.rounds[3].batches[1].first", bytes(8), "expected ascending, disjoint intervals"),
        ("epoch.rounds[3].statements[1].index", b"\1", "expected one statement for a slot"),
        ("epoch.rounds[3].statements[1].index", b"\3", "expected one statement for a slot and 3 slots"),
        ("pending[1].signer", identity("pending", 0).signer, "pending[1] at byte"),
        ("requeue[1].first", bytes(8), "requeue[1] at byte"),
        ("accounts[1].signer", bytes(32), "expected signers in ascending order"),
        ("accounts[0].signer", b"\xff" * 32, "accounts[1] at byte"),
        ("from_checkpoint", b"\2", "from_checkpoint at byte"),
        ("model_lost", b"\2", "model_lost at byte"),
        ("config.restart_from_checkpoint", b"\2", "config.restart_from_checkpoint at byte"),
        ("epoch.lacking", b"\x08", "expected slots of the epoch, which has 3, got 3"),
        ("epoch.ready_since.present", b"\0", "epoch.ready_since.value at byte"),
        ("stored.queue.count", b"\x41", "expected at most 64, got 65"),
        ("stored.queue[1].first", bytes(8), "stored.queue[1] at byte"),
        ("ends.count", b"\5", "expected at most 4, got 5"),
        ("ends[0].queue[1].first", bytes(8), "ends[0].queue[1] at byte"),
        ("ends[1].step", bytes(8), "expected ends in ascending order of their steps"),
        ("unready.count", b"\1\1", "expected at most 256, got 257"),
        ("unready[1].signer", key("unready", 0), "unready at byte"),
    ],
)
def test_refusals_are_sentences_that_name_field_and_byte(field: str, value: bytes, sentence: str) -> None:
    image = patched(encode(synthetic(**SMALL)), offset(field), value)
    with pytest.raises(WireError) as caught:
        decode(image)
    assert sentence in str(caught.value)
    assert " at byte " in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_byte_of_a_refusal_is_the_field_s() -> None:
    at = offset("epoch.rounds[2].statements[1].index")
    with pytest.raises(WireError, match=rf"^epoch\.rounds\[2\]\.statements\[1\]\.index at byte {at}: "):
        decode(patched(encode(synthetic(**SMALL)), at, b"\xff"))


def test_another_version_is_named_before_its_size() -> None:
    image = encode(synthetic(**SMALL))
    with pytest.raises(WireError, match="version at byte 8: expected 4, got 9"):
        decode(patched(image, 8, b"\x09")[:-100])


# ---------------------------------------------------------------- what encode refuses


def changed(value: Any, path: str, new: Any) -> Any:
    """A copy of a state with the field at the path replaced."""
    name, _, rest = path.partition(".")
    name, _, slot = name.rstrip("]").partition("[")
    inside = getattr(value, name)
    if slot:
        items = list(inside)
        items[int(slot)] = changed(items[int(slot)], rest, new) if rest else new
        made: Any = tuple(items)
    else:
        made = changed(inside, rest, new) if rest else new
    return value.model_copy(update={name: made}) if hasattr(value, "model_copy") else replace(value, **{name: made})


STATEMENT = synthetic(**SMALL).epoch.rounds[0].statements[0]


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("run_id", "x" * 33, "run_id: expected at most 32 bytes of UTF-8 without NUL, got 33"),
        ("run_id", "a\0", "run_id: expected at most 32 bytes of UTF-8 without NUL"),
        ("run_id", "\udc80", "run_id: expected text that UTF-8 can write"),
        ("run_id", "", "run_id: expected a name"),
        ("run_state", 3, "run_state: expected one of 0 Uninitialized"),
        ("since", -1, "since: expected a whole number from 0 to 18446744073709551615, got -1"),
        ("progress.step", 2**64, "progress.step: expected a whole number"),
        ("progress.epoch", 2**32, "progress.epoch: expected a whole number from 0 to 4294967295"),
        ("pending", tuple(identity(place) for place in range(257)), "pending: expected at most 256, got 257"),
        ("pending", (identity(1), identity(1)), "pending[1]: expected each signer once"),
        ("requeue", intervals(513, 0), "requeue: expected at most 512, got 513"),
        ("requeue", intervals(2, 0)[::-1], "requeue[1]: expected ascending, disjoint intervals"),
        ("accounts", tuple(Account(key(place)) for place in range(513)), "accounts: expected at most 512, got 513"),
        ("accounts", (Account(key(1)), Account(key(1))), "accounts[1]: expected signers in ascending order"),
        ("epoch.clients", tuple(Client(identity(place)) for place in range(257)), "epoch.clients: expected at most 256, got 257"),
        ("config.checkpointers", ("AB" * 32,), "config.checkpointers[0]: expected 64 lower-case hexadecimal digits"),
        ("epoch.clients[2].exited_height", 2**32, "epoch.clients[2].exited_height: expected a whole number"),
        ("epoch.ready", (2, 1), "epoch.ready: expected ascending numbers from 0 to 255"),
        ("epoch.ready", (256,), "epoch.ready: expected ascending numbers from 0 to 255"),
        ("epoch.ready", (1, 3), "epoch.ready: expected slots of the epoch, which has 3, got 3"),
        ("epoch.rounds[0].batches", intervals(514, 0), "epoch.rounds[0].batches: expected at most 513, got 514"),
        ("epoch.rounds[0].statements", (STATEMENT,) * 33, "epoch.rounds[0].statements: expected at most 32, got 33"),
        ("epoch.rounds[0].statements", (STATEMENT,) * 2, "epoch.rounds[0].statements[1].index: expected one statement"),
        ("epoch.rounds[0].statements[1].merkle_root", b"x", "merkle_root: expected 32 bytes"),
        ("epoch.rounds[1].drain", 1, "epoch.rounds[1].drain: expected one of 0 False, 1 True, got 1"),
        ("instance", b"x", "instance: expected 32 bytes"),
        ("generation", 2**32, "generation: expected a whole number"),
        ("epoch.clients[1].missed", 256, "epoch.clients[1].missed: expected a whole number from 0 to 255, got 256"),
        ("epoch.clients[1].lost_rounds", 256, "epoch.clients[1].lost_rounds: expected a whole number from 0 to 255, got 256"),
        ("epoch.clients[1].end_digest", b"", "epoch.clients[1].end_digest: expected 32 bytes"),
        ("epoch.lacking", (1, 3), "epoch.lacking: expected slots of the epoch, which has 3, got 3"),
        ("stored.queue", intervals(65, 0), "stored.queue: expected at most 64, got 65"),
        ("ends", tuple(EpochEnd(step) for step in range(5)), "ends: expected at most 4, got 5"),
        ("ends", (EpochEnd(1), EpochEnd(1)), "ends[1]: expected ends in ascending order of their steps"),
        ("unready", tuple(Unready(key(place), 1) for place in range(257)), "unready: expected at most 256, got 257"),
        ("unready", (Unready(key(1), 1), Unready(key(1), 2)), "unready: expected each signer once"),
        ("model", model(filling=2048), "model.tables: expected at most 2048 bytes of CBOR for architecture, data, optimizer and"),
    ],
)
def test_encode_refuses_what_has_no_image(field: str, value: Any, sentence: str) -> None:
    with pytest.raises(ValueError) as caught:
        encode(changed(synthetic(**SMALL), field, value))
    assert sentence in str(caught.value)


def test_five_rounds_are_too_many() -> None:
    with pytest.raises(ValueError, match=r"epoch\.rounds: expected at most 4, got 5"):
        encode(synthetic(**{**SMALL, "rounds": 5}))
