"""The treasurer together with the coordinator: a run made, commanded, paid out and closed, and every check refused once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.system_program import CreateAccountParams, create_account

from plugins.backend_solana.tests.svm.program_chain import (
    ProgramChain,
    Refused,
    exchanged,
    fewer_accounts,
    read_only,
    with_data,
    without_signer,
)
from plugins.backend_solana.tests.svm.refusals import COORDINATOR_CODES
from psyche_backend_solana.layouts import coordinator, tokens, treasurer
from psyche_backend_solana.layouts.coordinator_accounts import (
    ACCOUNT_BYTES,
    HEADER_BYTES,
    Backing,
    CoordinatorAccount,
    RunInstance,
)
from psyche_backend_solana.layouts.errors import COMMON
from psyche_backend_solana.programs.addresses import COORDINATOR
from psyche_core.coordinator import canonical_image as image
from psyche_core.coordinator.state import Account, CoordinatorState
from psyche_core.testing.backend import small_state
from psyche_core.types import NodeIdentity, RunState

CODES = {name: code for code, name in COMMON.items()} | {name: code for code, (name, _) in treasurer.ERRORS.items()}
RUN_ID = "paid run"
INDEX = 7


@dataclass
class World:
    """An owner with a token to pay in; `create` makes the run. other: a second run, where a test made one."""

    chain: ProgramChain = field(default_factory=lambda: ProgramChain(["coordinator", "treasurer"]))
    other: treasurer.Treasury = field(init=False)

    def __post_init__(self) -> None:
        self.owner, self.payer, self.alice, self.bob = (self.chain.user() for _ in range(4))
        self.mint = self.chain.mint(10**12)
        self.stranger = self.chain.user()
        self.keys = {self.stranger.pubkey(): self.stranger}
        self.account = self.room()
        self.treasury = self.place(INDEX, RUN_ID, self.account)
        self.purse = self.chain.tokens(self.owner.pubkey(), self.mint, 1000)
        self.spill = self.chain.user().pubkey()

    def room(self) -> Pubkey:
        """An account of zeros for a coordinator's state."""
        key = Keypair()
        lamports = self.chain.svm.minimum_balance_for_rent_exemption(ACCOUNT_BYTES)
        made = CreateAccountParams(
            from_pubkey=self.payer.pubkey(), to_pubkey=key.pubkey(), lamports=lamports, space=ACCOUNT_BYTES, owner=COORDINATOR
        )
        self.chain.send(create_account(made), signers=[self.payer, key])
        self.keys[key.pubkey()] = key
        return key.pubkey()

    def place(self, index: int, run_id: str, account: Pubkey) -> treasurer.Treasury:
        instance = coordinator.instance_address(run_id)[0]
        return treasurer.Treasury.of(index, mint=self.mint, instance=instance, coordinator=account)

    def creating(
        self, index: int = INDEX, run_id: str = RUN_ID, account: Pubkey | None = None, mint: Pubkey | None = None
    ) -> Instruction:
        treasury = self.place(index, run_id, account or self.account)
        if mint is not None:
            treasury = replace(treasury, mint=mint, vault=tokens.associated(treasury.run, mint))
        return treasurer.run_create(
            self.payer.pubkey(),
            treasury,
            index=index,
            main_authority=self.owner.pubkey(),
            join_authority=self.bob.pubkey(),
            run_id=run_id,
            client_version="v1",
        )

    def create(self) -> World:
        self.chain.send(self.creating(), signers=[self.payer, self.keys[self.account]])
        return self

    @property
    def run(self) -> coordinator.Run:
        return coordinator.Run(self.treasury.instance, self.account)

    def passing(self, command: Instruction) -> Instruction:
        return treasurer.run_update(self.owner.pubkey(), self.treasury, command=command)

    def command(self, command: Instruction) -> None:
        self.chain.send(self.passing(command), signers=[self.owner])

    def configure(self) -> None:
        """As an owner does: configuration through the staging area."""
        state = small_state(run_id=RUN_ID)
        wanted = coordinator.Update(config=state.config, model=state.model)
        for instruction in coordinator.staged_update(self.run, wanted, authority=self.treasury.run):
            self.command(instruction)

    def earn(self, points: Mapping[Keypair, tuple[int, int]], run_state: RunState = RunState.Paused) -> None:
        """As if members had worked: only the points and the state of the image are changed."""
        account = self.chain.account(self.account)
        data = bytes(account.data)
        state = image.decode(data[HEADER_BYTES : HEADER_BYTES + image.SIZE])
        accounts = tuple(
            Account(*entry) for entry in sorted((bytes(user.pubkey()), *amounts) for user, amounts in points.items())
        )
        changed = image.encode(replace(state, accounts=accounts, run_state=run_state))
        self.chain.put(self.account, data[:HEADER_BYTES] + changed + data[HEADER_BYTES + image.SIZE :], account.owner)

    def closing(self, *show: Keypair) -> Instruction:
        shown = [treasurer.participant_address(self.treasury.run, user.pubkey()) for user in show]
        return treasurer.run_close(self.owner.pubkey(), self.spill, destination=self.purse, treasury=self.treasury, show=shown)

    def top_up(self, amount: int) -> None:
        self.chain.send(
            treasurer.top_up(self.owner.pubkey(), self.purse, treasury=self.treasury, amount=amount), signers=[self.owner]
        )

    def pay(self, user: Keypair, amount: int) -> None:
        """The owner pays out to a user who does nothing: account, token account and claim."""
        at = tokens.associated(user.pubkey(), self.mint)
        self.chain.send(
            treasurer.participant_create(self.payer.pubkey(), user.pubkey(), treasury=self.treasury),
            tokens.create_associated(self.payer.pubkey(), user.pubkey(), mint=self.mint),
            signers=[self.payer],
        )
        claim = treasurer.participant_claim(
            self.owner.pubkey(), user.pubkey(), destination=at, treasury=self.treasury, amount=amount
        )
        self.chain.send(claim, signers=[self.owner])


