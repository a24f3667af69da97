"""Commands about money, run as a shell would run them: tokens, treasurers, mining pools, wallets."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from solders.account import Account
from solders.pubkey import Pubkey

from plugins.backend_solana.tests.commands.shell import SOLANA, Shell, said
from psyche_backend_solana.commands.authority import default_index
from psyche_backend_solana.commands.token_amounts import amount_of, units_of
from psyche_backend_solana.layouts import mining_pool as layout
from psyche_backend_solana.layouts import tokens, treasurer
from psyche_backend_solana.programs.addresses import TOKEN
from psyche_core.coordinator.state import Account as Balance
from psyche_core.errors import ConfigError


@pytest.mark.parametrize(("text", "units"), [("1", 1_000_000), ("0.000001", 1), ("12.5", 12_500_000)])
def test_amounts(text: str, units: int) -> None:
    assert units_of(text, 6) == units
    assert amount_of(units, 6) == text


@pytest.mark.parametrize(("units", "decimals", "text"), [(0, 6, "0"), (100, 0, "100"), (2**64 - 1, 9, "18446744073.709551615")])
def test_amounts_are_written_whole(units: int, decimals: int, text: str) -> None:
    assert amount_of(units, decimals) == text


@pytest.mark.parametrize("text", ["0", "-1", "0.0000001", "1e30", "NaN", "Infinity", "x", ""])
def test_bad_amounts(text: str) -> None:
    with pytest.raises(ConfigError, match="expected an amount"):
        units_of(text, 6)


MOST_FEES = 20_000


def lamports(shell: Shell, wallet: str) -> int:
    account = shell.portal.call(shell.chain.account, str(shell.wallet(wallet).pubkey))
    return 0 if account is None else account.lamports


def returned(said: str) -> int:
    """Lamports that came back, as closing a run says it."""
    return round(float(said.partition("is closed; ")[2].split()[0]) * 10**9)


def a_token(shell: Shell, *, holder: str, amount: int) -> str:
    """A new token of 6 decimals, of which a wallet has so many units."""
    mint = Pubkey.new_unique()
    content = struct.pack("<I32sQBBI32s", 0, bytes(32), amount, 6, 1, 0, bytes(32))
    owner = shell.wallet(holder).pubkey
    held = struct.pack("<32s32sQI32sBIQQI32s", bytes(mint), bytes(owner), amount, 0, bytes(32), 1, 0, 0, 0, 0, bytes(32))
    for at, data in ((mint, content), (tokens.associated(owner, mint), held)):
        shell.portal.call(shell.chain.set_account, str(at), Account(10**9, data, TOKEN))
    return str(mint)


def units(shell: Shell, wallet: str, mint: str) -> int:
    at = tokens.associated(shell.wallet(wallet).pubkey, Pubkey.from_string(mint))
    found = shell.portal.call(shell.chain.account, str(at))
    return 0 if found is None else tokens.parse(found).amount


def pay(shell: Shell, run: str, **earned: int) -> None:
    """Write into the run's state what members (wallets) have earned, as the end of an epoch would."""
    balances = (Balance(bytes(shell.wallet(wallet).pubkey), units) for wallet, units in earned.items())
    accounts = tuple(sorted(balances, key=lambda balance: balance.signer))
    shell.change_state(run, lambda state: replace(state, accounts=accounts))


