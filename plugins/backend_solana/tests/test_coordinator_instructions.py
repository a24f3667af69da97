"""What the coordinator program refuses of an instruction: its data, who may join, what a configuration may hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from solders.instruction import Instruction
from solders.pubkey import Pubkey
from solders.system_program import TransferParams, transfer

from plugins.backend_solana.tests.coordinator_parts import (
    CONFIG,
    EVERY,
    MEMBERS,
    MODEL,
    THIEF,
    changed,
    every,
    members,
    refused,
)
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
    RunMetadata,
)
from psyche_core.coordinator import apply, commands
from psyche_core.coordinator import canonical_image as image
from psyche_core.coordinator.state import Progress
from psyche_core.types import RunState
from psyche_core.wire.messages import sign_commitment, sign_join


def joined(chain: CoordinatorSvm) -> str | None:
    """The refusal of the first wallet's join."""
    user = wallet(0).pubkey()
    return chain.send(
        layout.proved_join(chain.run, user=user, authorization=chain.authorization, key=transport_key(0)), wallet(0)
    ).refusal


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
    for number in (14, 20):
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
