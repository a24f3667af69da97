"""The ledger against a model of it: balances, repeated and late transactions, and being saved and restored at any moment."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from localnet_parts import START, paying
from solders.hash import Hash
from solders.keypair import Keypair
from solders.transaction import VersionedTransaction

from psyche_backend_solana.localnet.ledger.clock import Instant
from psyche_backend_solana.localnet.ledger.ledger import Ledger, Refused
from psyche_backend_solana.localnet.ledger.records import Landed
from psyche_backend_solana.localnet.ledger.snapshot import restore, take_snapshot
from psyche_core.wire.codec import decode, encode

KEYS = [Keypair.from_seed(bytes([number]) * 32) for number in range(1, 4)]
PEOPLE = st.integers(0, len(KEYS) - 1)
FEE = 5000
RENT = 890_880  # an account without data must hold this much, or nothing
START_BALANCE = 50_000_000


class Chain(RuleBasedStateMachine):
    """Three people pay each other."""

    @initialize()
    def begin(self) -> None:
        self.ledger = Ledger(unix=START)
        self.balances = [START_BALANCE] * len(KEYS)
        self.sent: list[tuple[VersionedTransaction, int, bool]] = []
        for key in KEYS:
            self.ledger.airdrop(key.pubkey(), START_BALANCE)
        self.ledger.take_events()

    @rule(payer=PEOPLE, to=PEOPLE, lamports=st.integers(0, START_BALANCE // 3), fast=st.booleans())
    def pay(self, payer: int, to: int, lamports: int, fast: bool) -> None:
        blockhash = Hash.from_string(self.ledger.blockhashes.latest)
        transaction = paying(KEYS[payer], KEYS[to].pubkey(), lamports, blockhash)
        if any(bytes(known) == bytes(transaction) for known, _, _ in self.sent):
            return

        if not fast:
            before = [self.ledger.balance(key.pubkey()) for key in KEYS]
            tried = self.ledger.simulate(transaction, verify=True)
            assert [self.ledger.balance(key.pubkey()) for key in KEYS] == before
        result = self.ledger.send(transaction)
        landed = not isinstance(result, Refused)
        self.sent.append((transaction, self.ledger.slot, landed))
        if not landed:
            assert self.balances[payer] - FEE < RENT
            return

        if not fast:
            assert tried.err == result.err
        self.balances[payer] -= FEE
        if result.err is None:
            self.balances[payer] -= lamports
            self.balances[to] += lamports
        else:
            assert self.balances[payer] - lamports < RENT or self.balances[to] + lamports < RENT
        (event,) = self.ledger.take_events()
        assert isinstance(event, Landed)
        assert event.record == result
        assert result.post_balances[0] == self.balances[payer]

    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        if self.sent:
            transaction, slot, landed = data.draw(st.sampled_from(self.sent))
            late = self.ledger.slot - slot > 150
            if landed or late:
                assert self.ledger.send(transaction) == Refused(err="BlockhashNotFound" if late else "AlreadyProcessed")

    @rule(slots=st.sampled_from([1, 2, 60, 149, 150, 151]))
    def wait(self, slots: int) -> None:
        self.ledger.begin_slot(Instant(self.ledger.slot + slots, self.ledger.unix + slots))
        self.ledger.take_events()

    @rule()
    def stop_and_go_on(self) -> None:
        saved = encode(take_snapshot(self.ledger))
        self.ledger = restore(decode(saved, max_bytes=len(saved), max_items=10**6), history=10_000)
        assert encode(take_snapshot(self.ledger)) == saved

    @invariant()
    def balances_are_the_models(self) -> None:
        assert [self.ledger.balance(key.pubkey()) for key in KEYS] == self.balances


Chain.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestChain = Chain.TestCase