def test_a_run_that_is_paid_for_by_a_treasurer(shell: Shell) -> None:
    mint = a_token(shell, holder="owner", amount=10_000_000)
    assert "give --treasurer-collateral-mint" in shell(
        "create-run", "-r", "paid", "--treasurer-index", "1", wallet="owner", code=2
    )
    made = shell.json("create-run", "-r", "paid", "--treasurer-collateral-mint", mint, wallet="owner")
    assert made["treasurer_run"] == shell.json("json-dump-run", "-r", "paid")["main_authority"]
    shell("update-config", "-r", "paid", "--config-path", str(shell.config), wallet="owner")
    shell("set-future-epoch-rates", "-r", "paid", "--earning-rate-total-shared", "0.001", wallet="owner")
    assert shell.json("json-dump-run", "-r", "paid")["future_rates"] == {"earning_total_shared": 1000, "slashing_per_client": 0}
    said = shell("set-future-epoch-rates", "-r", "paid", "--slashing-rate-per-client", "0.0000001", wallet="owner", code=2)
    assert "at most 6 decimals" in said
    shell("set-paused", "-r", "paid", "--resume", wallet="owner")
    assert "belongs to" in shell("set-paused", "-r", "paid", wallet="member", code=2)

    pay(shell, "paid", member=2_500_000)
    assert "the vault is empty" in shell("treasurer-claim-rewards", "-r", "paid", wallet="member", code=2)
    shell("treasurer-top-up-rewards", "-r", "paid", "--collateral-amount", "2", wallet="owner")
    treasury = shell.json("json-dump-run", "-r", "paid")["treasurer"]
    assert (treasury["held"], treasury["owed"], treasury["missing"]) == (2_000_000, 2_500_000, 500_000)
    assert "500000 more are owed" in shell("treasurer-claim-rewards", "-r", "paid", wallet="member")
    assert units(shell, "member", mint) == 2_000_000
    shell("treasurer-top-up-rewards", "-r", "paid", "--collateral-amount", "1.5", wallet="owner")
    shell("treasurer-claim-rewards", "-r", "paid", wallet="member")
    assert units(shell, "member", mint) == 2_500_000
    assert "nothing is owed" in shell("treasurer-claim-rewards", "-r", "paid", wallet="member", code=2)
    user = shell.json("json-dump-user", "-r", "paid", "--address", str(shell.wallet("member").pubkey))
    assert user["treasurer"] == {"claimed": 2_500_000, "claimable": 0}

    shell("set-paused", "-r", "paid", wallet="owner")
    shell.pass_time(1)
    before = lamports(shell, "owner")
    said = shell("close-run", "-r", "paid", wallet="owner")
    assert said.endswith("SOL of rent and 1 tokens of its vault came back to this wallet\n")
    assert returned(said) == pytest.approx(lamports(shell, "owner") - before, abs=MOST_FEES)
    assert units(shell, "owner", mint) == 10_000_000 - 2_500_000
    assert "there is no run" in shell("treasurer-claim-rewards", "-r", "paid", wallet="member", code=2)


def a_paid_run(shell: Shell, name: str, mint: str, vault: str) -> None:
    """A run that pays in a token of the owner's, paused. vault: tokens put in."""
    shell("create-run", "-r", name, "--treasurer-collateral-mint", mint, wallet="owner")
    shell("update-config", "-r", name, "--config-path", str(shell.config), wallet="owner")
    shell("treasurer-top-up-rewards", "-r", name, "--collateral-amount", vault, wallet="owner")


