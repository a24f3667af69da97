"""Every check of the mining pool refuses: each of its instructions, changed in one thing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from random_instructions import Thief
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from plugins.backend_solana.tests.mining_pool.mining_pool_world import CODES, INDEX, U64, World, settled
from plugins.backend_solana.tests.svm.program_chain import (
    Refused,
    exchanged,
    fewer_accounts,
    read_only,
    with_data,
    without_signer,
)
from psyche_backend_solana.layouts import mining_pool, tokens
from psyche_backend_solana.programs.addresses import MINING_POOL, TOKEN
from psyche_core.errors import WireError


@pytest.fixture(scope="module")
def opened() -> World:
    """With both pots open; only rehearsed upon."""
    return settled()


def happy(world: World) -> dict[str, tuple[Instruction, list[Keypair]]]:
    """The instructions that succeed before the openings."""
    payer, authority = world.payer, world.authority
    keys = payer.pubkey(), authority.pubkey()
    dave = Pubkey(b"dave ...........................")
    closing = mining_pool.lender_close(world.lenders[1].pubkey(), payer.pubkey(), pool=world.pool)
    return {
        "pool_create": (mining_pool.pool_create(*keys, index=9, mint=world.collateral, metadata="x"), [payer, authority]),
        "pool_update": (mining_pool.pool_update(authority.pubkey(), world.pool, cap=5, claims_frozen=True), [authority]),
        "pool_extract": (world.extracting(10), [authority]),
        "pool_claimable": (world.opening_claims(), [payer, authority]),
        "pool_refundable": (mining_pool.pool_refundable(authority.pubkey(), world.pool), [authority]),
        "lender_create": (mining_pool.lender_create(payer.pubkey(), dave, pool=world.pool), [payer]),
        "lender_deposit": (world.depositing(0, 10), [world.lenders[0]]),
        "lender_close": (closing, [world.lenders[1]]),
    }


def happy_after(world: World) -> dict[str, tuple[Instruction, list[Keypair]]]:
    """Those that succeed once both pots are open."""
    return {
        "lender_claim": (world.claiming(0, 10), [world.lenders[0]]),
        "lender_refund": (world.refunding(0, 10), [world.lenders[0]]),
    }


BEFORE = [
    "pool_create",
    "pool_update",
    "pool_extract",
    "pool_claimable",
    "pool_refundable",
    "lender_create",
    "lender_deposit",
    "lender_close",
]
AFTER = ["lender_claim", "lender_refund"]


def purse(world: World, owner: Pubkey | None = None, mint: Pubkey | None = None) -> Pubkey:
    return world.chain.tokens(owner or world.lenders[0].pubkey(), mint or world.collateral)


def poked(world: World, account: Pubkey, offset: int, value: bytes) -> Pubkey:
    """A copy of a token account or mint with some bytes changed."""
    data = bytes(world.chain.account(account).data)
    made = Pubkey.new_unique()
    world.chain.put(made, data[:offset] + value + data[offset + len(value) :], TOKEN)
    return made


DELEGATED, CLOSABLE, FROZEN = (72, b"\1"), (129, b"\1"), (108, b"\2")
Change = Callable[[World, Instruction], Instruction]
REFUSALS: list[tuple[str, str, Change, str]] = [
    ("pool_create", "payer signs", lambda _, i: without_signer(i, 0), "MissingSigner"),
    ("pool_create", "payer pays", lambda _, i: read_only(i, 0), "NotWritable"),
    ("pool_create", "authority signs", lambda _, i: without_signer(i, 1), "MissingSigner"),
    ("pool_create", "pool is written", lambda _, i: read_only(i, 2), "NotWritable"),
    ("pool_create", "its own address", lambda w, i: exchanged(i, 2, w.payer.pubkey()), "WrongAddress"),
    (
        "pool_create",
        "once",
        lambda w, i: exchanged(with_data(i, b"\0" + INDEX.to_bytes(8, "little")), 2, w.pool),
        "AlreadyExists",
    ),
    ("pool_create", "a mint", lambda w, i: exchanged(i, 4, w.payer.pubkey()), "WrongOwner"),
    ("pool_create", "not a token account", lambda w, i: exchanged(i, 4, w.purses[0]), "WrongKind"),
    ("pool_create", "a mint that is one", lambda w, i: exchanged(i, 4, poked(w, w.collateral, 45, b"\0")), "WrongKind"),
    ("pool_create", "the token program", lambda w, i: exchanged(i, 5, w.collateral), "WrongAddress"),
    ("pool_create", "the associated token program", lambda w, i: exchanged(i, 6, w.collateral), "WrongAddress"),
    ("pool_create", "the system program", lambda w, i: exchanged(i, 7, w.collateral), "WrongAddress"),
    ("pool_create", "all data", lambda _, i: with_data(i, bytes(8)), "BadInstruction"),
    ("pool_create", "metadata of 400", lambda _, i: with_data(i, bytes(i.data)[:9] + b"x" * 401), "TooLong"),
    ("pool_create", "all accounts", lambda _, i: fewer_accounts(i), "NotEnoughAccounts"),
    ("pool_update", "authority signs", lambda _, i: without_signer(i, 0), "MissingSigner"),
    ("pool_update", "the authority", lambda w, i: exchanged(i, 0, w.chain.payer.pubkey()), "NotAuthority"),
    ("pool_update", "pool is written", lambda _, i: read_only(i, 1), "NotWritable"),
    ("pool_update", "a pool", lambda w, i: exchanged(i, 1, w.purses[0]), "WrongOwner"),
    ("pool_update", "not a lender", lambda w, i: exchanged(i, 1, w.lender_key(0)), "WrongSize"),
    ("pool_update", "a known part", lambda _, i: with_data(i, b"\1\x20"), "BadInstruction"),
    ("pool_update", "a flag is 0 or 1", lambda _, i: with_data(i, b"\1\4\2"), "BadInstruction"),
    ("pool_update", "all data", lambda _, i: with_data(i, b"\1\1\0"), "BadInstruction"),
    ("pool_update", "no more data", lambda _, i: with_data(i, b"\1\4\0\0"), "BadInstruction"),
    ("pool_update", "metadata of 400", lambda _, i: with_data(i, b"\1\x10" + b"x" * 401), "TooLong"),
    ("pool_update", "all accounts", lambda _, i: fewer_accounts(i), "NotEnoughAccounts"),
    ("pool_extract", "authority signs", lambda _, i: without_signer(i, 0), "MissingSigner"),
    ("pool_extract", "the authority", lambda w, i: exchanged(i, 0, w.chain.payer.pubkey()), "NotAuthority"),
    ("pool_extract", "tokens are written", lambda _, i: read_only(i, 1), "NotWritable"),
    ("pool_extract", "pool is written", lambda _, i: read_only(i, 2), "NotWritable"),
    ("pool_extract", "vault is written", lambda _, i: read_only(i, 3), "NotWritable"),
    ("pool_extract", "the authority's tokens", lambda w, i: exchanged(i, 1, purse(w)), "WrongTokenOwner"),
    ("pool_extract", "no delegate", lambda w, i: exchanged(i, 1, poked(w, w.treasury, *DELEGATED)), "DelegatedTokens"),
    ("pool_extract", "of the mint", lambda w, i: exchanged(i, 1, purse(w, w.authority.pubkey(), w.redeemable)), "WrongMint"),
    ("pool_extract", "its own vault", lambda w, i: exchanged(i, 3, tokens.associated(w.other, w.collateral)), "WrongAddress"),
    ("pool_extract", "a pool", lambda w, i: exchanged(i, 2, w.purses[0]), "WrongOwner"),
    ("pool_extract", "the token program", lambda w, i: exchanged(i, 4, w.collateral), "WrongAddress"),
    ("pool_extract", "all data", lambda _, i: with_data(i, bytes(i.data)[:-1]), "BadInstruction"),
    ("pool_extract", "no more data", lambda _, i: with_data(i, bytes(i.data) + b"\0"), "BadInstruction"),
    ("pool_extract", "all accounts", lambda _, i: fewer_accounts(i), "NotEnoughAccounts"),
    ("pool_claimable", "payer signs", lambda _, i: without_signer(i, 0), "MissingSigner"),
    ("pool_claimable", "authority signs", lambda _, i: without_signer(i, 1), "MissingSigner"),
    ("pool_claimable", "the authority", lambda w, i: exchanged(i, 1, w.chain.payer.pubkey()), "NotAuthority"),
    ("pool_claimable", "pool is written", lambda _, i: read_only(i, 2), "NotWritable"),
    ("pool_claimable", "a pool", lambda w, i: exchanged(i, 2, w.purses[0]), "WrongOwner"),
    ("pool_claimable", "a mint", lambda w, i: exchanged(i, 4, w.payer.pubkey()), "WrongOwner"),
    ("pool_claimable", "another token", lambda w, i: exchanged(exchanged(i, 4, w.collateral), 3, w.vault), "SameMint"),
    ("pool_claimable", "the token program", lambda w, i: exchanged(i, 5, w.collateral), "WrongAddress"),
    ("pool_claimable", "the associated token program", lambda w, i: exchanged(i, 6, w.collateral), "WrongAddress"),
    ("pool_claimable", "the system program", lambda w, i: exchanged(i, 7, w.collateral), "WrongAddress"),
    ("pool_claimable", "no data", lambda _, i: with_data(i, b"\3\0"), "BadInstruction"),
    ("pool_claimable", "all accounts", lambda _, i: fewer_accounts(i), "NotEnoughAccounts"),
    ("pool_refundable", "authority signs", lambda _, i: without_signer(i, 0), "MissingSigner"),
    ("pool_refundable", "the authority", lambda w, i: exchanged(i, 0, w.chain.payer.pubkey()), "NotAuthority"),
    ("pool_refundable", "pool is written", lambda _, i: read_only(i, 1), "NotWritable"),
    ("pool_refundable", "a pool", lambda w, i: exchanged(i, 1, w.purses[0]), "WrongOwner"),
    ("pool_refundable", "no data", lambda _, i: with_data(i, b"\4\0"), "BadInstruction"),
    ("pool_refundable", "all accounts", lambda _, i: fewer_accounts(i), "NotEnoughAccounts"),
    ("lender_create", "payer signs", lambda _, i: without_signer(i, 0), "MissingSigner"),
    ("lender_create", "payer pays", lambda _, i: read_only(i, 0), "NotWritable"),
    ("lender_create", "pool is written", lambda _, i: read_only(i, 2), "NotWritable"),
    ("lender_create", "account is written", lambda _, i: read_only(i, 3), "NotWritable"),
    ("lender_create", "of this pool", lambda w, i: exchanged(i, 2, w.other), "WrongAddress"),
    ("lender_create", "of this user", lambda w, i: exchanged(i, 1, w.lenders[0].pubkey()), "WrongAddress"),
    (
        "lender_create",
        "once",
        lambda w, _: mining_pool.lender_create(w.payer.pubkey(), w.lenders[0].pubkey(), pool=w.pool),
        "AlreadyExists",
    ),
    ("lender_create", "a pool", lambda w, i: exchanged(i, 2, w.purses[0]), "WrongOwner"),
    ("lender_create", "the system program", lambda w, i: exchanged(i, 4, w.collateral), "WrongAddress"),
    ("lender_create", "no data", lambda _, i: with_data(i, b"\5\0"), "BadInstruction"),
    ("lender_create", "all accounts", lambda _, i: fewer_accounts(i), "NotEnoughAccounts"),
    ("lender_deposit", "user signs", lambda _, i: without_signer(i, 0), "MissingSigner"),
    ("lender_deposit", "the user", lambda w, i: exchanged(i, 0, w.chain.payer.pubkey()), "NotAuthority"),
    ("lender_deposit", "tokens are written", lambda _, i: read_only(i, 1), "NotWritable"),
    ("lender_deposit", "pool is written", lambda _, i: read_only(i, 2), "NotWritable"),
    ("lender_deposit", "lender is written", lambda _, i: read_only(i, 3), "NotWritable"),
    ("lender_deposit", "vault is written", lambda _, i: read_only(i, 4), "NotWritable"),
    ("lender_deposit", "the user's tokens", lambda w, i: exchanged(i, 1, purse(w, w.payer.pubkey())), "WrongTokenOwner"),
    ("lender_deposit", "of the mint", lambda w, i: exchanged(i, 1, w.winnings[0]), "WrongMint"),
    ("lender_deposit", "no delegate", lambda w, i: exchanged(i, 1, poked(w, w.purses[0], *DELEGATED)), "DelegatedTokens"),
    (
        "lender_deposit",
        "nobody else closes it",
        lambda w, i: exchanged(i, 1, poked(w, w.purses[0], *CLOSABLE)),
        "DelegatedTokens",
    ),
    ("lender_deposit", "not frozen", lambda w, i: exchanged(i, 1, poked(w, w.purses[0], *FROZEN)), "WrongKind"),
    ("lender_deposit", "a pool", lambda w, i: exchanged(i, 2, w.purses[0]), "WrongOwner"),
    ("lender_deposit", "of this pool", lambda w, i: exchanged(i, 2, w.other), "OtherPool"),
    ("lender_deposit", "a lender", lambda w, i: exchanged(i, 3, w.purses[0]), "WrongOwner"),
    ("lender_deposit", "of this user", lambda w, i: exchanged(i, 3, w.lender_key(1)), "NotAuthority"),
    ("lender_deposit", "its own vault", lambda w, i: exchanged(i, 4, tokens.associated(w.other, w.collateral)), "WrongAddress"),
    ("lender_deposit", "the token program", lambda w, i: exchanged(i, 5, w.collateral), "WrongAddress"),
    ("lender_deposit", "within 64 bits", lambda w, _: w.depositing(0, U64), "Overflow"),
    ("lender_deposit", "all data", lambda _, i: with_data(i, bytes(i.data)[:-1]), "BadInstruction"),
    ("lender_deposit", "no more data", lambda _, i: with_data(i, bytes(i.data) + b"\0"), "BadInstruction"),
    ("lender_deposit", "all accounts", lambda _, i: fewer_accounts(i), "NotEnoughAccounts"),
    ("lender_deposit", "claims are open", lambda w, _: w.claiming(0, 0), "ClaimsClosed"),
    ("lender_deposit", "refunds are open", lambda w, _: w.refunding(0, 0), "RefundsClosed"),
    ("lender_close", "user signs", lambda _, i: without_signer(i, 0), "MissingSigner"),
    ("lender_close", "spill is written", lambda _, i: read_only(i, 1), "NotWritable"),
    ("lender_close", "pool is written", lambda _, i: read_only(i, 2), "NotWritable"),
    ("lender_close", "lender is written", lambda _, i: read_only(i, 3), "NotWritable"),
    ("lender_close", "the user", lambda w, i: exchanged(i, 3, w.lender_key(2)), "NotAuthority"),
    ("lender_close", "of this pool", lambda w, i: exchanged(i, 2, w.other), "OtherPool"),
    ("lender_close", "a lender", lambda w, i: exchanged(i, 3, w.purses[0]), "WrongOwner"),
    ("lender_close", "a pool", lambda w, i: exchanged(i, 2, w.purses[0]), "WrongOwner"),
    ("lender_close", "not into itself", lambda w, i: exchanged(i, 1, w.lender_key(1)), "SameAccount"),
    ("lender_close", "no data", lambda _, i: with_data(i, b"\x09\0"), "BadInstruction"),
    ("lender_close", "all accounts", lambda _, i: fewer_accounts(i), "NotEnoughAccounts"),
    ("lender_close", "a known instruction", lambda _, i: with_data(i, b"\x0a"), "BadInstruction"),
    ("lender_close", "an instruction", lambda _, i: with_data(i, b""), "BadInstruction"),
]
PAYMENTS: list[tuple[str, Change, str]] = [
    ("user signs", lambda _, i: without_signer(i, 0), "MissingSigner"),
    ("the user", lambda w, i: exchanged(i, 0, w.chain.payer.pubkey()), "NotAuthority"),
    ("tokens are written", lambda _, i: read_only(i, 1), "NotWritable"),
    ("pool is written", lambda _, i: read_only(i, 2), "NotWritable"),
    ("lender is written", lambda _, i: read_only(i, 3), "NotWritable"),
    ("vault is written", lambda _, i: read_only(i, 4), "NotWritable"),
    ("a token account", lambda w, i: exchanged(i, 1, w.payer.pubkey()), "WrongOwner"),
    ("a pool", lambda w, i: exchanged(i, 2, w.purses[0]), "WrongOwner"),
    ("of this pool", lambda w, i: exchanged(i, 2, w.other), "OtherPool"),
    ("a lender", lambda w, i: exchanged(i, 3, w.purses[0]), "WrongOwner"),
    ("of this user", lambda w, i: exchanged(i, 3, w.lender_key(1)), "NotAuthority"),
    ("its own vault", lambda w, i: exchanged(i, 4, tokens.associated(w.other, w.collateral)), "WrongAddress"),
    ("the token program", lambda w, i: exchanged(i, 5, w.collateral), "WrongAddress"),
    ("all data", lambda _, i: with_data(i, bytes(i.data)[:-1]), "BadInstruction"),
    ("no more data", lambda _, i: with_data(i, bytes(i.data) + b"\0"), "BadInstruction"),
    ("all accounts", lambda _, i: fewer_accounts(i), "NotEnoughAccounts"),
    ("no more than everything", lambda _, i: with_data(i, bytes(i.data)[:1] + b"\xff" * 8), "OverShare"),
]


@pytest.mark.parametrize("name", BEFORE)
def test_without_a_change_each_succeeds(world: World, name: str) -> None:
    instruction, signers = happy(world)[name]
    world.chain.rehearse(instruction, signers=signers)


@pytest.mark.parametrize("name", AFTER)
def test_without_a_change_each_payment_succeeds(opened: World, name: str) -> None:
    instruction, signers = happy_after(opened)[name]
    opened.chain.rehearse(instruction, signers=signers)


@pytest.mark.parametrize(("name", "what", "change", "error"), REFUSALS, ids=lambda value: value if isinstance(value, str) else "")
def test_each_check_refuses(world: World, name: str, what: str, change: Change, error: str) -> None:
    instruction, signers = happy(world)[name]
    assert world.chain.refused(change(world, instruction), *signers) == CODES[error]


@pytest.mark.parametrize("name", AFTER)
@pytest.mark.parametrize(("what", "change", "error"), PAYMENTS, ids=lambda value: value if isinstance(value, str) else "")
def test_each_check_of_a_payment_refuses(opened: World, name: str, what: str, change: Change, error: str) -> None:
    instruction, signers = happy_after(opened)[name]
    assert opened.chain.refused(change(opened, instruction), *signers) == CODES[error]


@pytest.mark.parametrize(
    ("name", "owner", "refresh", "error"),
    [
        (name, owner, refresh, error)
        for name in AFTER
        for owner, refresh, error in (
            (1, None, "WrongTokenOwner"),
            (0, DELEGATED, "DelegatedTokens"),
            (0, CLOSABLE, "DelegatedTokens"),
            (0, FROZEN, "WrongKind"),
            (0, "mint", "WrongMint"),
        )
    ],
)
def test_payments_go_to_the_lenders_own_free_tokens(
    opened: World, name: str, owner: int, refresh: tuple[int, bytes] | str | None, error: str
) -> None:
    instruction, signers = happy_after(opened)[name]
    mine, wrong = (opened.redeemable, opened.collateral) if name == "lender_claim" else (opened.collateral, opened.redeemable)
    made = opened.chain.tokens(opened.lenders[owner].pubkey(), wrong if refresh == "mint" else mine)
    if isinstance(refresh, tuple):
        made = poked(opened, made, *refresh)
    assert opened.chain.refused(exchanged(instruction, 1, made), *signers) == CODES[error]


@pytest.mark.parametrize("name", ["pool_claimable", "pool_refundable"])
def test_each_pot_opens_once(opened: World, name: str) -> None:
    instruction, signers = happy(opened)[name]
    assert opened.chain.refused(instruction, *signers) == CODES["AlreadyOpen"]


def test_claims_open_for_one_vault_only(fresh: World) -> None:
    wrong = exchanged(fresh.opening_claims(), 3, tokens.associated(fresh.other, fresh.redeemable))
    with pytest.raises(Refused, match="does not match seed derivation"):
        fresh.chain.rehearse(wrong, signers=[fresh.payer, fresh.authority])


def byte(offset: int, value: bytes) -> Callable[[bytes], bytes]:
    return lambda data: data[:offset] + value + data[offset + len(value) :]


@pytest.mark.parametrize("name", [*BEFORE[1:], *AFTER])
@pytest.mark.parametrize(
    ("damage", "error"), [(byte(0, b"X"), "WrongKind"), (byte(8, b"\2"), "WrongVersion"), (lambda d: d[:-8], "WrongSize")]
)
def test_pools_of_another_kind_or_version_are_refused(name: str, damage: Callable[[bytes], bytes], error: str) -> None:
    world = settled() if name in AFTER else World()
    instruction, signers = (happy_after if name in AFTER else happy)(world)[name]
    world.chain.put(world.pool, damage(bytes(world.chain.account(world.pool).data)), MINING_POOL)
    assert world.chain.refused(instruction, *signers) == CODES[error]


@pytest.mark.parametrize("name", ["lender_deposit", "lender_close", *AFTER])
@pytest.mark.parametrize(
    ("damage", "error"), [(byte(0, b"X"), "WrongKind"), (byte(8, b"\2"), "WrongVersion"), (lambda d: d[:-8], "WrongSize")]
)
def test_lenders_of_another_kind_or_version_are_refused(name: str, damage: Callable[[bytes], bytes], error: str) -> None:
    world = settled() if name in AFTER else World()
    instruction, signers = (happy_after if name in AFTER else happy)(world)[name]
    key = world.lender_key(1 if name == "lender_close" else 0)
    world.chain.put(key, damage(bytes(world.chain.account(key).data)), MINING_POOL)
    assert world.chain.refused(instruction, *signers) == CODES[error]


def test_a_vault_somebody_could_spend_from_is_refused(fresh: World) -> None:
    fresh.chain.put(fresh.vault, byte(72, b"\1")(bytes(fresh.chain.account(fresh.vault).data)), TOKEN)
    assert fresh.chain.refused(fresh.depositing(0, 1), fresh.lenders[0]) == CODES["DelegatedTokens"]


def test_readers_refuse_other_accounts(world: World) -> None:
    with pytest.raises(WireError):
        mining_pool.parse_pool(world.chain.account(world.lender_key(0)))
    with pytest.raises(WireError):
        mining_pool.parse_lender(world.chain.account(world.pool))
    with pytest.raises(WireError):
        tokens.parse(world.chain.account(world.collateral))
    with pytest.raises(WireError):
        tokens.parse_mint(world.chain.account(world.vault))
    assert tokens.parse_mint(world.chain.account(world.collateral)) == tokens.Mint(U64, 6)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("opened_before", [False, True])
def test_whatever_a_thief_makes_up_takes_nothing_from_anybody(opened_before: bool) -> None:
    """It may lend before the pots open, and make accounts at its own cost."""
    world = settled() if opened_before else World()
    if not opened_before:
        world.deposit(0, 300)
    key = world.chain.user()
    own = [world.chain.tokens(key.pubkey(), mint, 100) for mint in (world.collateral, world.redeemable)]
    lenders = [world.lender_key(place) for place in range(3)]
    kept = (*lenders, *world.purses, *world.winnings, world.treasury)
    pots = [place for place in (world.vault, world.pot) if world.chain.exists(place)]
    people = (lender.pubkey() for lender in (*world.lenders, world.authority, world.payer))
    places = (*kept, *own, *people, world.pool, world.other, world.vault, world.pot, world.collateral, world.redeemable)
    places += (TOKEN, MINING_POOL, *(mining_pool.lender_address(pool, key.pubkey()) for pool in (world.pool, world.other)))
    mine, pool = key.pubkey(), world.pool
    models = [instruction for instruction, _ in (*happy(world).values(), *(happy_after(world).values() if opened_before else ()))]
    models += [
        mining_pool.lender_create(mine, mine, pool=pool),
        mining_pool.lender_deposit(mine, own[0], pool=pool, vault=world.vault, amount=1),
        mining_pool.lender_claim(mine, own[1], pool=pool, vault=world.pot, amount=1),
        mining_pool.lender_refund(mine, own[0], pool=pool, vault=world.vault, amount=1),
        mining_pool.lender_close(mine, mine, pool=pool),
    ]
    thief = Thief(key, models, places, seed=7)
    before = {place: bytes(world.chain.account(place).data) for place in kept}
    coins, filled = [100, 100], [*map(world.chain.balance, pots)]

    def rules() -> tuple[object, ...]:
        pool = world.read()
        return pool.authority, pool.collateral_mint, pool.extracted, pool.claimed, pool.refunded

    kept_rules = rules()

    def lamports() -> int:
        """Of the thief, with what lies in accounts that it made."""
        made = (mining_pool.lender_address(place, mine) for place in (world.pool, world.other))
        return sum(world.chain.account(place).lamports for place in (mine, *filter(world.chain.exists, made)))

    wealth = lamports()

    def send(instruction: Instruction) -> str | None:
        try:
            world.chain.send(instruction, signers=[key])
        except Refused as refusal:
            return refusal.reason
        return None

    def check(instruction: Instruction) -> None:
        nonlocal coins, filled
        for place, data in before.items():
            assert bytes(world.chain.account(place).data) == data, (place, instruction)
        assert rules() == kept_rules, instruction
        now = [*map(world.chain.balance, own)], [*map(world.chain.balance, pots)]
        assert all(new <= old for new, old in zip(now[0], coins, strict=True)), instruction
        assert all(new >= old for new, old in zip(now[1], filled, strict=True)), instruction
        assert lamports() <= wealth, instruction
        coins, filled = now

    thief.try_all(3000, send, check)
    print(thief.accepted, thief.refused)
    assert thief.accepted, "it was not even let to make an account of its own"
    assert len(thief.refused) > 12, "it was refused for few reasons: what it makes up is too far from what is meant"
    if opened_before:
        world.claim(0, 1)
