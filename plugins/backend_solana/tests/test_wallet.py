"""Wallets: what is accepted, what is refused, and that secrets are never shown."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path

import pytest
from solders.keypair import Keypair

from psyche_backend_solana.settings import SolanaSettings
from psyche_backend_solana.wallet import Wallet
from psyche_core.errors import IdentityError

KEYPAIR = Keypair.from_seed(bytes(range(32)))
ARRAY = json.dumps(list(bytes(KEYPAIR)))
SECRETS = (str(KEYPAIR), ARRAY, ARRAY[1:40], KEYPAIR.secret().hex())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "wallet.json"
    path.write_text(ARRAY)
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("text", [ARRAY, str(KEYPAIR), f"  {ARRAY}\n"])
def test_both_forms_are_read(text: str) -> None:
    assert Wallet.parse(text, source="x").pubkey == KEYPAIR.pubkey()


def test_a_file_is_read_and_written_back(file: Path, tmp_path: Path) -> None:
    wallet = Wallet.load(file)
    copied = tmp_path / "deep" / "copy.json"
    wallet.save(copied)
    assert copied.stat().st_mode & 0o777 == 0o600
    assert Wallet.load(copied).pubkey == wallet.pubkey
    with pytest.raises(IdentityError, match="cannot write"):
        wallet.save(copied)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_file_others_can_read_is_refused_unless_told_otherwise(file: Path, mode: int) -> None:
    file.chmod(mode)
    with pytest.raises(IdentityError, match="chmod 600"):
        Wallet.load(file)
    assert Wallet.load(file, allow_readable_by_others=True).pubkey == KEYPAIR.pubkey()


def test_a_missing_file_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(IdentityError, match=r"cannot read the wallet .*solana-keygen"):
        Wallet.load(tmp_path / "none.json")


WRONG_HALF = json.dumps([*bytes(KEYPAIR)[:32], *bytes(32)])


@pytest.mark.parametrize(
    "text", ["", "[1, 2]", "[" + "1," * 63 + "900]", ARRAY[:-3], "0OIl", str(KEYPAIR)[:-4], WRONG_HALF, '{"a": 1}', '["x"]']
)
def test_what_is_no_wallet_is_refused_without_quoting_it(text: str) -> None:
    with pytest.raises(IdentityError, match="the place holds no wallet") as raised:
        Wallet.parse(text, source="the place")
    shown = str(raised.value) + repr(raised.value)
    assert not text or text not in shown
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__


@pytest.mark.parametrize("form", ["array", "base58"])
def test_a_secret_of_zeros_is_refused(form: str) -> None:
    known = Keypair.from_seed(bytes(32))
    text = json.dumps(list(bytes(known))) if form == "array" else str(known)
    with pytest.raises(IdentityError, match="the secret in the file w consists of zeros, so that everybody can sign with it"):
        Wallet.parse(text, source="the file w")


def test_secrets_are_in_no_text_of_a_wallet() -> None:
    wallet = Wallet(KEYPAIR)
    shown = repr(wallet) + str(wallet) + f"{wallet!r:>5}"
    assert str(KEYPAIR.pubkey()) in shown
    assert not any(secret in shown for secret in SECRETS)
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(wallet)
    with pytest.raises(TypeError, match="pickled"):
        copy.deepcopy(wallet)


def test_secrets_are_in_no_text_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAW_WALLET_PRIVATE_KEY", str(KEYPAIR))
    settings = SolanaSettings()
    shown = repr(settings) + str(settings) + settings.model_dump_json()
    assert not any(secret in shown for secret in SECRETS)
    assert settings.wallet().pubkey == KEYPAIR.pubkey()


def test_the_prefixed_variable_is_read_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PSYCHE_RAW_WALLET_PRIVATE_KEY", ARRAY)
    assert SolanaSettings().wallet().pubkey == KEYPAIR.pubkey()


def test_two_wallets_are_an_error(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    monkeypatch.setenv("RAW_WALLET_PRIVATE_KEY", ARRAY)
    with pytest.raises(IdentityError, match="use one of them"):
        SolanaSettings(wallet_private_key_path=file).wallet()


def test_no_wallet_says_how_to_give_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(IdentityError, match="--wallet-private-key-path"):
        SolanaSettings().wallet()


def test_the_usual_wallet_is_used_if_none_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    usual = tmp_path / ".config" / "solana" / "id.json"
    assert SolanaSettings().wallet_file is None
    Wallet.generate().save(usual)
    assert SolanaSettings().wallet().pubkey == Wallet.load(usual).pubkey
    named = SolanaSettings(wallet_private_key_path=file)
    assert named.wallet().pubkey == Wallet.load(file).pubkey != Wallet.load(usual).pubkey
    usual.chmod(0o644)
    with pytest.raises(IdentityError, match="can be read by other users"):
        SolanaSettings().wallet()


def test_the_transport_key_is_of_the_wallet_and_the_run() -> None:
    one, other = Wallet(KEYPAIR), Wallet(Keypair.from_seed(bytes(32)))
    here, there = b"h" * 32, b"t" * 32
    keys = {one.p2p_key("a", here).public, one.p2p_key("b", here).public, other.p2p_key("a", here).public, bytes(one.pubkey)}
    assert len(keys | {one.p2p_key("a", there).public}) == 5, "a run made anew, or on another chain, has another instance"
    assert one.p2p_key("a", here).public == Wallet(KEYPAIR).p2p_key("a", here).public
    # a member must come back with the key it had: this value is for ever
    assert (
        one.p2p_key("first-light", b"h" * 32).public.hex() == "5872896bc22b0001428994c5481a177ea06af3407c8c2edf6a1272e698f8ea5f"
    )


@pytest.mark.anyio
async def test_signatures_are_the_wallets() -> None:
    assert (await Wallet(KEYPAIR).sign(b"message")).verify(KEYPAIR.pubkey(), b"message")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