def test_an_owner_pays_all_members_and_can_close_the_run(shell: Shell) -> None:
    mint = a_token(shell, holder="owner", amount=10_000_000)
    a_paid_run(shell, "everybody", mint, "1.5")
    assert "nobody is owed" in shell("treasurer-pay-members", "-r", "everybody", wallet="owner", code=2)
    owed = {f"worker{number}": 100_000 * (number + 1) for number in range(8)}
    for name in owed:
        shell.wallet(name, lamports=0)  # without a lamport of their own
    pay(shell, "everybody", **owed)
    run = Pubkey.from_string(shell.json("json-dump-run", "-r", "everybody")["main_authority"])
    at = treasurer.participant_address(run, shell.wallet("worker3").pubkey)
    shell.portal.call(shell.chain.airdrop, str(at), 10**6)  # anybody can, and it is no participant for that

    assert "belongs to" in shell("treasurer-pay-members", "-r", "everybody", wallet="member", code=2)
    assert "pay them" in shell("close-run", "-r", "everybody", wallet="owner", code=2)
    first = shell.json("treasurer-pay-members", "-r", "everybody", wallet="owner")
    assert (first["units"], first["still_owed"]) == (1_500_000, 2_100_000)
    assert "the vault is empty" in shell("treasurer-pay-members", "-r", "everybody", wallet="owner", code=2)
    shell("treasurer-top-up-rewards", "-r", "everybody", "--collateral-amount", "3", wallet="owner")
    assert "2100000 units" in shell("treasurer-pay-members", "-r", "everybody", wallet="owner")
    assert {name: units(shell, name, mint) for name in owed} == owed
    assert shell("treasurer-free-balances", "-r", "everybody", wallet="member") == "8 balances of 'everybody' are freed\n"
    assert shell.json("json-dump-run", "-r", "everybody")["accounts"] == []
    assert "can be freed" in shell("treasurer-free-balances", "-r", "everybody", wallet="member", code=2)

    shell.pass_time(1)
    shell("close-run", "-r", "everybody", wallet="owner")
    assert units(shell, "owner", mint) == 10_000_000 - 3_600_000


def test_who_was_paid_by_a_run_of_the_same_name_before_is_paid_by_this_one(shell: Shell) -> None:
    mint = a_token(shell, holder="owner", amount=10_000_000)
    for earlier in (0, 1):
        a_paid_run(shell, "again", mint, "1")
        pay(shell, "again", member=100_000, other=100_000)
        user = shell.json("json-dump-user", "-r", "again", "--address", str(shell.wallet("member").pubkey))
        assert user["treasurer"] == {"claimed": 0, "claimable": 100_000}
        assert "100000 units" in shell("treasurer-claim-rewards", "-r", "again", wallet="member")
        assert "1 member was paid 100000" in shell("treasurer-pay-members", "-r", "again", wallet="owner")
        assert (units(shell, "member", mint), units(shell, "other", mint)) == (100_000 * (earlier + 1),) * 2
        shell.pass_time(1)  # no run is closed in the slot it was made in
        shell("close-run", "-r", "again", wallet="owner")


def squat(shell: Shell, name: str, mint: str) -> Pubkey:
    """A stranger takes the treasurer's number that follows from a run's name, for a run of its own; its vault."""
    other = f"not {name}"
    number = str(default_index(name))
    made = shell.json(
        "create-run", "-r", other, "--treasurer-collateral-mint", mint, "--treasurer-index", number, wallet="squatter"
    )
    return Pubkey.from_string(made["vault"])


def held(shell: Shell, vault: Pubkey) -> int:
    account = shell.portal.call(shell.chain.account, str(vault))
    return 0 if account is None else tokens.parse(account).amount


@pytest.mark.parametrize("first", [True, False], ids=["before the run is made", "afterwards"])
def test_who_takes_the_treasurers_number_of_a_name_gets_nothing(shell: Shell, first: bool) -> None:
    """The owner is paid for with the number of the name when it is free, and with the next one when it is not."""
    mint = a_token(shell, holder="owner", amount=10_000_000)
    name = f"squatted {first}"
    if first:
        vault = squat(shell, name, mint)
        a_paid_run(shell, name, mint, "2")
        assert shell.json("json-dump-run", "-r", name)["treasurer"]["held"] == 2_000_000
    else:
        shell("create-run", "-r", name, wallet="owner")
        vault = squat(shell, name, mint)
        for words in (("treasurer-top-up-rewards", "--collateral-amount", "2"), ("treasurer-claim-rewards",)):
            assert "no treasurer pays" in shell(words[0], "-r", name, *words[1:], wallet="owner", code=2)
        assert "treasurer" not in shell.json("json-dump-run", "-r", name)
    wrong = str(default_index("somebody else's"))
    said = shell("set-paused", "-r", name, "--treasurer-index", wrong, wallet="owner" if first else "member", code=2)
    assert "leave --treasurer-index out" in said
    assert held(shell, vault) == 0


