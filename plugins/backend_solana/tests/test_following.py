"""Following the account by small readings: a copy is the account as it was after some instruction, whatever comes in between."""

from __future__ import annotations

import base64
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, cast

import anyio
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from solders.pubkey import Pubkey

from plugins.backend_solana.tests.svm import runs
from plugins.backend_solana.tests.svm.coordinator_svm import member
from plugins.backend_solana.tests.svm.largest import NOW, Largest
from plugins.backend_solana.tests.svm.random_commands import RandomCommands
from psyche_backend_solana.following import account_reader
from psyche_backend_solana.following.account_reader import Follower
from psyche_backend_solana.following.account_slices import HEAD, Copy
from psyche_backend_solana.following.chain_clock import CLOCK_SYSVAR
from psyche_backend_solana.layouts.coordinator import Run
from psyche_backend_solana.layouts.coordinator_accounts import (
    ACCOUNT_BYTES,
    ACCOUNT_MAGIC,
    ACCOUNT_VERSION,
    HEADER_BYTES,
    NONCE_OFFSET,
)
from psyche_backend_solana.programs.addresses import COORDINATOR
from psyche_backend_solana.rpc.client import Rpc
from psyche_core.coordinator import apply
from psyche_core.coordinator import canonical_image as image
from psyche_core.coordinator.commands import (
    Command,
    EpochDigest,
    Equivocation,
    Pause,
    Resume,
    Settle,
    Tick,
    UpdateConfig,
    WarmupWitness,
    Withdraw,
)
from psyche_core.coordinator.round.committee import witness_slots
from psyche_core.coordinator.state import CoordinatorState, Epoch
from psyche_core.errors import BackendClosed, CoordinatorError, WireError
from psyche_core.types import RunState

RUN = Run(Pubkey(b"i" * 32), Pubkey(b"a" * 32))
VERSION_PLACE = 56

TIMES = int(os.environ.get("SOAK_TIMES", "1"))


def account(state: CoordinatorState, nonce: int, *, version: bytes = b"") -> bytes:
    header = ACCOUNT_MAGIC + ACCOUNT_VERSION.to_bytes(4, "little") + bytes(4) + nonce.to_bytes(8, "little") + bytes(RUN.instance)
    return (header + version).ljust(HEADER_BYTES, b"\0") + image.encode(state) + bytes(ACCOUNT_BYTES - HEADER_BYTES - image.SIZE)