Change = Callable[[World, Instruction], Instruction]


@pytest.fixture(scope="module")
def empty() -> World:
    """Without its run; only rehearsed upon."""
    return World()


@pytest.fixture(scope="module")
def world() -> World:
    """With its run, a slot old; only rehearsed upon."""
    made = World().create()
    made.configure()
    made.other = made.place(8, "another", made.room())
    made.chain.send(made.creating(8, "another", made.other.coordinator), signers=[made.payer, made.keys[made.other.coordinator]])
    made.chain.advance()
    return made


@pytest.fixture
def fresh() -> World:
    return World().create()


def test_a_run_as_it_is_made(fresh: World) -> None:
    found = treasurer.parse_run(fresh.chain.account(fresh.treasury.run))
    assert (found.index, found.main_authority, found.join_authority) == (INDEX, fresh.owner.pubkey(), fresh.bob.pubkey())
    assert (found.coordinator, found.instance, found.mint) == (fresh.account, fresh.treasury.instance, fresh.mint)
    assert (found.claimed, found.participants, found.vault) == (0, 0, fresh.treasury.vault)
    vault = tokens.parse(fresh.chain.account(found.vault))
    assert (vault.owner, vault.mint, vault.amount, vault.restricted) == (fresh.treasury.run, fresh.mint, 0, False)
    instance = RunInstance.parse(bytes(fresh.chain.account(fresh.treasury.instance).data))
    assert (instance.main_authority, instance.join_authority) == (fresh.treasury.run, fresh.bob.pubkey())
    assert (instance.account, instance.run_id) == (fresh.account, RUN_ID)


def test_a_vault_somebody_made_before_does_not_stand_in_the_way(empty: World) -> None:
    early = tokens.create_associated(empty.payer.pubkey(), empty.treasury.run, mint=empty.mint)
    empty.chain.rehearse(early, empty.creating(), signers=[empty.payer, empty.keys[empty.account]])


def test_the_owner_commands_through_the_treasurer(fresh: World) -> None:
    fresh.configure()
    rates = coordinator.set_future_epoch_rates(fresh.run, authority=fresh.treasury.run, earning_total_shared=600)
    fresh.command(rates)
    fresh.command(coordinator.set_paused(fresh.run, authority=fresh.treasury.run, paused=False))
    data = bytes(fresh.chain.account(fresh.account).data)
    state = image.decode(data[HEADER_BYTES : HEADER_BYTES + image.SIZE])
    assert (state.run_state, state.future_rates.earning_total_shared) == (RunState.WaitingForMembers, 600)