def test_a_run_that_names_anothers_treasurer_is_paid_by_nobody(shell: Shell) -> None:
    """Anybody can make a run whose instance names the treasurer's run of somebody else as its owner."""
    mint = a_token(shell, holder="owner", amount=10_000_000)
    a_paid_run(shell, "honest", mint, "1")
    paying = shell.json("json-dump-run", "-r", "honest")["main_authority"]
    at = shell.json("create-run", "-r", "copycat", wallet="squatter")["instance"]
    account = shell.portal.call(shell.chain.account, at)
    assert account is not None
    data = bytes(account.data)[:16] + bytes(Pubkey.from_string(paying)) + bytes(account.data)[48:]
    shell.portal.call(shell.chain.set_account, at, Account(account.lamports, data, account.owner))
    for words in (("treasurer-top-up-rewards", "--collateral-amount", "1"), ("treasurer-claim-rewards",)):
        assert "pays another run" in shell(words[0], "-r", "copycat", *words[1:], wallet="owner", code=1)
    assert "pays another run" in shell("json-dump-run", "-r", "copycat", code=1)
    assert shell.json("json-dump-run", "-r", "honest")["treasurer"]["held"] == 1_000_000


def test_a_pool_of_somebody_else_gets_no_deposit(shell: Shell) -> None:
    mint = a_token(shell, holder="member", amount=5_000_000)
    pool = "mining-pool"
    shell(pool, "create", "--index", "9", "--mint", mint, wallet="squatter")
    shell(pool, "update", "--index", "9", "--cap", "4", "--lender-cap", "4", wallet="squatter")
    words = ("--index", "9", "--authority", str(shell.wallet("owner").pubkey), "--amount", "1")
    assert "nothing was deposited" in shell(pool, "deposit", *words, wallet="member", code=2)
    assert units(shell, "member", mint) == 5_000_000


def test_a_run_of_another_owner_than_the_one_named_is_refused(shell: Shell) -> None:
    """A name belongs to whoever took it first. Owned by a wallet, or for one by the treasurer."""
    owner, squatter = (("--owner", str(shell.wallet(name).pubkey)) for name in ("owner", "squatter"))
    mint = a_token(shell, holder="owner", amount=10_000_000)
    shell("create-run", "-r", "mine", wallet="owner")
    a_paid_run(shell, "mine and paid", mint, "1")
    for name in ("mine", "mine and paid"):
        assert shell.json("json-dump-run", "-r", name, *owner)["run_id"] == name
        for words in (("json-dump-run",), ("can-join", "--address", str(shell.wallet("member").pubkey))):
            said = shell(words[0], "-r", name, *words[1:], *squatter, code=1)
            assert f"belongs to {shell.wallet('owner').pubkey}" in said