@dataclass
class Chain:
    """The account after every instruction, and an endpoint that may be behind. calls: by size of the answer's data."""

    versions: list[bytes]
    times: dict[int, int] = field(default_factory=dict)
    """Of the clock after an instruction, where it is not NOW."""
    current: object = field(default_factory=object)
    behind: int = 0
    """The next answer is of so many instructions ago."""
    between: Iterator[Any] = field(default_factory=lambda: iter(()))
    """What happens before each answer."""
    parts_behind: int = 0
    """So are all answers that are not the head, nor the whole."""
    head_behind: int = 0
    """So are answers that are the head."""
    old_heads: set[int] = field(default_factory=set)
    """Of these numbers, from 1, are of the first instruction."""
    heads: int = 0
    crowded: bool = False
    """Many instructions in one slot, as on a local chain."""
    whole: bool = False
    """The endpoint knows no slices."""
    calls: list[int] = field(default_factory=list)
    owner: Pubkey = COORDINATOR

    def add(self, state: CoordinatorState, *, version: bytes = b"", now: int = NOW) -> None:
        self.times[len(self.versions)] = now
        self.versions.append(account(state, len(self.versions), version=version))

    async def call(self, method: str, names: list[str], options: dict[str, Any], *, timeout: float) -> Any:
        assert (method, timeout) == ("getMultipleAccounts", 5.0)
        await anyio.lowlevel.checkpoint()
        next(self.between, None)
        place = max(0, len(self.versions) - 1 - self.behind)
        self.behind = 0
        wanted = options.get("dataSlice", {"offset": 0, "length": 10**9})
        if wanted["offset"]:
            place = max(0, place - self.parts_behind)
        elif "dataSlice" in options:
            self.heads += 1
            place = 0 if self.heads in self.old_heads else max(0, place - self.head_behind)
        clock = (0).to_bytes(32, "little") + self.times.get(place, NOW).to_bytes(8, "little")
        values: list[dict[str, Any]] = []
        for name in names:
            data = clock if name == str(CLOCK_SYSVAR) else self.versions[place]
            if not self.whole:
                data = data[wanted["offset"] : wanted["offset"] + wanted["length"]]
            encoded = base64.b64encode(data).decode()
            values.append({"lamports": 1, "owner": str(self.owner), "data": [encoded, "base64"]})
        self.calls.append(sum(len(value["data"][0]) for value in values))
        return {"context": {"slot": place // 5 if self.crowded else place}, "value": values}

    def follower(self) -> Follower:
        return Follower(cast("Rpc", self), RUN, call_seconds=5.0)


def same(copy: Copy, version: bytes) -> bool:
    """But for the staging area, which no member needs."""
    end = HEADER_BYTES + image.SIZE
    return copy.data[:end] == version[:end] and copy.state == Copy.of(version).state


class Play:
    """Random commands, most of them sensible; those that are refused count nothing."""

    def __init__(self, chain: Chain, seed: int, members: int) -> None:
        self.random = Random(seed)
        self.chain = chain
        self.drawn = RandomCommands(self.random, members)
        instance = bytes(RUN.account)
        fresh = CoordinatorState(run_id="test-run", instance=instance, config=self.drawn.config, model=self.drawn.model)
        self.state = runs.midway(self.random, fresh, [member(place).signer for place in range(members)])
        self.now = NOW
        self.phases: Counter[RunState] = Counter()
        self.version = b""
        chain.add(self.state)

    def step(self) -> None:
        command: Command = self.drawn.next(self.state)
        self.now += self.drawn.seconds(self.state, command)
        if self.random.random() < 0.02:
            self.version = bytes([self.random.randrange(65, 91)])
            self.chain.add(self.state, version=self.version, now=self.now)
        try:
            self.state, _ = apply(self.state, command, self.now, self.random.getrandbits(64))
        except CoordinatorError:
            return
        self.phases[self.state.run_state] += 1
        self.chain.add(self.state, version=self.version, now=self.now)


@pytest.mark.repeated
@settings(
    max_examples=8 * int(os.environ.get("SOAK_TIMES", "1")), deadline=None, phases=(Phase.explicit, Phase.generate)
)  # a smaller seed says no more
@given(seed=st.integers(0, 2**32), members=st.integers(1, 12), crowded=st.booleans())
@example(seed=51851, members=12, crowded=False).via("a statement that was late was taken for one in time")
def test_a_copy_is_the_account_as_it_was_after_some_instruction(seed: int, members: int, crowded: bool) -> None:
    """Instructions come between any two answers, and where slots tell them apart an endpoint may be behind."""
    chain = Chain([], crowded=crowded)
    play = Play(chain, seed, members)
    random = Random(seed + 1)

    def meanwhile() -> Iterator[None]:
        while True:
            for _ in range(random.choice([0, 0, 0, 0, 1, 2])):
                play.step()
            if not crowded and random.random() < 0.1:
                chain.behind = random.randint(1, 4)
            yield

    async def follow() -> None:
        follower = chain.follower()
        seen = -1
        for _ in range(30):
            for _ in range(random.choice([0, 1, 1, 1, 2, 5])):
                play.step()
            chain.between = meanwhile() if random.random() < 0.5 else iter(())
            heard = random.choice([-1, len(chain.versions) - 1, len(chain.versions) - 1])
            copy, _ = await follower.read(reported_nonce=heard)
            assert copy.nonce >= seen
            seen = copy.nonce
            assert same(copy, chain.versions[seen])
        chain.between, chain.behind = iter(()), 0
        copy, _ = await follower.read(reported_nonce=-1)
        assert same(copy, chain.versions[-1])

    anyio.run(follow)


class Full:
    """256 clients and 32 witnesses in a round, each statement an instruction."""

    def __init__(self) -> None:
        self.largest = Largest(torn=False, percent=0, instance=bytes(RUN.account))
        self.state = self.largest.playing(0)
        self.chain = Chain([])
        self.chain.add(self.state)

    def do(self, command: Command) -> None:
        self.state, _ = apply(self.state, command, NOW, len(self.chain.versions))
        self.chain.add(self.state)

    def states(self, count: int) -> None:
        for _ in range(count):
            self.do(self.largest.next_witness(self.state))

    @property
    def left(self) -> int:
        current = self.state.epoch.rounds[-1]
        return len(witness_slots(self.state, current)) - len(current.statements)


WHOLE = -(-ACCOUNT_BYTES // 3) * 4


def test_a_statement_costs_two_small_answers_and_a_round_one_larger() -> None:
    full = Full()

    async def follow() -> None:
        chain, follower = full.chain, full.chain.follower()
        await follower.read(reported_nonce=-1)
        for _ in range(2):
            while full.left > 1:
                full.states(1)
                before = len(chain.calls)
                copy, _ = await follower.read(reported_nonce=len(chain.versions) - 1)
                assert copy.state == full.state
                assert (len(chain.calls) - before, sum(chain.calls[before:]) < 3000) == (2, True)
            full.states(1)  # the last one begins the next round
            before = len(chain.calls)
            copy, _ = await follower.read(reported_nonce=len(chain.versions) - 1)
            assert copy.state == full.state
            assert max(chain.calls[before:]) < WHOLE / 5
            assert sum(chain.calls[before:]) < WHOLE / 2
        assert [size for size in chain.calls if size >= WHOLE] == [chain.calls[0]]

    anyio.run(follow)


def test_several_statements_are_read_at_once_also_when_nobody_told_of_them() -> None:
    full = Full()

    async def follow() -> None:
        follower = full.chain.follower()
        await follower.read(reported_nonce=-1)
        full.states(7)
        copy, _ = await follower.read(reported_nonce=-1)
        assert (copy.state, max(full.chain.calls[1:]) < 10_000) == (full.state, True)

    anyio.run(follow)


def test_parts_of_an_endpoint_that_is_behind_are_not_mixed_with_the_head_of_another() -> None:
    full = Full()

    async def follow() -> None:
        follower = full.chain.follower()
        await follower.read(reported_nonce=-1)
        full.chain.parts_behind = 1
        full.do(Withdraw(member(3)))
        copy, _ = await follower.read(reported_nonce=1)
        assert copy.state == full.state

    anyio.run(follow)


def test_what_was_added_is_not_taken_for_what_an_older_head_counts() -> None:
    """A balance is freed, then a witness states: who is behind counts one instruction, somebody else shows the statement."""
    full = Full()

    async def follow() -> None:
        follower = full.chain.follower()
        await follower.read(reported_nonce=-1)
        full.do(Settle(full.state.accounts[3].signer))
        full.states(1)
        full.chain.head_behind = 1
        copy, _ = await follower.read(reported_nonce=1)
        assert same(copy, full.chain.versions[copy.nonce])

    anyio.run(follow)


def test_an_endpoint_that_is_behind_at_the_closing_head_is_asked_again() -> None:
    full = Full()

    async def follow() -> None:
        follower = full.chain.follower()
        await follower.read(reported_nonce=-1)
        full.states(1)
        await follower.read(reported_nonce=1)
        full.do(Withdraw(member(3)))
        full.chain.old_heads = {3}
        copy, _ = await follower.read(reported_nonce=2)
        assert copy.state == full.state
        assert full.chain.heads == 4
        assert max(full.chain.calls[1:]) < WHOLE / 2

    anyio.run(follow)


def test_a_configuration_that_was_changed_in_a_pause_nobody_saw() -> None:
    full = Full()
    full.state = replace(full.largest.state, run_state=RunState.WaitingForMembers, epoch=Epoch())
    full.chain.versions = [account(full.state, 0)]

    async def follow() -> None:
        follower = full.chain.follower()
        await follower.read(reported_nonce=-1)
        full.do(Pause())
        full.do(UpdateConfig(full.state.config.model_copy(update={"cooldown_time": 77})))
        full.do(Resume())
        copy, _ = await follower.read(reported_nonce=3)
        assert copy.state == full.state
        assert full.state.config.cooldown_time == 77

    anyio.run(follow)


def test_a_balance_that_the_owner_frees_in_mid_round_is_gone() -> None:
    full = Full()

    async def follow() -> None:
        follower = full.chain.follower()
        await follower.read(reported_nonce=-1)
        full.do(Settle(full.state.accounts[3].signer))
        copy, _ = await follower.read(reported_nonce=1)
        assert copy.state == full.state

    anyio.run(follow)


def test_who_signs_an_epochs_end_and_who_is_ready_costs_little() -> None:
    full = Full()
    waiting = replace(full.largest.state, run_state=RunState.WaitingForMembers, epoch=Epoch(), since=NOW, minimum_since=NOW)
    cooldown = full.largest.playing(32, RunState.Cooldown, drain=True)
    warming, _ = apply(waiting, Tick(), NOW + 10, 1)
    for begin, command in (
        (cooldown, lambda slot: EpochDigest(member(slot), full.state.progress.epoch, slot, b"d" * 32)),
        (warming, lambda slot: WarmupWitness(member(slot), full.state.progress.epoch, slot, b"d" * 32)),
    ):
        full.state, full.chain.versions, full.chain.calls = begin, [account(begin, 0)], []

        async def follow(command: Callable[[int], Command] = command) -> None:
            follower = full.chain.follower()
            await follower.read(reported_nonce=-1)
            for slot in range(5):
                full.do(command(slot))
                copy, _ = await follower.read(reported_nonce=slot + 1)
                assert copy.state == full.state
            assert len(full.chain.calls) == 11
            assert max(full.chain.calls[1:]) < WHOLE / 5

        anyio.run(follow)


def test_a_nonce_that_a_websocket_made_up_costs_no_reading_of_the_whole() -> None:
    full = Full()

    async def follow() -> None:
        follower = full.chain.follower()
        await follower.read(reported_nonce=-1)
        full.states(3)
        copy, _ = await follower.read(reported_nonce=2**60)
        assert (copy.state, max(full.chain.calls[1:]) < 10_000) == (full.state, True)

    anyio.run(follow)


def test_a_proof_against_somebody_is_read_whole() -> None:
    """It can void shares of rounds that are not read otherwise."""
    full = Full()
    case = next(case for case in full.largest.cases() if case.name == "equivocation: of an older share")
    assert isinstance(case.command, Equivocation)
    full.chain.versions = [account(case.state, 0)]
    full.state = case.state

    async def follow() -> None:
        follower = full.chain.follower()
        await follower.read(reported_nonce=-1)
        full.do(case.command)
        copy, _ = await follower.read(reported_nonce=1)
        assert copy.state == full.state
        assert full.chain.calls[-1] >= WHOLE

    anyio.run(follow)


def test_the_whole_is_read_from_another_endpoint_and_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    full = Full()

    async def follow() -> None:
        chain, follower = full.chain, full.chain.follower()
        await follower.read(reported_nonce=-1)
        lie = bytearray(chain.versions[-1])
        place = HEADER_BYTES + image.offset("accounts[0].earned")
        lie[place] ^= 1
        follower._copy = Copy.of(bytes(lie))  # what one endpoint made up
        full.states(1)
        chain.current = object()
        copy, _ = await follower.read(reported_nonce=1)
        assert copy.state == full.state
        monkeypatch.setattr(account_reader, "WHOLE_SECONDS", -1.0)
        full.states(1)
        await follower.read(reported_nonce=2)
        assert [size >= WHOLE for size in chain.calls] == [True, True, True]

    anyio.run(follow)


def test_endpoints_that_send_all_or_too_little_or_anothers_account() -> None:
    full = Full()

    async def follow() -> None:
        chain, follower = full.chain, full.chain.follower()
        await follower.read(reported_nonce=-1)
        chain.whole = True
        full.states(1)
        copy, _ = await follower.read(reported_nonce=1)
        assert copy.state == full.state
        chain.whole = False
        full.states(1)
        kept, chain.versions[-1] = chain.versions[-1], chain.versions[-1][:1000]
        with pytest.raises(WireError, match="got 0"):
            await follower.read(reported_nonce=2)
        chain.versions[-1] = kept
        chain.owner = Pubkey(b"o" * 32)
        with pytest.raises(WireError, match="expected an account of the program"):
            await follower.read(reported_nonce=2)
        chain.owner = COORDINATOR
        assert (await follower.read(reported_nonce=2))[0].state == full.state
        chain.versions[-1] = b""
        with pytest.raises((BackendClosed, WireError)):
            await follower.read(reported_nonce=3)

    anyio.run(follow)


def test_a_tick_that_ends_the_epoch_is_read_whole() -> None:
    full = Full()
    full.state = full.largest.playing(32, RunState.Cooldown, drain=True)
    full.chain.versions = [account(full.state, 0)]

    async def follow() -> None:
        follower = full.chain.follower()
        await follower.read(reported_nonce=-1)
        full.state, _ = apply(full.state, Tick(), full.state.since + 100, 1)
        full.chain.add(full.state)
        copy, _ = await follower.read(reported_nonce=1)
        assert copy.state == full.state

    anyio.run(follow)


def test_the_head_holds_what_says_how_far_a_run_is() -> None:
    for name in ("run_state", "since", "progress", "minimum_since"):
        assert HEADER_BYTES + image.offset(name) < HEAD.end
    assert HEAD.end > NONCE_OFFSET