def test_the_coordinator_obeys_nobody_but_the_treasurer(fresh: World) -> None:
    fresh.configure()
    command = coordinator.set_paused(fresh.run, authority=fresh.owner.pubkey(), paused=False)
    assert fresh.chain.refused(command, fresh.owner) == COORDINATOR_CODES["NotAuthority"]


def test_a_whole_life(fresh: World) -> None:
    fresh.configure()
    fresh.top_up(500)
    fresh.earn({fresh.alice: (100, 0), fresh.bob: (50, 30)}, RunState.Finished)
    fresh.chain.advance()
    assert fresh.chain.refused(fresh.closing(), fresh.owner) == CODES["StillOwed"]
    fresh.pay(fresh.alice, 100)
    assert fresh.chain.refused(fresh.closing(), fresh.owner) == CODES["StillOwed"]
    fresh.pay(fresh.bob, 20)
    assert fresh.chain.refused(fresh.closing(), fresh.owner) == CODES["StillOwed"], "bob's slashed points count until he is shown"
    before = fresh.chain.account(fresh.spill).lamports
    held = [fresh.treasury.run, fresh.treasury.vault, fresh.treasury.instance, fresh.account]
    rent = sum(fresh.chain.account(key).lamports for key in held)
    fresh.chain.send(fresh.closing(fresh.bob), signers=[fresh.owner])
    assert not any(fresh.chain.exists(key) for key in held)
    assert fresh.chain.account(fresh.spill).lamports == before + rent
    assert fresh.chain.balance(fresh.purse) == 1000 - 120
    closing = treasurer.participant_close(fresh.alice.pubkey(), fresh.spill, run=fresh.treasury.run)
    fresh.chain.send(closing, signers=[fresh.alice])
    # the same index and name once more: bob's account of before is not taken for one of now
    fresh.account = fresh.room()
    fresh.treasury = fresh.place(INDEX, RUN_ID, fresh.account)
    fresh.create().configure()
    fresh.top_up(200)
    fresh.earn({fresh.bob: (50, 0)})
    fresh.pay(fresh.bob, 50)
    assert fresh.chain.balance(tokens.associated(fresh.bob.pubkey(), fresh.mint)) == 70


def test_a_run_with_more_slashed_members_than_a_transaction_shows_is_closed(fresh: World) -> None:
    """50 of them, unpaid: they are settled in several transactions, and the run is closed in one that shows nobody."""
    fresh.configure()
    fresh.chain.advance()
    users = [fresh.chain.user() for _ in range(50)]
    fresh.earn({user: (10, 10 + place) for place, user in enumerate(users)}, RunState.Finished)
    for user in users:
        create = treasurer.participant_create(fresh.payer.pubkey(), user.pubkey(), treasury=fresh.treasury)
        fresh.chain.send(create, signers=[fresh.payer])
    assert fresh.chain.refused(fresh.closing(*users[:15]), fresh.owner) == CODES["StillOwed"]
    shown = [treasurer.participant_address(fresh.treasury.run, user.pubkey()) for user in users]
    for first in range(0, len(shown), treasurer.MOST_SETTLED):
        assert fresh.chain.refused(fresh.closing(), fresh.owner) == CODES["StillOwed"]
        part = shown[first : first + treasurer.MOST_SETTLED]
        settle = treasurer.run_settle(fresh.owner.pubkey(), treasury=fresh.treasury, show=part)
        fresh.chain.send(settle, signers=[fresh.owner])
    fresh.chain.send(fresh.closing(), signers=[fresh.owner])
    assert not fresh.chain.exists(fresh.treasury.run)


def test_a_run_is_not_closed_in_its_first_slot(fresh: World) -> None:
    assert fresh.chain.refused(fresh.closing(), fresh.owner) == CODES["TooSoon"]
    fresh.chain.advance()
    fresh.chain.rehearse(fresh.closing(), signers=[fresh.owner])


@pytest.mark.parametrize("run_state", [state for state in RunState if not state.halted])
def test_a_run_that_goes_on_is_not_closed(fresh: World, run_state: RunState) -> None:
    fresh.configure()
    fresh.chain.advance()
    fresh.earn({}, run_state)
    assert fresh.chain.refused(fresh.closing(), fresh.owner) == CODES["NotHalted"]


