"""Compute units of the authorizer, the treasurer, the mining pool and the bond program, in an SVM in this process.

    python -m benchmarks.solana_programs [--json]

Each instruction is sent once as its users send it, in a transaction of its own; what setting the limit costs is taken off.
How many tries an address takes depends on the keys, which are the same every time: about 1,500 units each.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import struct
import sys
from dataclasses import replace

from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.system_program import CreateAccountParams, create_account

from plugins.backend_solana.tests.svm.program_chain import LAMPORTS, ProgramChain
from psyche_backend_solana.layouts import authorizer, bond, coordinator, mining_pool, tokens, treasurer
from psyche_backend_solana.layouts.coordinator_accounts import ACCOUNT_BYTES, ACCOUNT_VERSION, HEADER_BYTES, STAGING_BYTES
from psyche_backend_solana.programs.addresses import COORDINATOR
from psyche_core.coordinator import canonical_image as image
from psyche_core.coordinator.state import MAX_ACCOUNTS, Account, Client, CoordinatorState
from psyche_core.testing.backend import small_state
from psyche_core.types import ClientState, NodeIdentity, RunState

SETTING_THE_LIMIT = 150
FUNDS = 10**9


class Meter:
    """A chain whose keys follow from their names, and the units of what was measured on it."""

    def __init__(self) -> None:
        self.chain = ProgramChain()
        self.units: dict[str, int] = {}
        self.mint = self._token("collateral")
        self.redeemable = self._token("redeemable")

    def user(self, name: str) -> Keypair:
        """A funded key pair."""
        made = Keypair.from_seed(hashlib.sha256(name.encode()).digest())
        self.chain.svm.airdrop(made.pubkey(), LAMPORTS)
        return made

    def purse(self, owner: Pubkey, mint: Pubkey, amount: int = 0) -> Pubkey:
        """An associated token account with so many units."""
        return self.chain.tokens(owner, mint, amount, at=tokens.associated(owner, mint))

    def measure(self, name: str, instruction: Instruction, *signers: Keypair) -> None:
        """Send it, and note what it took under `name`."""
        self.units[name] = self.chain.send(instruction, signers=signers).compute_units - SETTING_THE_LIMIT

    def _token(self, name: str) -> Pubkey:
        key = Pubkey(hashlib.sha256(name.encode()).digest())
        found = self.chain.mint(FUNDS)
        self.chain.svm.set_account(key, self.chain.account(found))
        return key


def measure_authorizer(meter: Meter) -> None:
    payer, grantor, grantee = (meter.user(name) for name in ("payer", "grantor", "grantee"))
    at = authorizer.address(grantor.pubkey(), grantee.pubkey())

    def naming(count: int, *, clear: bool = False, others: bool = False) -> Instruction:
        keys = [Pubkey(hashlib.sha256(bytes([place, count, others])).digest()) for place in range(count)]
        return authorizer.grantee_update(payer.pubkey(), grantee.pubkey(), authorization=at, add=keys, clear=clear)

    meter.measure(
        "authorizer.create", authorizer.create(payer.pubkey(), grantor.pubkey(), grantee=grantee.pubkey()), payer, grantor
    )
    meter.measure("authorizer.grantor_update", authorizer.grantor_update(grantor.pubkey(), at, active=True), grantor)
    meter.measure("authorizer.grantee_update: 28 more delegates", naming(28), payer, grantee)
    for count in range(27, 19, -1):
        meter.chain.send(naming(count), signers=[payer, grantee])
    meter.chain.send(naming(12), signers=[payer, grantee])
    most = naming(28, others=True)  # as many as a transaction carries, into the last places
    meter.measure("authorizer.grantee_update: 28 more, 228 there", most, payer, grantee)
    meter.measure("authorizer.grantee_update: cleared", naming(0, clear=True), payer, grantee)
    meter.chain.send(authorizer.grantor_update(grantor.pubkey(), at, active=False), signers=[grantor])
    meter.measure("authorizer.close", authorizer.close(grantor.pubkey(), payer.pubkey(), authorization=at), grantor)


def measure_treasurer(meter: Meter) -> None:
    payer, owner, user, other = (meter.user(name) for name in ("payer", "owner", "user", "other"))
    room = Keypair.from_seed(hashlib.sha256(b"coordinator account").digest())
    lamports = meter.chain.svm.minimum_balance_for_rent_exemption(ACCOUNT_BYTES)
    account = room.pubkey()
    made = CreateAccountParams(
        from_pubkey=payer.pubkey(), to_pubkey=account, lamports=lamports, space=ACCOUNT_BYTES, owner=COORDINATOR
    )
    meter.chain.send(create_account(made), signers=[payer, room])
    instance = coordinator.instance_address("measured")[0]
    treasury = treasurer.Treasury.of(1, mint=meter.mint, instance=instance, coordinator=account)
    run = coordinator.Run(instance, account)
    purse, winnings = meter.purse(owner.pubkey(), meter.mint, FUNDS), meter.purse(user.pubkey(), meter.mint)
    create = treasurer.run_create(
        payer.pubkey(),
        treasury,
        index=1,
        main_authority=owner.pubkey(),
        join_authority=room.pubkey(),
        run_id="measured",
        client_version="1",
    )
    meter.measure("treasurer.run_create", create, payer, room)
    rates = coordinator.set_future_epoch_rates(run, authority=treasury.run, earning_total_shared=1)
    state = small_state(run_id="measured")
    wanted = coordinator.Update(config=state.config, model=state.model)
    for command in coordinator.staged_update(run, wanted, authority=treasury.run):
        meter.chain.send(treasurer.run_update(owner.pubkey(), treasury, command=command), signers=[owner])
    meter.measure("treasurer.run_update: rates", treasurer.run_update(owner.pubkey(), treasury, command=rates), owner)
    meter.measure("treasurer.top_up", treasurer.top_up(owner.pubkey(), purse, treasury=treasury, amount=1000), owner)
    for someone in (user, other):
        create = treasurer.participant_create(payer.pubkey(), someone.pubkey(), treasury=treasury)
        meter.measure("treasurer.participant_create", create, payer)
    _earn(meter, account, user.pubkey(), 10)
    claim = treasurer.participant_claim(user.pubkey(), user.pubkey(), destination=winnings, treasury=treasury, amount=10)
    meter.measure(f"treasurer.participant_claim: of {MAX_ACCOUNTS} accounts", claim, user)
    shown = [treasurer.participant_address(treasury.run, other.pubkey())]
    for number in range(treasurer.MOST_SETTLED - 1):
        someone = meter.user(f"settled {number}")
        meter.chain.send(treasurer.participant_create(payer.pubkey(), someone.pubkey(), treasury=treasury), signers=[payer])
        shown.append(treasurer.participant_address(treasury.run, someone.pubkey()))
    settle = treasurer.run_settle(owner.pubkey(), treasury=treasury, show=shown)
    meter.measure(f"treasurer.run_settle: {len(shown)} of {MAX_ACCOUNTS} accounts", settle, owner)
    withdraw = treasurer.run_withdraw_unused(owner.pubkey(), purse, treasury=treasury)
    meter.measure(f"treasurer.run_withdraw_unused: {MAX_ACCOUNTS} accounts", withdraw, owner)
    release = treasurer.run_release(user.pubkey(), treasury=treasury)
    meter.measure(f"treasurer.run_release: of {MAX_ACCOUNTS} accounts", release)
    close = treasurer.participant_close(other.pubkey(), payer.pubkey(), run=treasury.run)
    meter.measure("treasurer.participant_close", close, other)
    meter.chain.advance()
    close = treasurer.run_close(owner.pubkey(), payer.pubkey(), destination=purse, treasury=treasury)
    meter.measure(f"treasurer.run_close: {MAX_ACCOUNTS} accounts", close, owner)


def _earn(meter: Meter, account: Pubkey, user: Pubkey, points: int) -> None:
    """As many accounts as there may be, one of them with points."""
    found = meter.chain.account(account)
    data = bytes(found.data)
    state = image.decode(data[HEADER_BYTES : HEADER_BYTES + image.SIZE])
    others = {hashlib.sha256(struct.pack("<H", place)).digest(): 0 for place in range(MAX_ACCOUNTS - 1)}
    accounts = tuple(Account(key, earned, 0) for key, earned in sorted({**others, bytes(user): points}.items()))
    changed = image.encode(replace(state, accounts=accounts))
    meter.chain.put(account, data[:HEADER_BYTES] + changed + data[HEADER_BYTES + image.SIZE :], found.owner)


def measure_mining_pool(meter: Meter) -> None:
    payer, authority, user, other = (meter.user(name) for name in ("payer", "authority", "user", "other"))
    pool = mining_pool.pool_address(1)
    vault, pot = tokens.associated(pool, meter.mint), tokens.associated(pool, meter.redeemable)
    own, winnings = meter.purse(user.pubkey(), meter.mint, FUNDS), meter.purse(user.pubkey(), meter.redeemable)
    treasury = meter.purse(authority.pubkey(), meter.mint)
    keys = payer.pubkey(), authority.pubkey()
    meter.measure(
        "mining_pool.pool_create", mining_pool.pool_create(*keys, index=1, mint=meter.mint, metadata="m"), payer, authority
    )
    update = mining_pool.pool_update(authority.pubkey(), pool, cap=FUNDS, lender_cap=FUNDS, metadata="x" * 400)
    meter.measure("mining_pool.pool_update", update, authority)
    for someone in (user, other):
        create = mining_pool.lender_create(payer.pubkey(), someone.pubkey(), pool=pool)
        meter.measure("mining_pool.lender_create", create, payer)
    close = mining_pool.lender_close(other.pubkey(), payer.pubkey(), pool=pool)
    meter.measure("mining_pool.lender_close", close, other)
    meter.measure(
        "mining_pool.lender_deposit", mining_pool.lender_deposit(user.pubkey(), own, pool=pool, vault=vault, amount=100), user
    )
    extract = mining_pool.pool_extract(authority.pubkey(), treasury, pool=pool, vault=vault, amount=40)
    meter.measure("mining_pool.pool_extract", extract, authority)
    claimable = mining_pool.pool_claimable(*keys, pool=pool, mint=meter.redeemable)
    meter.measure("mining_pool.pool_claimable", claimable, payer, authority)
    meter.chain.tokens(pool, meter.redeemable, FUNDS, at=pot)
    meter.measure(
        "mining_pool.lender_claim", mining_pool.lender_claim(user.pubkey(), winnings, pool=pool, vault=pot, amount=7), user
    )
    meter.measure("mining_pool.pool_refundable", mining_pool.pool_refundable(authority.pubkey(), pool), authority)
    meter.measure(
        "mining_pool.lender_refund", mining_pool.lender_refund(user.pubkey(), own, pool=pool, vault=vault, amount=60), user
    )


def measure_bond(meter: Meter) -> None:
    """In a full epoch whose last client is the one that was ejected, with 255 others pending."""
    payer, authority, user, other = (meter.user(name) for name in ("payer", "bond authority", "bonded", "bonded too"))
    account = Pubkey(hashlib.sha256(b"bonded run").digest())
    instance, bump = coordinator.instance_address("bonded")
    terms = bond.terms_of(bond.bonds_address(authority.pubkey(), instance), mint=meter.mint, instance=instance, account=account)
    keys = bytes(authority.pubkey()) + bytes(terms.bonds) + bytes(account)
    made = (struct.pack("<8sIB3x", b"PsycheRI", 1, bump) + keys + b"bonded").ljust(256, b"\0")
    meter.chain.put(instance, made, COORDINATOR)
    purses = {who: meter.purse(who.pubkey(), meter.mint, FUNDS) for who in (user, other)}
    crowd = [NodeIdentity(*[hashlib.sha256(struct.pack("<H", place)).digest()] * 2) for place in range(255)]
    ejected = Client(NodeIdentity(bytes(user.pubkey()), bytes(user.pubkey())), ClientState.Ejected)
    state = replace(small_state(), run_state=RunState.Paused, instance=bytes(account), pending=tuple(crowd))
    full = replace(state, epoch=replace(state.epoch, clients=(*map(Client, crowd), ejected)))

    def become(state: CoordinatorState) -> None:
        header = struct.pack("<8sI12x32s", b"PsycheCo", ACCOUNT_VERSION, bytes(instance)).ljust(HEADER_BYTES, b"\0")
        meter.chain.put(account, header + image.encode(state) + bytes(STAGING_BYTES), COORDINATOR)

    become(state)
    create = bond.create(payer.pubkey(), authority.pubkey(), terms=terms, amount=100, waiting=60)
    meter.measure("bond.create", create, payer, authority)
    meter.chain.send(bond.deposit(user.pubkey(), purses[user], terms=terms, amount=100, waiting=60), signers=[user])
    become(full)
    meter.measure("bond.deposit", bond.deposit(other.pubkey(), purses[other], terms=terms, amount=100, waiting=60), other)
    meter.measure("bond.withdraw_begin", bond.withdraw_begin(other.pubkey(), terms=terms), other)
    meter.chain.advance(60)
    meter.measure("bond.withdraw", bond.withdraw(other.pubkey(), purses[other], terms=terms), other)
    meter.measure("bond.forfeit", bond.forfeit(user.pubkey(), terms=terms))
    meter.measure("bond.close", bond.close(authority.pubkey(), payer.pubkey(), terms=terms), authority)


def compute_units() -> dict[str, int]:
    """Compute units by instruction, "authorizer.create" and so on; after a colon, what is special about it."""
    meter = Meter()
    measure_authorizer(meter)
    measure_treasurer(meter)
    measure_mining_pool(meter)
    measure_bond(meter)
    return meter.units


def main() -> None:
    parser = argparse.ArgumentParser(description="Compute units of the programs beside the coordinator's.")
    parser.add_argument("--json", action="store_true", help="print JSON")
    units = compute_units()
    if parser.parse_args().json:
        sys.stdout.write(json.dumps(units, indent=2) + "\n")
    else:
        sys.stdout.write("".join(f"{found:8,}  {name}\n" for name, found in units.items()))


if __name__ == "__main__":
    main()
