"""What the coordinator program refuses before it looks at a command: accounts, signatures, instruction data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from random_instructions import Thief
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.system_program import TransferParams, transfer

from plugins.backend_solana.tests.svm import runs
from plugins.backend_solana.tests.svm.coordinator_svm import (
    AUTHORIZER_ID,
    NOT_SIGNED,
    CoordinatorSvm,
    member,
    open_authorization,
    transport_key,
    wallet,
)
from psyche_backend_solana.layouts import coordinator as layout
from psyche_backend_solana.layouts.coordinator_accounts import (
    ACCOUNT_BYTES,
    HEADER_BYTES,
    OLD_ACCOUNT_BYTES,
    CoordinatorAccount,
    RunInstance,
    RunMetadata,
)
from psyche_core.coordinator import apply, commands
from psyche_core.coordinator import canonical_image as image
from psyche_core.coordinator.state import Progress
from psyche_core.errors import WireError
from psyche_core.types import RunState, WitnessStatement
from psyche_core.wire.messages import sign_commitment, sign_join

CONFIG = runs.config(Random(1), 2, init_min_clients=2, min_clients=1)
MODEL = runs.model(Random(1), checkpoint={"Hub": {"repo_id": "owner/model"}})
STATEMENT = WitnessStatement(0, 0, 0, bytes(32), bytes(320), bytes(32), bytes(32))
PROOF = commands.Equivocation(
    member(0), 0, 0, 0, commands.SignedResult(bytes(32), bytes(64)), commands.SignedResult(b"\1" * 32, bytes(64))
)
THIEF = Keypair.from_seed(b"t" * 32)


@pytest.fixture(scope="module")
def made() -> CoordinatorSvm:
    chain = CoordinatorSvm(members=4)
    chain.svm.airdrop(THIEF.pubkey(), 10**12)
    return chain


@pytest.fixture
def chain(made: CoordinatorSvm) -> CoordinatorSvm:
    """A run that waits for members."""
    state = replace(made.fresh(CONFIG, MODEL), run_state=RunState.WaitingForMembers)
    made.begin(state)
    made.put(made.authorization, open_authorization(made.owner.pubkey()), owner=AUTHORIZER_ID)
    made.at(1_700_000_000, 5)
    return made


def owners(chain: CoordinatorSvm, authority: Pubkey) -> dict[str, Instruction]:
    """Every instruction of the owner."""
    run = chain.run
    return {
        "free": layout.free(run, authority=authority, spill=THIEF.pubkey()),
        "stage": layout.stage(run, authority=authority, offset=0, content=b"x"),
        "update": layout.update(run, layout.Update(metadata=RunMetadata("a")), authority=authority),
        "rates": layout.set_future_epoch_rates(run, authority=authority, earning_total_shared=1),
        "paused": layout.set_paused(run, authority=authority, paused=True),
        "expel": layout.expel(run, authority=authority, user=wallet(0).pubkey()),
        "back": layout.back(run, authority=authority, units=1),
        "settle": layout.settle(run, authority=authority, signer=bytes(wallet(0).pubkey())),
    }


def members(chain: CoordinatorSvm, user: Pubkey) -> dict[str, Instruction]:
    """Every instruction of members."""
    run = chain.run
    return {
        "join": layout.join(run, user=user, authorization=chain.authorization, p2p=bytes(32), proof=bytes(64)),
        "withdraw": layout.withdraw(run, user=user),
        "tick": layout.tick(run, user=user),
        "witness": layout.witness(run, STATEMENT, user=user),
        "warmup_witness": layout.warmup_witness(run, user=user, epoch=0, index=0, model_digest=bytes(32)),
        "health_check": layout.health_check(run, user=user, slots=(0,)),
        "checkpoint": layout.checkpoint(run, None, user=user),
        "epoch_digest": layout.epoch_digest(run, user=user, epoch=0, index=0, digest=b"d" * 32),
        "equivocation": layout.equivocation(run, PROOF, user=user),
    }


def every(chain: CoordinatorSvm) -> dict[str, tuple[Instruction, Keypair]]:
    """Every instruction but `init`, with who signs it."""
    by_owner = {name: (made, chain.owner) for name, made in owners(chain, chain.owner.pubkey()).items()}
    return by_owner | {name: (made, wallet(0)) for name, made in members(chain, wallet(0).pubkey()).items()}


OWNERS = ("free", "stage", "update", "rates", "paused", "expel", "back", "settle")
MEMBERS = ("join", "withdraw", "tick", "witness", "warmup_witness", "health_check", "checkpoint", "equivocation", "epoch_digest")
WITH_INSTANCE = (*OWNERS, "join")
EVERY = (*OWNERS, *MEMBERS)


def changed(given: Instruction, place: int, **fields: object) -> Instruction:
    """The instruction with another account, signature or right at a place."""
    accounts = list(given.accounts)
    old = accounts[place]
    accounts[place] = AccountMeta(
        fields.get("pubkey", old.pubkey),  # type: ignore[arg-type]
        bool(fields.get("is_signer", old.is_signer)),
        bool(fields.get("is_writable", old.is_writable)),
    )
    return Instruction(given.program_id, given.data, accounts)


def place_of(given: Instruction, key: Pubkey) -> int:
    return [meta.pubkey for meta in given.accounts].index(key)


def refused(chain: CoordinatorSvm, given: Instruction, *signers: Keypair) -> str | None:
    before = chain.data()
    answer = chain.send([given], *signers, units=1_400_000)
    assert answer.refusal is None or chain.data() == before
    return answer.refusal


def joined(chain: CoordinatorSvm) -> str | None:
    """The refusal of the first wallet's join."""
    user = wallet(0).pubkey()
    return chain.send(
        layout.proved_join(chain.run, user=user, authorization=chain.authorization, key=transport_key(0)), wallet(0)
    ).refusal


