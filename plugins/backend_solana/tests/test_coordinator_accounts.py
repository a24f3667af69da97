"""What the coordinator program refuses before it looks at a command: accounts, signatures, instruction data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from random_instructions import Thief
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from plugins.backend_solana.tests.coordinator_parts import (
    CONFIG,
    EVERY,
    MODEL,
    OWNERS,
    THIEF,
    changed,
    every,
    old,
    owners,
    refused,
)
from plugins.backend_solana.tests.svm import runs
from plugins.backend_solana.tests.svm.coordinator_svm import (
    AUTHORIZER_ID,
    CoordinatorSvm,
    member,
    open_authorization,
    wallet,
)
from psyche_backend_solana.layouts import coordinator as layout
from psyche_backend_solana.layouts.coordinator_accounts import (
    ACCOUNT_BYTES,
    CoordinatorAccount,
    RunInstance,
)
from psyche_core.coordinator import commands
from psyche_core.errors import WireError
from psyche_core.types import RunState

WITH_INSTANCE = (*OWNERS, "join")


def place_of(given: Instruction, key: Pubkey) -> int:
    return [meta.pubkey for meta in given.accounts].index(key)


@pytest.mark.parametrize("name", EVERY)
def test_who_commands_signs(chain: CoordinatorSvm, name: str) -> None:
    given, key = every(chain)[name]
    assert refused(chain, changed(given, 0, is_signer=False), THIEF) == "MissingSigner", key


@pytest.mark.parametrize("name", OWNERS)
def test_the_owner_is_the_main_authority(chain: CoordinatorSvm, name: str) -> None:
    assert refused(chain, owners(chain, THIEF.pubkey())[name], THIEF) == "NotAuthority"


@pytest.mark.parametrize("name", EVERY)
def test_the_account_is_writable(chain: CoordinatorSvm, name: str) -> None:
    given, key = every(chain)[name]
    place = place_of(given, chain.run.account)
    assert refused(chain, changed(given, place, is_writable=False), key) == "NotWritable"


@pytest.mark.parametrize("name", EVERY)
def test_the_account_is_the_programs(chain: CoordinatorSvm, name: str) -> None:
    given, key = every(chain)[name]
    chain.put(chain.run.account, chain.data(), owner=AUTHORIZER_ID)
    assert refused(chain, given, key) == "WrongOwner"


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("size", [0, 11, 100_000, ACCOUNT_BYTES - 1, ACCOUNT_BYTES + 1])
def test_the_account_has_its_size(chain: CoordinatorSvm, name: str, size: int) -> None:
    given, key = every(chain)[name]
    chain.put(chain.run.account, chain.data().ljust(size, b"\0")[:size])
    assert refused(chain, given, key) == "WrongSize"


@pytest.mark.parametrize("name", EVERY)
def test_the_account_has_its_magic(chain: CoordinatorSvm, name: str) -> None:
    given, key = every(chain)[name]
    chain.put(chain.run.account, b"PsycheRI" + chain.data()[8:])
    assert refused(chain, given, key) == "WrongKind"


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("version", [0, 1, 2, 3, 4, 6])
def test_the_account_has_its_version(chain: CoordinatorSvm, name: str, version: int) -> None:
    given, key = every(chain)[name]
    chain.put(chain.run.account, chain.data()[:8] + version.to_bytes(4, "little") + chain.data()[12:])
    assert refused(chain, given, key) == "WrongVersion"


def forged(chain: CoordinatorSvm, change: Callable[[bytearray], None]) -> Pubkey:
    """Another account of the program's that looks like the run's instance, but for a change."""
    found = chain.svm.get_account(chain.run.instance)
    assert found is not None
    data = bytearray(found.data)
    change(data)
    address = Keypair.from_seed(b"f" * 32).pubkey()
    chain.put(address, bytes(data))
    return address


@pytest.mark.parametrize("name", WITH_INSTANCE)
def test_the_instance_stands_at_its_derived_address(chain: CoordinatorSvm, name: str) -> None:
    given, key = every(chain)[name]
    false = forged(chain, lambda data: None)
    assert refused(chain, changed(given, place_of(given, chain.run.instance), pubkey=false), key) == "WrongAddress"


@pytest.mark.parametrize("name", WITH_INSTANCE)
@pytest.mark.parametrize(
    ("first", "content", "refusal"),
    [(0, b"PsycheCo", "WrongKind"), (8, b"\2", "WrongVersion"), (12, b"\0", "WrongAddress"), (112, b"another", "WrongAddress")],
)
def test_the_instance_is_one(chain: CoordinatorSvm, name: str, first: int, content: bytes, refusal: str) -> None:
    given, key = every(chain)[name]

    def change(data: bytearray) -> None:
        data[first : first + len(content)] = content

    false = forged(chain, change)
    assert refused(chain, changed(given, place_of(given, chain.run.instance), pubkey=false), key) == refusal


@pytest.mark.parametrize("name", WITH_INSTANCE)
def test_the_instance_is_the_programs(chain: CoordinatorSvm, name: str) -> None:
    given, key = every(chain)[name]
    found = chain.svm.get_account(chain.run.instance)
    assert found is not None
    false = Keypair.from_seed(b"g" * 32).pubkey()
    chain.put(false, bytes(found.data), owner=AUTHORIZER_ID)
    assert refused(chain, changed(given, place_of(given, chain.run.instance), pubkey=false), key) == "WrongOwner"
    chain.put(false, bytes(found.data)[:-1])
    assert refused(chain, changed(given, place_of(given, chain.run.instance), pubkey=false), key) == "WrongSize"


@pytest.mark.parametrize("name", WITH_INSTANCE)
def test_the_account_belongs_to_the_instance(chain: CoordinatorSvm, name: str) -> None:
    """Neither another run's account with this instance, nor one that only says that it is this instance's."""
    given, key = every(chain)[name]
    twin = Keypair.from_seed(b"h" * 32).pubkey()
    data = chain.data()
    chain.put(twin, data)
    assert refused(chain, changed(given, place_of(given, chain.run.account), pubkey=twin), key) == "WrongAddress"
    chain.put(chain.run.account, data[:24] + bytes(THIEF.pubkey()) + data[56:])
    assert refused(chain, given, key) == "WrongAddress"


@pytest.mark.parametrize("name", EVERY)
def test_no_account_may_be_missing(chain: CoordinatorSvm, name: str) -> None:
    given, key = every(chain)[name]
    assert refused(chain, Instruction(given.program_id, given.data, given.accounts[:-1]), key) == "NotEnoughAccounts"


def test_init_wants_a_new_account(chain: CoordinatorSvm) -> None:
    run_id = "a run that is new"
    key = Keypair.from_seed(b"n" * 32)
    run = layout.Run(layout.instance_address(run_id)[0], key.pubkey())
    owner = chain.owner.pubkey()
    given = layout.init(run, payer=owner, run_id=run_id, main_authority=owner, join_authority=owner)
    for place in (0, 8, ACCOUNT_BYTES // 2, ACCOUNT_BYTES - 1):
        chain.put(run.account, bytes(place) + b"\1" + bytes(ACCOUNT_BYTES - place - 1))
        assert chain.send([given], chain.owner, key).refusal == "AlreadyExists"
    chain.put(run.account, bytes(ACCOUNT_BYTES - 1))
    assert chain.send([given], chain.owner, key).refusal == "WrongSize"
    chain.put(run.account, bytes(ACCOUNT_BYTES), owner=AUTHORIZER_ID)
    assert chain.send([given], chain.owner, key).refusal == "WrongOwner"
    chain.put(run.account, bytes(ACCOUNT_BYTES))
    assert chain.send([changed(given, 1, pubkey=THIEF.pubkey())], chain.owner, key).refusal == "WrongAddress"
    assert chain.send([changed(given, 2, is_writable=False)], chain.owner, key).refusal == "NotWritable"
    assert chain.send([changed(given, 0, is_signer=False)], THIEF, key).refusal == "MissingSigner"
    assert chain.send([changed(given, 3, pubkey=THIEF.pubkey())], chain.owner, key).refusal == "WrongAddress"
    assert chain.send([changed(given, 2, is_signer=False)], chain.owner).refusal == "MissingSigner", (
        "nobody makes a run of another's account"
    )
    for data in (b"\0\0" + given.data[2:], b"\0\1" + given.data[2:], b"\0\40" + given.data[2:], b"\0\41" + given.data[2:]):
        assert (
            chain.send([Instruction(given.program_id, bytes(data), given.accounts)], chain.owner, key).refusal == "BadInstruction"
        )
    assert chain.send([given], chain.owner, key).refusal is None
    assert chain.send([given], chain.owner, key).refusal == "AlreadyExists"
    found = chain.svm.get_account(run.instance)
    assert found is not None
    assert RunInstance.parse(bytes(found.data)) == RunInstance(
        layout.instance_address(run_id)[1], owner, owner, run.account, run_id
    )


def test_a_halted_run_is_freed(chain: CoordinatorSvm) -> None:
    given = owners(chain, chain.owner.pubkey())["free"]
    assert refused(chain, given, chain.owner) == "InvalidRunState"
    assert refused(chain, changed(given, 1, is_writable=False), chain.owner) == "NotWritable"
    assert refused(chain, changed(given, 2, is_writable=False), chain.owner) == "NotWritable"
    assert chain.do(commands.Pause(), chain.account.state).refusal is None  # type: ignore[arg-type]
    for place in (2, 3):
        assert refused(chain, changed(given, 1, pubkey=given.accounts[place].pubkey), chain.owner) == "SameAccount"
    instance = chain.svm.get_account(chain.run.instance)
    assert instance is not None
    before = chain.svm.get_balance(THIEF.pubkey())
    held = (chain.svm.get_balance(chain.run.instance) or 0) + (chain.svm.get_balance(chain.run.account) or 0)
    assert chain.send([given], chain.owner).refusal is None
    assert chain.svm.get_balance(THIEF.pubkey()) == (before or 0) + held
    assert not chain.svm.get_balance(chain.run.instance)
    assert not chain.svm.get_balance(chain.run.account)
    chain.put(chain.run.instance, bytes(instance.data))


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_a_run_of_an_older_version_is_only_freed(chain: CoordinatorSvm, version: int) -> None:
    given = owners(chain, chain.owner.pubkey())["free"]
    content = old(chain, version)
    for name, (other, key) in every(chain).items():
        chain.put(chain.run.account, content)
        if name != "free":
            assert refused(chain, other, key) == "WrongSize", name
    assert refused(chain, owners(chain, THIEF.pubkey())["free"], THIEF) == "NotAuthority"
    assert refused(chain, changed(given, 0, is_signer=False), THIEF) == "MissingSigner"
    assert refused(chain, changed(given, 3, is_writable=False), chain.owner) == "NotWritable"
    for run_state in RunState:
        chain.put(chain.run.account, old(chain, version, run_state=run_state))
        if not run_state.halted:
            assert refused(chain, given, chain.owner) == "InvalidRunState"
    for place, byte, refusal in ((0, 1, "WrongKind"), (8, 9, "WrongVersion"), (24, 1, "WrongAddress")):
        wrong = bytearray(content)
        wrong[place] = byte
        chain.put(chain.run.account, bytes(wrong))
        assert refused(chain, given, chain.owner) == refusal
    chain.put(chain.run.account, content, owner=AUTHORIZER_ID)
    assert refused(chain, given, chain.owner) == "WrongOwner"
    chain.put(chain.run.account, content)
    instance = chain.svm.get_account(chain.run.instance)
    assert instance is not None
    assert chain.send([given], chain.owner).refusal is None
    assert not chain.svm.get_balance(chain.run.account)
    chain.put(chain.run.instance, bytes(instance.data))


def test_foreign_accounts_are_not_read() -> None:
    with pytest.raises(WireError, match="bytes, got 0"):
        CoordinatorAccount.parse(b"")
    with pytest.raises(WireError, match="begin with"):
        CoordinatorAccount.parse(bytes(ACCOUNT_BYTES))
    with pytest.raises(WireError, match="version 5"):
        CoordinatorAccount.parse(b"PsycheCo\2".ljust(ACCOUNT_BYTES, b"\0"))
    with pytest.raises(WireError, match="256"):
        RunInstance.parse(bytes(255))


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_whatever_a_thief_makes_up_changes_no_run(made: CoordinatorSvm) -> None:
    """Of a run that waits, and of runs after long histories. Ticks, which anybody may give, have nothing to do here."""
    spare = Keypair.from_seed(b"n" * 32).pubkey()
    made.put(spare, bytes(ACCOUNT_BYTES))
    for seed in range(8):
        state = replace(made.fresh(CONFIG, MODEL), run_state=RunState.WaitingForMembers)
        if seed:
            state = runs.midway(Random(seed), made.fresh(CONFIG, MODEL), [member(place).signer for place in range(2)])
        made.begin(state)
        made.put(made.authorization, open_authorization(made.owner.pubkey()), owner=AUTHORIZER_ID)
        made.at(1_700_000_000, 5)
        account, instance = made.data(), made.data_of(made.run.instance)
        places: tuple[Pubkey, ...] = (
            made.run.account,
            made.run.instance,
            made.authorization,
            made.owner.pubkey(),
            spare,
            layout.PROGRAM_ID,
        )
        places += (*(wallet(place).pubkey() for place in range(4)), AUTHORIZER_ID, layout.instance_address("another")[0])
        models = [made.init(), *(instruction for instruction, _ in every(made).values())]
        thief = Thief(THIEF, models, places, seed=seed)

        def check(instruction: Instruction) -> None:
            assert made.data() == account, instruction  # noqa: B023
            assert made.data_of(made.run.instance) == instance, instruction  # noqa: B023

        thief.try_all(700, lambda instruction: made.send([instruction], THIEF).refusal, check)
        print(thief.accepted, thief.refused)
        assert made.data() == account
        assert len(thief.refused) > 8, "it was refused for few reasons: what it makes up is too far from what is meant"