def test_a_mining_pool(shell: Shell) -> None:
    mint, prize = a_token(shell, holder="member", amount=5_000_000), a_token(shell, holder="owner", amount=900)
    pool = "mining-pool"
    ours = ("--authority", str(shell.wallet("owner").pubkey))
    shell(pool, "create", "--index", "7", "--mint", mint, wallet="owner")
    said = shell(pool, "deposit", "--index", "7", *ours, "--amount", "1", wallet="member", code=1)
    assert "the deposit would exceed the pool's or the lender's limit" in said
    shell(pool, "update", "--index", "7", "--cap", "4", "--lender-cap", "4", wallet="owner")
    shell(pool, "deposit", "--index", "7", *ours, "--amount", "3", wallet="member")
    assert units(shell, "member", mint) == 2_000_000
    shell(pool, "extract", "--index", "7", "--amount", "1", wallet="owner")
    assert units(shell, "owner", mint) == 1_000_000
    assert "not open yet" in shell(pool, "claim", "--index", "7", wallet="member", code=2)
    vault = Pubkey.from_string(shell.json(pool, "open-claims", "--index", "7", "--mint", prize, wallet="owner")["vault"])
    holder = struct.pack("<32s32s", bytes(Pubkey.from_string(prize)), bytes(layout.pool_address(7)))
    filled = holder + struct.pack("<QI32sBIQQI32s", 900, 0, bytes(32), 1, 0, 0, 0, 0, bytes(32))
    shell.portal.call(shell.chain.set_account, str(vault), Account(10**9, filled, TOKEN))
    shell(pool, "claim", "--index", "7", wallet="member")
    assert units(shell, "member", prize) == 900
    assert "nothing to pay out" in shell(pool, "claim", "--index", "7", wallet="member", code=2)
    shell(pool, "open-refunds", "--index", "7", wallet="owner")
    shell(pool, "refund", "--index", "7", wallet="member")
    assert units(shell, "member", mint) == 4_000_000
    shown = shell.json(pool, "show", "--index", "7", "--address", str(shell.wallet("member").pubkey))
    assert (shown["deposited"], shown["lender"]["refunded"]) == (3_000_000, 2_000_000)
    assert "there is no pool 8" in shell(pool, "show", "--index", "8", code=2)


def test_wallets_are_made_and_filled(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "new.json"
    env = {"PSYCHE_RPC": shell.chain.rpc_url}

    def solana(*words: str) -> str:
        return CliRunner(env=env).invoke(SOLANA.load(), list(words), catch_exceptions=False).output.strip()

    address = solana("keygen", str(file))
    assert solana("address", str(file)) == address
    assert file.stat().st_mode & 0o777 == 0o600
    assert solana("balance", "--address", address) == "0.000000000 SOL"
    solana("airdrop", "--address", address, "--sol", "2.5")
    assert solana("balance", "--address", address) == "2.500000000 SOL"
    listed = json.loads(solana("programs", "--json", "--out", str(tmp_path / "so")))
    assert hashlib.sha256((tmp_path / "so" / "authorizer.so").read_bytes()).hexdigest() == listed["authorizer"]["sha256"]


def test_tokens_are_sent_to_a_wallet_that_has_none_yet(shell: Shell, run: str) -> None:
    mint, second = a_token(shell, holder="member", amount=10_000_000), shell.wallet("fresh", lamports=0).pubkey

    def send(amount: str, *, to: object = second, token: str = mint, code: int = 2) -> str:
        words = ["send-tokens", "--mint", token, "--to", str(to), "--amount", amount, "-w", str(shell.folder / "member.json")]
        result = CliRunner(env={"PSYCHE_RPC": shell.chain.rpc_url}).invoke(SOLANA.load(), words, catch_exceptions=True)
        return " ".join(said(result, code).split())

    assert f"2.5 tokens of {mint} were sent to {second}" in send("2.5", code=0)
    assert (units(shell, "fresh", mint), units(shell, "member", mint)) == (2_500_000, 7_500_000)
    send("0.5", code=0)
    assert units(shell, "fresh", mint) == 3_000_000
    assert "has 7 tokens of" in send("7.000001")
    assert "with at most 6 decimals, got '1.0000001'" in send("1.0000001")
    assert "above 0" in send("0")
    assert "names this wallet itself" in send("1", to=shell.wallet("member").pubkey)
    assert "is no wallet but an account of the program" in send("1", to=mint)
    other = Pubkey.new_unique()
    assert f"there is no token {other}" in send("1", token=str(other), code=1)
    assert "no mint of SPL Token" in send("1", token=str(shell.wallet("member").pubkey), code=1)
    assert f"has no tokens of {(dry := a_token(shell, holder='owner', amount=5))}" in send("0.000001", token=dry)
    assert units(shell, "member", mint) == 7_000_000