def happy(world: World) -> dict[str, tuple[Instruction, list[Keypair]]]:
    paused = coordinator.set_paused(world.run, authority=world.treasury.run, paused=False)
    return {"run_update": (world.passing(paused), [world.owner]), "run_close": (world.closing(), [world.owner])}


CREATION: list[tuple[str, Change, str]] = [
    ("payer signs", lambda _, i: without_signer(i, 0), "MissingSigner"),
    ("payer pays", lambda _, i: read_only(i, 0), "NotWritable"),
    ("run is written", lambda _, i: read_only(i, 1), "NotWritable"),
    ("its own address", lambda w, i: exchanged(i, 1, w.spill), "WrongAddress"),
    ("a mint", lambda w, i: exchanged(i, 3, w.spill), "WrongOwner"),
    ("not a token account", lambda w, i: exchanged(i, 3, w.purse), "WrongKind"),
    ("coordinator's account is written", lambda _, i: read_only(i, 5), "runtime"),
    ("coordinator's account is its own", lambda w, i: exchanged(i, 5, w.stranger.pubkey()), "WrongOwner"),
    ("coordinator's account signs", lambda _, i: without_signer(i, 5), "runtime"),
    ("its instance", lambda w, i: exchanged(i, 4, w.spill), "WrongAddress"),
    ("the coordinator", lambda w, i: exchanged(i, 6, w.mint), "WrongAddress"),
    ("the token program", lambda w, i: exchanged(i, 7, w.mint), "WrongAddress"),
    ("the associated token program", lambda w, i: exchanged(i, 8, w.mint), "WrongAddress"),
    ("the system program", lambda w, i: exchanged(i, 9, w.mint), "WrongAddress"),
    ("its own vault", lambda w, i: exchanged(i, 2, w.purse), "runtime"),
    ("a name", lambda _, i: with_data(i, bytes(i.data)[:73] + b"\0" + bytes(i.data)[74:]), "BadInstruction"),
    ("all data", lambda _, i: with_data(i, bytes(i.data)[:-1]), "BadInstruction"),
    ("no more data", lambda _, i: with_data(i, bytes(i.data) + b"\0"), "BadInstruction"),
    ("all accounts", lambda _, i: fewer_accounts(i), "NotEnoughAccounts"),
]
REFUSALS: list[tuple[str, str, Change, str]] = [
    ("run_update", "owner signs", lambda _, i: without_signer(i, 0), "MissingSigner"),
    ("run_update", "the owner", lambda w, i: exchanged(i, 0, w.chain.payer.pubkey()), "NotAuthority"),
    ("run_update", "a run", lambda w, i: exchanged(i, 1, w.mint), "WrongOwner"),
    ("run_update", "coordinator's account is written", lambda _, i: read_only(i, 3), "NotWritable"),
    ("run_update", "this run's instance", lambda w, i: exchanged(i, 2, w.other.instance), "OtherRun"),
    ("run_update", "this run's coordinator", lambda w, i: exchanged(i, 3, w.other.coordinator), "OtherRun"),
    ("run_update", "the coordinator", lambda w, i: exchanged(i, 4, w.mint), "WrongAddress"),
    ("run_update", "a command", lambda _, i: with_data(i, b"\1"), "BadInstruction"),
    ("run_update", "not init", lambda _, i: with_data(i, b"\1\0"), "NotForOwners"),
    ("run_update", "not free", lambda _, i: with_data(i, b"\1\1"), "NotForOwners"),
    ("run_update", "not join", lambda _, i: with_data(i, b"\1\6"), "NotForOwners"),
    ("run_update", "nothing that is no more", lambda _, i: with_data(i, b"\1\x0e"), "NotForOwners"),
    ("run_update", "all accounts", lambda _, i: fewer_accounts(i), "NotEnoughAccounts"),
    ("run_close", "owner signs", lambda _, i: without_signer(i, 0), "MissingSigner"),
    ("run_close", "the owner", lambda w, i: exchanged(i, 0, w.chain.payer.pubkey()), "NotAuthority"),
    ("run_close", "spill is written", lambda _, i: read_only(i, 1), "NotWritable"),
    ("run_close", "not into the run", lambda w, i: exchanged(i, 1, w.treasury.run), "SameAccount"),
    ("run_close", "tokens are written", lambda _, i: read_only(i, 2), "NotWritable"),
    ("run_close", "the owner's tokens", lambda w, i: exchanged(i, 2, w.chain.tokens(w.bob.pubkey(), w.mint)), "WrongTokenOwner"),
    ("run_close", "of the mint", lambda w, i: exchanged(i, 2, w.chain.tokens(w.owner.pubkey(), w.chain.mint())), "WrongMint"),
    ("run_close", "run is written", lambda _, i: read_only(i, 3), "NotWritable"),
    ("run_close", "a run", lambda w, i: exchanged(i, 3, w.mint), "WrongOwner"),
    ("run_close", "vault is written", lambda _, i: read_only(i, 4), "NotWritable"),
    ("run_close", "its own vault", lambda w, i: exchanged(i, 4, w.other.vault), "WrongAddress"),
    ("run_close", "this run's instance", lambda w, i: exchanged(i, 5, w.other.instance), "OtherRun"),
    ("run_close", "this run's coordinator", lambda w, i: exchanged(i, 6, w.other.coordinator), "OtherRun"),
    ("run_close", "the coordinator", lambda w, i: exchanged(i, 7, w.mint), "WrongAddress"),
    ("run_close", "the token program", lambda w, i: exchanged(i, 8, w.mint), "WrongAddress"),
    ("run_close", "no data", lambda _, i: with_data(i, b"\6\0"), "BadInstruction"),
    ("run_close", "all accounts", lambda _, i: fewer_accounts(i), "NotEnoughAccounts"),
]


