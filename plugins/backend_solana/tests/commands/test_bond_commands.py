"""Commands about bonds, run as a shell would run them, on a local chain with the real programs."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from zlib import crc32

import pytest
from click.testing import CliRunner
from solders.account import Account
from solders.pubkey import Pubkey

from plugins.backend_solana.tests.commands.shell import SOLANA, Shell, said
from psyche_backend_solana.layouts import tokens
from psyche_backend_solana.programs.addresses import TOKEN
from psyche_core.coordinator.state import Client, CoordinatorState
from psyche_core.types import ClientState, NodeIdentity, RunState
from psyche_core.verification.standing import Standing

WAITING = 600


class Bonds:
    """A run with bonds and two wallets with 10 tokens each."""

    def __init__(self, shell: Shell, name: str) -> None:
        self.shell, self.name = shell, name
        self.mint = Pubkey.new_unique()
        self.put(self.mint, struct.pack("<I32sQBBI32s", 0, bytes(32), 20_000_000, 6, 1, 0, bytes(32)))
        for who in ("member", "second"):
            owner = bytes(shell.wallet(who).pubkey)
            held = struct.pack("<32s32sQI32sBIQQI32s", bytes(self.mint), owner, 10**7, 0, bytes(32), 1, 0, 0, 0, 0, bytes(32))
            self.put(tokens.associated(shell.wallet(who).pubkey, self.mint), held)
        made = shell.json("create-run", "-r", name, "--with-bonds", wallet="owner")
        self.terms = made["join_authority"]

    def put(self, at: Pubkey, data: bytes) -> None:
        self.shell.portal.call(self.shell.chain.set_account, str(at), Account(10**9, data, TOKEN))

    def __call__(self, name: str, *words: str, wallet: str | None = None, code: int = 0) -> str:
        more = [] if wallet is None else ["-w", str(self.shell.folder / f"{wallet}.json")]
        runner = CliRunner(env={"PSYCHE_RPC": self.shell.chain.rpc_url})
        result = runner.invoke(SOLANA.load(), ["bond", name, "-r", self.name, *words, *more], catch_exceptions=True)
        return " ".join(said(result, code).split())

    def json(self, name: str, *words: str, wallet: str | None = None) -> Any:
        return json.loads(self(name, *words, "--json", wallet=wallet))

    def create(self, *words: str) -> str:
        said = self("create", "--mint", str(self.mint), "--amount", "2.5", "--waiting", str(WAITING), *words, wallet="owner")
        self.shell("update-config", "-r", self.name, "--config-path", str(self.shell.config), wallet="owner")
        self.shell("set-paused", "-r", self.name, "--resume", wallet="owner")
        return said

    def key(self, wallet: str) -> str:
        return str(self.shell.wallet(wallet).pubkey)

    def can_join(self, wallet: str, *, code: int = 0) -> str:
        return self.shell("can-join", "-r", self.name, "--address", self.key(wallet), code=code)

    def units(self, wallet: str) -> int:
        at = tokens.associated(self.shell.wallet(wallet).pubkey, self.mint)
        found = self.shell.portal.call(self.shell.chain.account, str(at))
        assert found is not None
        return tokens.parse(found).amount

    def supply(self) -> int:
        found = self.shell.portal.call(self.shell.chain.account, str(self.mint))
        assert found is not None
        return tokens.parse_mint(found).supply

    def ejecting(self, wallet: str, strikes: int) -> Callable[[CoordinatorState], CoordinatorState]:
        signer = bytes(self.shell.wallet(wallet).pubkey)
        client = Client(NodeIdentity(signer, b"k" * 32), ClientState.Ejected, standing=Standing(strikes=strikes))

        def change(state: CoordinatorState) -> CoordinatorState:
            return replace(state, run_state=RunState.Paused, epoch=replace(state.epoch, clients=(client,)))

        return change

    def left(self, wallet: str) -> Callable[[CoordinatorState], CoordinatorState]:
        """A cooldown that begins now, after an epoch whose only member has left."""
        client = Client(NodeIdentity(bytes(self.shell.wallet(wallet).pubkey), b"k" * 32), ClientState.Withdrawn)
        now = self.shell.portal.call(self.shell.chain.now).unix

        def change(state: CoordinatorState) -> CoordinatorState:
            return replace(state, run_state=RunState.Cooldown, since=now, epoch=replace(state.epoch, clients=(client,)))

        return change


@pytest.fixture
def bonds(shell: Shell, request: pytest.FixtureRequest) -> Bonds:
    name: str = request.node.name
    name = f"bonds {name.removeprefix('test_')[:17]} {crc32(name.encode()):08x}"  # at most 32 bytes, of each test another
    return Bonds(shell, name)


def test_a_bond_comes_and_goes(bonds: Bonds) -> None:
    shell = bonds.shell
    assert "its owner has not yet set their terms" in bonds("deposit", "--amount", "2.5", wallet="member", code=2)
    assert "it is burned for two signed results for one share" in bonds.create()
    refused = bonds.can_join("member", code=1)
    assert "the run takes a bond" in refused
    assert "psyche solana bond deposit" in refused
    assert "has no bond" in bonds("withdraw", wallet="member", code=2)
    assert "has 2.5 tokens, not 3; nothing was deposited" in bonds("deposit", "--amount", "3", wallet="member", code=2)
    put = bonds.json("deposit", "--amount", "2.5", wallet="member")
    assert (put["terms"], put["units"], bonds.units("member")) == (bonds.terms, 2_500_000, 7_500_000)
    assert "can join" in bonds.can_join("member")
    assert "has a bond" in bonds("deposit", "--amount", "2.5", wallet="member", code=2)
    shown = bonds.json("show", "--address", bonds.key("member"))
    assert (shown["grounds"], shown["waiting"], shown["held"], shown["bond"]["state"]) == (["signatures"], WAITING, 1, "Active")
    assert "members still have bonds" in bonds("close", wallet="owner", code=1)

    assert "cannot join" in bonds("withdraw", wallet="member")
    assert "has none that is active" in bonds.can_join("member", code=1)
    assert "the waiting time" in bonds("withdraw", wallet="member", code=1)
    assert "is being withdrawn" in bonds("deposit", "--amount", "2.5", wallet="member", code=2)
    shell.pass_time(WAITING + 1)
    assert "2.5 tokens were paid" in bonds("withdraw", wallet="member")
    assert bonds.units("member") == 10_000_000
    bonds("close", wallet="owner")
    assert "takes no bonds" in bonds("show", code=2)


def test_who_was_ejected_loses_its_bond(bonds: Bonds) -> None:
    bonds.create("--for-strikes")
    assert "agree with --for-strikes" in bonds("deposit", "--amount", "2.5", wallet="member", code=2)
    for wallet in ("member", "second"):
        bonds("deposit", "--amount", "2.5", "--for-strikes", wallet=wallet)
    assert "has a bond that is not burned yet" in bonds("forfeit", wallet="second")
    assert "does not show" in bonds("forfeit", "--address", bonds.key("member"), wallet="second", code=1)
    bonds.shell.change_state(bonds.name, bonds.ejecting("member", 2))
    assert bonds.json("forfeit", wallet="second")["burned"][0]["user"] == bonds.key("member")
    assert (bonds.supply(), bonds.units("second"), bonds.units("member")) == (17_500_000, 7_500_000, 7_500_000)
    assert bonds.json("forfeit", wallet="second")["burned"] == []
    assert "may not join" in bonds.can_join("member", code=1)
    assert "was forfeited" in bonds("deposit", "--amount", "2.5", "--for-strikes", wallet="member", code=2)
    assert "its tokens were burned" in bonds("withdraw", wallet="member")
    assert "has ejected this wallet" in bonds("deposit", "--amount", "2.5", "--for-strikes", wallet="member", code=1)
    assert "can join" in bonds.can_join("second")


def test_terms_without_strikes_do_not_convict_for_them(bonds: Bonds) -> None:
    bonds.create()
    bonds("deposit", "--amount", "2.5", wallet="member")
    bonds.shell.change_state(bonds.name, bonds.ejecting("member", 2))
    assert "on a ground of its terms (signatures)" in bonds("forfeit", "--address", bonds.key("member"), wallet="second", code=1)
    assert bonds.json("forfeit", wallet="second")["burned"] == []
    assert bonds.supply() == 20_000_000


def test_a_bond_outlives_its_run(bonds: Bonds) -> None:
    """Whose run was closed names the account of the terms."""
    bonds.create()
    bonds("deposit", "--amount", "2.5", wallet="member")
    bonds.shell("set-paused", "-r", bonds.name, wallet="owner")
    bonds.shell("close-run", "-r", bonds.name, wallet="owner")
    assert "if it was closed, give --terms" in bonds("withdraw", wallet="member", code=2)
    assert "holds no terms" in bonds("withdraw", "--terms", bonds.key("owner"), wallet="member", code=2)
    bonds("withdraw", "--terms", bonds.terms, wallet="member")
    bonds.shell.pass_time(WAITING + 1)
    bonds("withdraw", "--terms", bonds.terms, wallet="member")
    assert bonds.units("member") == 10_000_000
    bonds("close", "--terms", bonds.terms, wallet="owner")


def test_a_bond_outlives_its_run_though_somebody_takes_the_name(bonds: Bonds) -> None:
    bonds.create()
    bonds("deposit", "--amount", "2.5", wallet="member")
    bonds.shell("set-paused", "-r", bonds.name, wallet="owner")
    bonds.shell("close-run", "-r", bonds.name, wallet="owner")
    bonds.shell("create-run", "-r", bonds.name, wallet="second")
    assert "takes no bonds" in bonds("withdraw", wallet="member", code=2)
    bonds("withdraw", "--terms", bonds.terms, wallet="member")
    bonds.shell.pass_time(WAITING + 1)
    bonds("withdraw", "--terms", bonds.terms, wallet="member")
    assert bonds.units("member") == 10_000_000


def test_terms_that_were_exchanged_are_not_agreed_to(bonds: Bonds) -> None:
    bonds.create()
    words = ("deposit", "--amount", "2.5", "--mint", str(bonds.mint), "--waiting", str(WAITING))
    bonds("close", wallet="owner")
    bonds("create", "--mint", str(bonds.mint), "--amount", "2.5", "--waiting", "7776000", wallet="owner")
    assert "wait 90 days now (--waiting 7776000), not 600 s; nothing was deposited" in bonds(*words, wallet="member", code=2)
    other = bonds.key("owner")
    assert f"not of {other}; nothing" in bonds("deposit", "--amount", "2.5", "--mint", other, wallet="member", code=2)
    put = bonds("deposit", "--amount", "2.5", "--mint", str(bonds.mint), "--waiting", "7776000", wallet="member")
    assert f"tokens of {bonds.mint} are" in put
    assert "paid back 90 days after" in put


def test_a_wallet_without_enough_tokens_hears_how_many_it_has(bonds: Bonds) -> None:
    bonds("create", "--mint", str(bonds.mint), "--amount", "12", wallet="owner")
    assert "has 10 tokens of" in bonds("deposit", "--amount", "12", wallet="member", code=2)
    assert f"has no tokens of {bonds.mint}; a bond needs 12" in bonds("deposit", "--amount", "12", wallet="owner", code=2)


def test_terms_need_a_run_that_was_made_for_them(shell: Shell, run: str, bonds: Bonds) -> None:
    bonds.name = run
    said = bonds("create", "--mint", str(bonds.mint), "--amount", "1", wallet="owner", code=2)
    assert "create-run --with-bonds" in said
    assert "takes no bonds" in bonds("show", code=2)
    words = ("--with-bonds", "--join-authority", bonds.key("owner"))
    assert "leave --join-authority out" in shell("create-run", "-r", "x", *words, wallet="owner", code=2)


def test_a_withdrawal_ends_an_epoch_that_nobody_plays(bonds: Bonds) -> None:
    """Nobody else is there to tick: the last member has its bond back all the same."""
    bonds.create()
    bonds("deposit", "--amount", "2.5", wallet="member")
    bonds("withdraw", wallet="member")
    bonds.shell.pass_time(WAITING + 1)
    bonds.shell.change_state(bonds.name, bonds.left("member"))
    assert "does not end yet" in bonds("withdraw", wallet="member", code=1)
    bonds.shell.pass_time(11)
    assert "2.5 tokens were paid" in bonds("withdraw", wallet="member")


@pytest.mark.parametrize(
    ("named", "seconds", "text"),
    [
        ("cooldown_time", 29, "cooldown_time is 29 seconds: with less than 30 seconds"),
        ("cooldown_time", 7 * 86_400 + 1, "cooldown_time is 7 days 1 second: a bond is kept"),
        ("epoch_time", 8 * 86_400, "epoch_time is 8 days: a bond is kept"),
        ("cooldown_time", 30, None),
    ],
)
def test_times_that_are_bad_for_bonds_are_told(bonds: Bonds, named: str, seconds: int, text: str | None) -> None:
    times = {"cooldown_time": 60, "epoch_time": 1000} | {named: seconds}

    def change(state: CoordinatorState) -> CoordinatorState:
        return replace(state, config=state.config.model_copy(update=times))

    bonds.create()
    bonds.shell.change_state(bonds.name, change)
    bonds("close", wallet="owner")
    made = ("--mint", str(bonds.mint), "--amount", "2.5")
    for text_said in (
        bonds("create", *made, wallet="owner"),
        bonds("show"),
        bonds("deposit", "--amount", "2.5", wallet="member"),
    ):
        assert ("warning:" in text_said) == (text is not None)
        assert text is None or text in text_said
    assert len(bonds.json("show")["warnings"]) == (text is not None)


def test_what_the_issuer_of_the_token_can_do_is_told(bonds: Bonds) -> None:
    bonds.create()
    said = bonds("show")
    assert "nobody can create more of the token; nobody can freeze it" in said
    issuer, freezer = bonds.shell.wallet("owner").pubkey, bonds.shell.wallet("second").pubkey
    bonds.put(bonds.mint, struct.pack("<I32sQBBI32s", 1, bytes(issuer), 20_000_000, 6, 1, 1, bytes(freezer)))
    assert f"{issuer} can create more of the token; {freezer} can freeze it" in bonds("show")
    facts = bonds.json("show")
    assert (facts["mint_authority"], facts["freeze_authority"]) == (str(issuer), str(freezer))


def test_when_a_bond_is_free_is_told(bonds: Bonds) -> None:
    bonds("create", "--mint", str(bonds.mint), "--amount", "2.5", "--waiting", str(90 * 86_400), wallet="owner")
    bonds("deposit", "--amount", "2.5", wallet="member")
    shown = bonds("show", "--address", bonds.key("member"))
    assert "have them back 90 days after" in shown
    assert "1 bond is held" in shown
    assert "free from" not in shown
    begun = bonds("withdraw", wallet="member")
    facts = bonds.json("show", "--address", bonds.key("member"))["bond"]
    assert facts["free"] == facts["since"] + 90 * 86_400
    free = f"{datetime.fromtimestamp(facts['free'], UTC):%Y-%m-%d %H:%M:%S} UTC"
    assert f"over, at {free}" in begun
    assert f"is Leaving, and free from {free}" in bonds("show", "--address", bonds.key("member"))
    assert f"the bond is free from {free}" in bonds("withdraw", wallet="member", code=1)
    bonds.shell.pass_time(90 * 86_400 + 1)
    assert "were paid" in bonds("withdraw", wallet="member")


def test_what_the_token_program_refuses_is_not_read_as_ours(bonds: Bonds) -> None:
    """Its error 10 is no `it exists already`."""
    bonds.create()
    terms = Pubkey.from_string(bonds.terms)
    wrapped = (bytes(bonds.mint), bytes(terms), 5, 0, bytes(32), 1, 1, 10**6, 0, 0, bytes(32))
    bonds.put(tokens.associated(terms, bonds.mint), struct.pack("<32s32sQI32sBIQQI32s", *wrapped))
    assert "does not do this with wrapped SOL" in bonds("close", wallet="owner", code=1)


def test_the_owner_of_a_run_with_bonds_hears_that_a_grant_opens_nothing(bonds: Bonds) -> None:
    for _ in range(2):
        said = bonds.shell("join-authorization-create", "--authorizer", "1" * 32, wallet="owner")
        assert "bonds, and not this grant, decide who joins" in said
        assert repr(bonds.name) in said
    said = bonds.shell("join-authorization-create", "--authorizer", "1" * 32, wallet="second")
    assert "everybody may join now" in said


@pytest.mark.parametrize("closed", [False, True], ids=["run", "no-run"])
def test_a_burned_bond_outlives_its_terms(bonds: Bonds, closed: bool) -> None:
    bonds.create()
    bonds("deposit", "--amount", "2.5", wallet="member")
    bonds.shell.change_state(bonds.name, bonds.ejecting("member", 0))
    assert "1 bond burned" in bonds("forfeit", wallet="second")
    bonds("close", wallet="owner")
    words: tuple[str, ...] = ()
    if closed:
        bonds.shell("close-run", "-r", bonds.name, wallet="owner")
        words = ("--terms", bonds.terms)
    assert "its tokens were burned" in bonds("withdraw", *words, wallet="member")
    assert "no terms" in bonds("withdraw", *words, wallet="member", code=2) or not closed
    assert bonds.units("member") == 7_500_000
