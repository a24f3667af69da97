"""The canonical image: every state has one, every image has one state, and nothing else is accepted."""

from __future__ import annotations

import hashlib
import random
from dataclasses import MISSING, fields
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from psyche_core.config.rules import MAX_TABLES_BYTES
from psyche_core.config.run_config import Choice, CoordinatorConfig, ModelConfig
from psyche_core.coordinator import commands
from psyche_core.coordinator.canonical_image import SIZE, decode, encode, offset
from psyche_core.coordinator.canonical_image.layout import CHECKPOINT_KINDS
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
    EpochRates,
    Progress,
    Round,
    Unready,
)
from psyche_core.errors import CoordinatorError, WireError
from psyche_core.types import MAX_CLIENTS, MAX_WITNESSES, MAX_WORDS_BYTES, ClientState, NodeIdentity, RunState, WitnessStatement
from psyche_core.verification.epoch import MOST_OPEN
from tests.unit.coordinator.image_states import (
    CONFIG_BITS,
    FULL,
    SMALL,
    batches_of,
    choices,
    ends,
    keys,
    names,
    numbers,
    synthetic,
    tables,
)


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
    assert FULL["challenges"] == MOST_OPEN
    assert len(state.epoch.rounds[0].statements[0].words) == MAX_WORDS_BYTES


@pytest.mark.parametrize("sizes", [SMALL, FULL], ids=["small", "full"])
def test_no_field_of_the_states_built_by_hand_has_its_default(sizes: dict[str, int]) -> None:
    """So that a field that an implementation forgets is noticed."""
    state = synthetic(**sizes)
    end, client, challenge = state.ends[0], state.epoch.clients[1], state.epoch.challenges[1]
    held = (state, state.epoch, state.epoch.rounds[1], client, end, challenge, state.stored, state.unready[0], state.progress)
    same = {
        f"{type(value).__name__}.{field.name}"
        for value in held
        for field in fields(value)
        if getattr(value, field.name) == field.default
        or (field.default_factory is not MISSING and getattr(value, field.name) == field.default_factory())
    }
    assert same == ({"Epoch.unplayed"} if sizes == SMALL else {"CoordinatorState.from_checkpoint"})


def test_states_reached_by_random_commands_round_trip(play: Any, members: Any, joins: Any) -> None:
    reached: set[str] = set()
    for seed in range(8):
        run, dice = play(0, **TINY_RUN), random.Random(seed)
        earlier = (encode(run.state), run.state)
        for _ in range(150):
            try:
                random_command(run, dice, members, joins)
            except CoordinatorError:
                continue
            image = encode(run.state)
            assert decode(image) == run.state, f"seed {seed}"
            earlier = image, decode(image, earlier=earlier)
            assert earlier[1] == run.state, f"seed {seed}"
            reached |= {run.phase, "requeue" if run.state.requeue else "no requeue"}
            reached |= {"statements" for stored in run.state.epoch.rounds if stored.statements}
            reached |= {f"exited {client.state.name}" for client in run.state.epoch.clients}
    wanted = {"WaitingForMembers", "Warmup", "RoundTrain", "RoundWitness", "Cooldown", "Paused", "requeue", "statements"}
    assert reached >= {*wanted, "exited Withdrawn"}


# ------------------------------------------------------------ with an earlier image
@pytest.mark.parametrize("sizes", [SMALL, FULL], ids=["small", "full"])
def test_only_what_differs_from_an_earlier_image_is_read(sizes: dict[str, int]) -> None:
    image = encode(synthetic(**sizes))
    before = decode(image)
    assert decode(image, earlier=(image, before)) is before

    place = offset("epoch.rounds[3].statements[1].words") + 8
    words = image[place : place + 1]
    later = image[:place] + bytes((words[0] ^ 255,)) + image[place + 1 :]
    after = decode(later, earlier=(image, before))
    assert after == decode(later) != before
    assert after.epoch.clients is before.epoch.clients
    assert after.epoch.rounds[2] is before.epoch.rounds[2]
    assert after.epoch.rounds[3].statements[0] is before.epoch.rounds[3].statements[0]
    assert after.epoch.rounds[3].statements[1] != before.epoch.rounds[3].statements[1]


STATES = [(encode(state), state) for state in (synthetic(**SMALL), synthetic(**{**SMALL, "clients": 5, "rounds": 2}))]
USED = [place for place in range(SIZE) if any(image[place] for image, _ in STATES)]


@given(data=st.data())
def test_the_result_is_the_same_with_any_earlier_image(data: st.DataObject) -> None:
    """Also what is refused, and with which sentence."""
    (first, _), (other, _) = data.draw(st.permutations(STATES))
    later = bytearray(first)
    for place in data.draw(st.lists(st.sampled_from(USED), max_size=3)):
        later[place] = data.draw(st.sampled_from((other[place], later[place] + 1 & 255)))

    def decoded(earlier: tuple[bytes, CoordinatorState] | None) -> CoordinatorState | str:
        try:
            return decode(bytes(later), earlier=earlier)
        except WireError as error:
            return str(error)

    expected = decoded(None)
    for earlier in STATES:
        assert decoded(earlier) == expected


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


def texts(at_most: int, *, at_least: int = 0) -> st.SearchStrategy[str]:
    letters = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
    return st.text(letters, min_size=at_least, max_size=at_most).filter(lambda text: len(text.encode()) <= at_most)


def subsets(count: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.sets(st.integers(0, count - 1)).map(lambda found: tuple(sorted(found))) if count else st.just(())


identities = st.builds(NodeIdentity, signer=keys, p2p=keys)
rates = st.builds(EpochRates, earning_total_shared=numbers(64), slashing_per_client=numbers(64))


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
    unready=st.lists(st.builds(Unready, signer=keys, score=numbers(32)), max_size=4, unique_by=lambda entry: entry.signer).map(
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
    assert len(image) == 253_776
    assert hashlib.sha256(image).hexdigest() == "ae3fe2b50b860bea63198e69f8f920db2463edbcb469e35c1c037de97c58a1b7"


def test_an_image_has_exactly_its_size() -> None:
    image = encode(synthetic(**SMALL))
    for wrong in (b"", image[:7], image[:15], image[:16], image[:-1], image + b"\0"):
        with pytest.raises(WireError, match=f"expected an image of {SIZE} bytes .* got {len(wrong)}"):
            decode(wrong)