def test_without_a_change_it_is_created(empty: World) -> None:
    empty.chain.rehearse(empty.creating(), signers=[empty.payer, empty.keys[empty.account]])


@pytest.mark.parametrize(("what", "change", "error"), CREATION, ids=lambda value: value if isinstance(value, str) else "")
def test_each_check_of_a_creation_refuses(empty: World, what: str, change: Change, error: str) -> None:
    code = empty.chain.refused(change(empty, empty.creating()), empty.payer, *empty.keys.values())
    assert code == (None if error == "runtime" else CODES[error])


def test_neither_index_nor_name_nor_account_is_taken_twice(world: World) -> None:
    room = world.room()
    assert world.chain.refused(world.creating(INDEX, "third", room), world.payer, world.keys[room]) == CODES["AlreadyExists"]
    assert world.chain.refused(world.creating(9, RUN_ID, room), world.payer, world.keys[room]) == CODES["AlreadyExists"]
    assert (
        world.chain.refused(world.creating(9, "third", world.account), world.payer, world.keys[world.account])
        == CODES["AlreadyExists"]
    )
    world.chain.rehearse(world.creating(9, "third", room), signers=[world.payer, world.keys[room]])


@pytest.mark.parametrize("name", ["run_update", "run_close"])
def test_without_a_change_each_succeeds(world: World, name: str) -> None:
    instruction, signers = happy(world)[name]
    world.chain.rehearse(instruction, signers=signers)


@pytest.mark.parametrize(("name", "what", "change", "error"), REFUSALS, ids=lambda value: value if isinstance(value, str) else "")
def test_each_check_refuses(world: World, name: str, what: str, change: Change, error: str) -> None:
    instruction, signers = happy(world)[name]
    assert world.chain.refused(change(world, instruction), *signers) == CODES[error]