def old(chain: CoordinatorSvm, version: int, *, run_state: RunState = RunState.Paused) -> bytes:
    """The account as an older version had it, as far as anything is known of it: its header, and what its image begins with."""
    header = chain.data()[:8] + version.to_bytes(4, "little") + chain.data()[12:HEADER_BYTES]
    begun = b"PsycheSt" + bytes(144 if version == 3 else 112) + bytes([run_state])
    return (header + begun).ljust(OLD_ACCOUNT_BYTES[version], b"\0")


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
@pytest.mark.parametrize("version", [0, 1, 2, 3, 5])
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


@pytest.mark.parametrize("name", [name for name in EVERY if name not in ("stage", "witness")])
def test_nothing_is_left_over(chain: CoordinatorSvm, name: str) -> None:
    given, key = every(chain)[name]
    longer = Instruction(given.program_id, bytes(given.data) + b"\0", given.accounts)
    assert refused(chain, longer, key) == "BadInstruction"


@pytest.mark.parametrize("name", EVERY)
def test_data_that_ends_early(chain: CoordinatorSvm, name: str) -> None:
    given, key = every(chain)[name]
    for length in {0, 1, len(given.data) // 2, len(given.data) - 1}:
        shorter = Instruction(given.program_id, bytes(given.data)[:length], given.accounts)
        if length == 0 or (length < len(given.data) and (name, length) != ("stage", 3)):
            assert refused(chain, shorter, key) == "BadInstruction", length


def test_an_unknown_instruction(chain: CoordinatorSvm) -> None:
    for number in (14, 19):
        assert refused(chain, Instruction(layout.PROGRAM_ID, bytes([number]), []), THIEF) == "BadInstruction"


@pytest.mark.parametrize(
    ("content", "owner", "refusal"),
    [
        (lambda owner: open_authorization(THIEF.pubkey()), AUTHORIZER_ID, "NotAuthority"),
        (lambda owner: open_authorization(owner, scope=b"Another"), AUTHORIZER_ID, "NotAuthority"),
        (lambda owner: open_authorization(owner, active=False), AUTHORIZER_ID, "NotAuthority"),
        (lambda owner: open_authorization(owner, grantee=bytes(THIEF.pubkey())), AUTHORIZER_ID, "NotAuthority"),
        (lambda owner: open_authorization(owner, grantee=bytes(wallet(0).pubkey())), AUTHORIZER_ID, None),
        (lambda owner: open_authorization(owner), layout.PROGRAM_ID, "WrongOwner"),
        (lambda owner: b"PsycheXX" + open_authorization(owner)[8:], AUTHORIZER_ID, "WrongKind"),
        (lambda owner: open_authorization(owner)[:-1], AUTHORIZER_ID, "WrongSize"),
    ],
)
def test_joining_needs_an_authorization(
    chain: CoordinatorSvm, content: Callable[[Pubkey], bytes], owner: Pubkey, refusal: str | None
) -> None:
    chain.put(chain.authorization, content(chain.owner.pubkey()), owner=owner)
    assert joined(chain) == refusal


def test_a_transport_key_belongs_to_who_proves_it(chain: CoordinatorSvm) -> None:
    """In this run, for this signer, in the instruction just before; and to one member only."""
    run, user = chain.run, wallet(0).pubkey()
    verified, join = layout.proved_join(run, user=user, authorization=chain.authorization, key=transport_key(0))
    between = transfer(TransferParams(from_pubkey=user, to_pubkey=user, lamports=1))
    sends: list[list[Instruction]] = [[join], [join, verified], [verified, between, join]]
    elsewhere = replace(run, account=THIEF.pubkey())
    for other in (
        layout.proved_join(elsewhere, user=user, authorization=chain.authorization, key=transport_key(0))[0],
        layout.proved_join(run, user=wallet(1).pubkey(), authorization=chain.authorization, key=transport_key(0))[0],
        layout.proved_join(run, user=user, authorization=chain.authorization, key=transport_key(1))[0],
        layout.commitments_verified(
            run, p2p=member(0).p2p, signed=((bytes(user), sign_commitment(transport_key(0), chain.instance, bytes(user))),)
        ),
    ):
        sends.append([other, join])
    for instructions in sends:
        before = chain.data()
        assert chain.send(instructions, wallet(0)).refusal == "InvalidProof"
        assert chain.data() == before
    false = layout.join_verified(run, user=user, p2p=member(0).p2p, proof=bytes(64))
    assert chain.send([false, join], wallet(0)).refusal == NOT_SIGNED
    fake = [verified, changed(join, 4, pubkey=THIEF.pubkey())]
    assert chain.send(fake, wallet(0)).refusal == "WrongAddress"
    assert joined(chain) is None
    stolen = layout.proved_join(run, user=wallet(1).pubkey(), authorization=chain.authorization, key=transport_key(0))
    assert chain.send(stolen, wallet(1)).refusal == "TransportKeyTaken"


@pytest.mark.parametrize("who", ["owner", "join authority"])
def test_s5_a_member_whose_right_was_taken_back_is_sent_away(chain: CoordinatorSvm, who: str) -> None:
    """By the owner of the run or by who says who may join, in whose name it is made no difference: it has withdrawn."""
    assert joined(chain) is None
    waiting = chain.account.state
    assert waiting is not None
    instance = chain.data_of(chain.run.instance)
    chain.put(chain.run.instance, instance[:48] + bytes(THIEF.pubkey()) + instance[80:])
    authority = {"owner": chain.owner, "join authority": THIEF}[who]
    expel = layout.expel(chain.run, authority=authority.pubkey(), user=wallet(0).pubkey())
    assert refused(chain, expel, authority) is None
    after, _ = apply(waiting, commands.Withdraw(waiting.pending[0]), 1_700_000_000, 0)
    assert chain.account.state == after
    assert refused(chain, expel, authority) == "InvalidWithdraw"
    bystander = layout.expel(chain.run, authority=wallet(1).pubkey(), user=wallet(0).pubkey())
    assert refused(chain, bystander, wallet(1)) == "NotAuthority"
    chain.put(chain.run.instance, instance)  # the other tests use the same one


def test_before_the_first_update_there_is_no_run(chain: CoordinatorSvm) -> None:
    chain.begin()
    for name, (given, key) in every(chain).items():
        if name in (*MEMBERS, "rates", "paused", "expel", "settle"):
            assert refused(chain, given, key) == "Halted", name
    only_progress = layout.update(chain.run, layout.Update(progress=Progress()), authority=chain.owner.pubkey())
    assert refused(chain, only_progress, chain.owner) == "ConfigSanityCheckFailed"
    only_config = layout.update(chain.run, layout.Update(config=CONFIG), authority=chain.owner.pubkey())
    assert refused(chain, only_config, chain.owner) == "ModelSanityCheckFailed"
    assert chain.account.state is None


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


@pytest.mark.parametrize("version", [1, 2, 3])
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


def test_staging_ends_where_it_ends(chain: CoordinatorSvm) -> None:
    owner = chain.owner.pubkey()
    good = layout.stage(chain.run, authority=owner, offset=4090, content=b"123456")
    assert refused(chain, good, chain.owner) is None
    assert chain.data()[-6:] == b"123456"
    over = Instruction(good.program_id, bytes(good.data) + b"7", good.accounts)
    assert refused(chain, over, chain.owner) == "TooLong"
    with pytest.raises(ValueError, match="staging"):
        layout.stage(chain.run, authority=owner, offset=4096, content=b"1")


def test_every_command_counts(chain: CoordinatorSvm) -> None:
    nonce = chain.account.nonce
    assert joined(chain) is None
    assert chain.account.nonce == nonce + 1
    assert chain.do(commands.Resume(), chain.account.state).refusal == "CannotResume"  # type: ignore[arg-type]
    assert chain.account.nonce == nonce + 1


def test_metadata_and_client_version(chain: CoordinatorSvm) -> None:
    """The owner may tell people other things at any time; texts are texts."""
    metadata = RunMetadata("näme", "about it", 7, 8)
    given = layout.update(chain.run, layout.Update(metadata=metadata, client_version="2"), authority=chain.owner.pubkey())
    assert refused(chain, given, chain.owner) is None
    assert (chain.account.metadata, chain.account.client_version) == (metadata, "2")
    for place in (2, 2 + 64, 2 + 360):
        data = bytearray(given.data)
        data[place] = 0xFF
        assert refused(chain, Instruction(given.program_id, bytes(data), given.accounts), chain.owner) == "BadInstruction"
    unknown = bytes([given.data[0], 32]) + bytes(given.data)[2:]
    assert refused(chain, Instruction(given.program_id, unknown, given.accounts), chain.owner) == "BadInstruction"


def test_configuration_that_no_image_holds(chain: CoordinatorSvm) -> None:
    assert chain.do(commands.Pause(), chain.account.state).refusal is None  # type: ignore[arg-type]
    given = layout.update(chain.run, layout.Update(config=CONFIG), authority=chain.owner.pubkey())
    at = 2 - 128  # of the image's byte 128
    for place, byte in ((196, 2), (197, 1), (200, 17), (204, 1), (208, 1), (719, 1)):
        data = bytearray(given.data)
        data[at + place] = byte
        assert refused(chain, Instruction(given.program_id, bytes(data), given.accounts), chain.owner) == "BadInstruction", place
    given = layout.update(chain.run, layout.Update(model=MODEL), authority=chain.owner.pubkey())
    for place, byte, refusal in (
        (8, 6, "BadInstruction"),
        (72, 0x80, "BadInstruction"),
        (73, 2, "BadInstruction"),
        (139, 9, "TooLong"),
    ):
        data = bytearray(given.data)
        data[2 + place] = byte
        assert refused(chain, Instruction(given.program_id, bytes(data), given.accounts), chain.owner) == refusal, place
    image.decode(chain.image)


@pytest.mark.parametrize(
    "text", [b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"\x80", b"a\0b", b"\xf5\x80\x80\x80"]
)
def test_a_location_is_a_text(chain: CoordinatorSvm, text: bytes) -> None:
    """Or nobody could read the image any more."""
    config = CONFIG.model_copy(update={"checkpointers": (member(0).signer.hex(),)})
    state = replace(chain.fresh(config, MODEL), run_state=RunState.WaitingForMembers)
    chain.begin(state)
    given = layout.checkpoint(chain.run, {"Hub": {"repo_id": "€", "revision": "𝄞"}}, user=wallet(0).pubkey())
    data = bytearray(given.data)
    data[2:66] = text.ljust(64, b"\0")
    assert refused(chain, Instruction(given.program_id, bytes(data), given.accounts), wallet(0)) == "InvalidCheckpoint"
    data[2:66] = b"x".ljust(64, b"\0")
    data[67 : 67 + len(text)] = text
    assert refused(chain, Instruction(given.program_id, bytes(data), given.accounts), wallet(0)) == "InvalidCheckpoint"


def test_padding_of_a_statement(chain: CoordinatorSvm) -> None:
    given = members(chain, wallet(0).pubkey())["witness"]
    data = bytearray(given.data)
    data[1 + 11] = 1
    assert refused(chain, Instruction(given.program_id, bytes(data), given.accounts), wallet(0)) == "BadInstruction"
    long = Instruction(given.program_id, bytes(given.data) + bytes(257), given.accounts)
    assert refused(chain, long, wallet(0)) == "TooLong"


def test_extras_are_in_the_log(chain: CoordinatorSvm) -> None:
    user, key = wallet(0).pubkey(), transport_key(0)
    proof = sign_join(key, chain.instance, bytes(user))
    verified = layout.join_verified(chain.run, user=user, p2p=key.public, proof=proof)
    given = layout.join(chain.run, user=user, authorization=chain.authorization, p2p=key.public, proof=proof, address=b"here")
    answer = chain.send([verified, given], wallet(0))
    assert answer.refusal is None
    assert any(line.startswith("Program data: am9pbg==") for line in answer.logs)  # "join"
    long = bytearray(given.data)
    long[97:99] = (513).to_bytes(2, "little")
    over = Instruction(given.program_id, bytes(long) + bytes(600), given.accounts)
    assert refused(chain, over, wallet(0)) == "TooLong"


def test_foreign_accounts_are_not_read() -> None:
    with pytest.raises(WireError, match="bytes, got 0"):
        CoordinatorAccount.parse(b"")
    with pytest.raises(WireError, match="begin with"):
        CoordinatorAccount.parse(bytes(ACCOUNT_BYTES))
    with pytest.raises(WireError, match="version 4"):
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
