"""The pure parts of the local chain: base58, clock, blockhash window, amounts, errors, outbox order of values."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import pytest
from hypothesis import given
from hypothesis import strategies as st
from solders.account import Account
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.litesvm import LiteSVM
from solders.message import Message
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import VersionedTransaction
from solders.transaction_metadata import FailedTransactionMetadata

from psyche_backend_solana.localnet import ChainSettings, Instant, base58
from psyche_backend_solana.localnet.ledger.blockhashes import BlockhashWindow, next_hash
from psyche_backend_solana.localnet.ledger.clock import ChainClock
from psyche_backend_solana.localnet.ledger.tokens import amount_json
from psyche_backend_solana.localnet.ledger.transaction_errors import error_json, error_sentence
from psyche_backend_solana.localnet.rpc.encoding import Encoding, encode_account
from psyche_backend_solana.localnet.rpc_error import RpcError
from psyche_core.errors import ConfigError


@given(st.binary(max_size=100))
def test_base58_comes_back(data: bytes) -> None:
    assert base58.decode(base58.encode(data)) == data


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=64, max_size=64))
def test_base58_is_solanas(address: bytes, signature: bytes) -> None:
    assert base58.encode(address) == str(Pubkey.from_bytes(address))
    assert base58.encode(signature) == str(Signature.from_bytes(signature))


def test_base58_names_the_letter_that_is_none() -> None:
    with pytest.raises(ValueError, match="'0' is not a base58 character"):
        base58.decode("abc0")


@given(st.lists(st.integers(1, 200), max_size=30), st.data())
def test_a_blockhash_is_good_for_as_many_slots_as_asked(steps: list[int], data: st.DataObject) -> None:
    slot, value = 1, next_hash("11111111111111111111111111111112", 1)
    window, made = BlockhashWindow(slot, value), {1: value}
    for step in steps:
        slot, value = slot + step, next_hash(value, slot + step)
        window.add(slot, value)
        made[slot] = value
    assert len(set(made.values())) == len(made)
    assert window.latest == made[slot]
    within = data.draw(st.integers(0, 150))
    restored = BlockhashWindow.restored(window.items())
    for at, known in made.items():
        assert window.is_valid(known, within=within) == restored.is_valid(known, within=within) == (slot - at <= within)
    assert not window.is_valid("11111111111111111111111111111112")


@given(st.integers(1, 2000), st.lists(st.tuples(st.sampled_from(["advance", "slots", "time", "follow"]), st.integers(0, 500))))
def test_neither_time_nor_slots_go_back(slot_ms: int, moves: list[tuple[str, int]]) -> None:
    steady = 0.0
    clock = ChainClock(5, 1000.0, slot_ms=slot_ms, steady=steady)
    before = clock.now
    for move, amount in moves:
        match move:
            case "advance":
                after = clock.advance(amount / 10)
                assert after.slot > before.slot
            case "slots":
                after = clock.advance_slots(amount + 1)
                assert after.slot >= before.slot + amount + 1
            case "time":
                after = clock.set_time(before.unix + amount)
                assert (after.unix, after.slot) == (before.unix + amount, before.slot + 1)
            case _:
                steady += amount / 100
                after = clock.follow(steady)
                assert after.unix - before.unix <= amount / 100 + 1
                assert clock.follow(steady - 1) == after
        assert after.slot >= before.slot
        assert after.unix >= before.unix
        assert 0 < clock.until_next_slot() <= slot_ms / 1000
        before = after


def test_a_clock_by_hand() -> None:
    clock = ChainClock(1, 100.0, slot_ms=400, steady=None)
    assert clock.follow(1e9) == Instant(1, 100)
    assert clock.advance(4.0) == Instant(11, 104)
    assert clock.advance_slots(5) == Instant(16, 106)
    with pytest.raises(ValueError, match="got -1"):
        clock.advance(-1)
    with pytest.raises(ValueError, match="got 0"):
        clock.advance_slots(0)
    with pytest.raises(ValueError, match="it shows 106, got 105"):
        clock.set_time(105)
    assert clock.now == Instant(16, 106)


@pytest.mark.parametrize(
    ("amount", "decimals", "text"),
    [
        (0, 0, "0"),
        (100, 0, "100"),
        (100, 2, "1"),
        (12_500, 3, "12.5"),
        (1, 9, "0.000000001"),
        (2**64 - 1, 6, "18446744073709.551615"),
    ],
)
def test_amounts_of_tokens(amount: int, decimals: int, text: str) -> None:
    assert amount_json(amount, decimals)["uiAmountString"] == text


def test_errors_keep_their_names() -> None:
    """Each from the machine itself."""
    svm, payer, poor = LiteSVM(), Keypair(), Keypair()
    svm.airdrop(payer.pubkey(), 10**9)

    def failure(key: Keypair, data: bytes) -> object:
        instruction = Instruction(Pubkey.default(), data, [])
        message = Message.new_with_blockhash([instruction], key.pubkey(), svm.latest_blockhash())
        result = svm.send_transaction(VersionedTransaction(message, [key]))
        assert isinstance(result, FailedTransactionMetadata)
        return error_json(result.err())

    assert failure(payer, b"\xff") == {"InstructionError": [0, "InvalidInstructionData"]}
    assert failure(payer, b"\2\0\0\0" + bytes(8)) == {"InstructionError": [0, "MissingAccount"]}
    assert failure(poor, b"") == "AccountNotFound"
    with pytest.raises(TypeError, match="str"):
        error_json("AccountNotFound")
    custom = {"InstructionError": [3, {"Custom": 6001}]}
    assert error_sentence(custom) == "Error processing Instruction 3: custom program error: 0x1771"
    assert error_sentence("WouldExceedMaxBlockCostLimit") == "Would exceed max block cost limit"


def test_data_is_sliced_and_base58_is_for_small_data() -> None:
    account = Account(1, bytes(range(200)), Pubkey.default())

    def data(name: str, offset: int = 0, length: int | None = None) -> object:
        encoding = Encoding(name=name, offset=offset, length=length)
        return encode_account(account, encoding, decimals=lambda _: None)["data"]

    assert data("base64", 1, 2) == ["AQI=", "base64"]
    assert data("base58", 57, 2) == [base58.encode(bytes([57, 58])), "base58"]
    assert data("binary", 199, 50) == base58.encode(bytes([199]))
    assert data("base64", 500, 5) == ["", "base64"]
    assert data("jsonParsed", 0, 1) == ["AA==", "base64"]
    with pytest.raises(RpcError, match="less than 128 bytes"):
        data("base58")
    known = ("zstandard", *(("backports.zstd",) if find_spec("backports") else ()))  # other packages are in backports, too
    if any(find_spec(name) for name in known) or sys.version_info >= (3, 14):
        assert isinstance(data("base64+zstd"), list)
    else:
        with pytest.raises(RpcError, match="no zstd"):
            data("base64+zstd")


@pytest.mark.parametrize("wrong", [{"rpc_port": 70_000}, {"ws_port": -1}, {"slot_ms": 0}])
def test_settings_out_of_bounds_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        ChainSettings(**wrong)  # type: ignore[arg-type]