class Epochs:
    """Epochs of a paid run: the program begins and pays them; their rounds are left out."""

    def __init__(self, world: World, rate: int) -> None:
        self.world = world
        world.configure()
        world.command(coordinator.set_future_epoch_rates(world.run, authority=world.treasury.run, earning_total_shared=rate))
        world.command(coordinator.set_paused(world.run, authority=world.treasury.run, paused=False))

    @property
    def account(self) -> CoordinatorAccount:
        return CoordinatorAccount.parse(bytes(self.world.chain.account(self.world.account).data))

    @property
    def state(self) -> CoordinatorState:
        state = self.account.state
        assert state is not None
        return state

    def become(self, **fields: Any) -> None:
        account = self.world.chain.account(self.world.account)
        data = bytes(account.data)
        changed = image.encode(replace(self.state, **fields))
        self.world.chain.put(self.world.account, data[:HEADER_BYTES] + changed + data[HEADER_BYTES + image.SIZE :], account.owner)

    def tick(self, seconds: int = 10_000) -> None:
        self.world.chain.advance(seconds)
        self.world.chain.send(coordinator.tick(self.world.run, user=self.world.chain.payer.pubkey()))

    def begin(self, *members: Keypair) -> None:
        """These are the members of an epoch that begins."""
        pending = tuple(NodeIdentity(bytes(member.pubkey()), bytes(member.pubkey())) for member in members)
        self.become(pending=pending, minimum_since=self.state.since)
        self.tick()
        assert self.state.run_state is RunState.Warmup

    def end(self, *accepted: int) -> None:
        """It is over, with so many accepted rounds of each member."""
        clients = tuple(
            replace(client, accepted_rounds=rounds) for client, rounds in zip(self.state.epoch.clients, accepted, strict=True)
        )
        self.become(run_state=RunState.Cooldown, epoch=replace(self.state.epoch, clients=clients))
        self.tick()
        assert self.state.run_state is RunState.WaitingForMembers

    def earned(self, member: Keypair) -> int:
        return next((account.earned for account in self.state.accounts if account.signer == bytes(member.pubkey())), 0)


def test_an_owner_that_earns_with_its_own_key_takes_nothing_that_others_are_owed(fresh: World) -> None:
    """Alice earned all that the vault holds and was sent away; the owner's own epochs promise nothing, and it claims nothing."""
    epochs = Epochs(fresh, 100)
    fresh.top_up(100)
    epochs.begin(fresh.alice)
    fresh.chain.send(coordinator.expel(fresh.run, authority=fresh.bob.pubkey(), user=fresh.alice.pubkey()), signers=[fresh.bob])
    epochs.end(3)
    assert epochs.earned(fresh.alice) == 100, "who is expelled keeps what was accepted"
    fresh.command(coordinator.set_future_epoch_rates(fresh.run, authority=fresh.treasury.run, earning_total_shared=2**63))
    epochs.begin(fresh.owner)
    assert epochs.state.epoch.rates.earning_total_shared == 0
    epochs.end(5)
    assert epochs.earned(fresh.owner) == 0
    with pytest.raises(Refused) as found:
        fresh.pay(fresh.owner, 1)
    assert found.value.code == CODES["OverClaim"]
    fresh.pay(fresh.alice, 100)
    assert fresh.chain.balance(fresh.treasury.vault) == 0


def test_an_epoch_promises_what_the_vault_holds_and_gives_back_what_it_did_not_pay(fresh: World) -> None:
    epochs = Epochs(fresh, 100)
    assert epochs.account.backing == Backing(free=0, promised=0)
    fresh.top_up(250)
    epochs.begin(fresh.alice, fresh.bob, fresh.owner)
    assert epochs.account.backing == Backing(free=150, promised=100)
    fresh.top_up(7)
    assert epochs.account.backing == Backing(free=157, promised=100)
    epochs.end(1, 1, 1)
    assert epochs.account.backing == Backing(free=158, promised=0), "a point that could not be shared is free again"
    epochs.begin(fresh.alice)
    epochs.tick()  # nobody was ready: the epoch is given up
    assert epochs.state.run_state is RunState.WaitingForMembers
    assert epochs.account.backing == Backing(free=158, promised=0)
    epochs.begin(fresh.alice)
    fresh.command(coordinator.set_paused(fresh.run, authority=fresh.treasury.run, paused=True))
    assert epochs.account.backing == Backing(free=158, promised=0)
    taking = treasurer.run_withdraw_unused(fresh.owner.pubkey(), fresh.purse, treasury=fresh.treasury)
    fresh.chain.send(taking, signers=[fresh.owner])
    assert epochs.account.backing == Backing(free=0, promised=0)
    assert fresh.chain.balance(fresh.treasury.vault) == 99


def test_nobody_but_the_treasurer_says_what_stands_behind_the_points(fresh: World) -> None:
    Epochs(fresh, 100)
    for number in (coordinator.Number.back, coordinator.Number.settle):
        told = treasurer.run_update(fresh.owner.pubkey(), fresh.treasury, command=bytes([number]) + bytes(32))
        assert fresh.chain.refused(told, fresh.owner) == CODES["NotForOwners"]
