"""In random runs of the real coordinator program, the bond program convicts exactly whom the state shows, and nobody else.

After each command, a forfeiture of every member's bond is rehearsed: ejections here are real ones, by proofs and by verdicts.
"""

from __future__ import annotations

from collections import Counter

import pytest
from solders.hash import Hash
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.transaction import Transaction
from solders.transaction_metadata import FailedTransactionMetadata
from solders.transaction_status import InstructionErrorCustom, TransactionErrorInstructionError

from plugins.backend_solana.tests.bond.bond_world import AMOUNT, CODES, WAITING, instance_account
from plugins.backend_solana.tests.svm.coordinator_svm import AUTHORIZER_ID, open_authorization
from plugins.backend_solana.tests.svm.differential import Comparison
from plugins.backend_solana.tests.svm.program_chain import ProgramChain
from psyche_backend_solana.layouts import bond, tokens
from psyche_backend_solana.lookup.bonds import convicted
from psyche_backend_solana.programs import load
from psyche_backend_solana.programs.addresses import AUTHORIZER, BOND, TOKEN
from psyche_core.coordinator.commands import Command
from psyche_core.coordinator.state import CoordinatorState
from psyche_core.types import ClientState

GROUNDS = (bond.Ground.Signatures, bond.Ground.Strikes, bond.Ground.Signatures | bond.Ground.Strikes)

WITH_STRIKES = (139, 262, 352)
"""Numbers of sequences in which somebody is ejected for strikes, of the first 600."""


class BondedRuns(Comparison):
    """Random runs whose members all have a bond. seen: how often a client was shown in each state, by ground if ejected."""

    def __init__(self, grounds: bond.Ground) -> None:
        super().__init__()
        self.grounds = grounds
        self.seen: Counter[str] = Counter()
        chain = self.chain
        for name, program in (("authorizer", AUTHORIZER), ("bond", BOND)):
            chain.svm.add_program(program, load(name))
        owner = chain.owner.pubkey()
        bonds = bond.bonds_address(owner, chain.run.instance)
        mint = Pubkey(b"m" * 32)
        made = ProgramChain([])
        coin = made.mint(10**9)
        chain.put(mint, bytes(made.account(coin).data), owner=TOKEN)
        chain.put(chain.run.instance, instance_account(chain.run_id, owner, bonds, chain.run.account))
        chain.put(chain.authorization, open_authorization(bonds), owner=AUTHORIZER_ID)
        self.terms = bond.terms_of(bonds, mint=mint, instance=chain.run.instance, account=chain.run.account)
        create = bond.create(owner, owner, terms=self.terms, amount=AMOUNT, waiting=WAITING, grounds=grounds)
        assert chain.send([create], chain.owner).refusal is None
        for wallet in chain.wallets.values():
            purse = tokens.associated(wallet.pubkey(), mint)
            held = made.tokens(wallet.pubkey(), mint, AMOUNT)
            chain.put(purse, bytes(made.account(held).data), owner=TOKEN)
            put = bond.deposit(wallet.pubkey(), purse, terms=self.terms, amount=AMOUNT, waiting=WAITING, grounds=grounds)
            assert chain.send([put], wallet, units=400_000).refusal is None

    def compare(self, state: CoordinatorState, command: Command, now: int) -> CoordinatorState:
        """As before; and each member's bond is tried."""
        after = super().compare(state, command, now)
        if after.epoch.clients == state.epoch.clients and self.seen:
            return after

        guilty = convicted(after, self.grounds)
        for client in after.epoch.clients:
            user = Pubkey(client.id.signer)
            ground = "strikes" if client.standing.ejected else "signatures"
            self.seen[f"ejected for {ground}" if client.state is ClientState.Ejected else client.state.name] += 1
            expected = None if user in guilty else CODES["NotEjected"]
            assert self.rehearsed(user) == expected, (user, client)
        return after

    def rehearsed(self, user: Pubkey) -> int | None:
        """The code with which the bond program refuses a forfeiture now, None if it would not."""
        payer: Keypair = self.chain.owner
        transaction = Transaction.new_signed_with_payer(
            [bond.forfeit(user, terms=self.terms)], payer.pubkey(), [payer], Hash.default()
        )
        found = self.chain.svm.simulate_transaction(transaction)
        if not isinstance(found, FailedTransactionMetadata):
            return None

        error = found.err()
        assert isinstance(error, TransactionErrorInstructionError), error
        assert isinstance(error.err, InstructionErrorCustom), error
        return error.err.code


@pytest.mark.parametrize("grounds", GROUNDS, ids=str)
def test_the_program_convicts_whom_the_state_shows(grounds: bond.Ground) -> None:
    runs = BondedRuns(grounds)
    for number in (*range(20), *WITH_STRIKES):
        runs.sequence(number, length=60)
    assert not runs.coverage.differences, "\n".join(runs.coverage.differences)
    print(runs.seen)
    assert set(runs.seen) == {"Healthy", "Dropped", "Withdrawn", "ejected for signatures", "ejected for strikes"}
