"""Which authorizations the coordinator's `join` believes: both programs in one SVM."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from plugins.backend_solana.tests.svm.program_chain import ProgramChain, Refused, read_only, without_signer
from plugins.backend_solana.tests.svm.refusals import COORDINATOR_CODES
from psyche_backend_solana.layouts import authorizer, coordinator
from psyche_backend_solana.layouts.coordinator_accounts import ACCOUNT_BYTES
from psyche_backend_solana.programs.addresses import AUTHORIZER, COORDINATOR, TOKEN
from psyche_core.testing.backend import small_state
from psyche_core.wire.signing import SecretKey


class World:
    """A configured, paused run whose join authority has authorized alice, actively."""

    def __init__(self) -> None:
        self.chain = ProgramChain(["coordinator", "authorizer"])
        self.owner, self.grantor, self.alice, self.bob, self.stranger = (self.chain.user() for _ in range(5))
        key = Keypair()
        account = key.pubkey()
        self.chain.put(account, bytes(ACCOUNT_BYTES), COORDINATOR)
        self.run = coordinator.Run(coordinator.instance_address("joined")[0], account)
        payer, owner = self.chain.payer.pubkey(), self.owner.pubkey()
        join_authority = self.grantor.pubkey()
        self.chain.send(
            coordinator.init(self.run, payer=payer, run_id="joined", main_authority=owner, join_authority=join_authority),
            signers=[key],
        )
        state = small_state(run_id="joined")
        wanted = coordinator.Update(config=state.config, model=state.model)
        for instruction in coordinator.staged_update(self.run, wanted, authority=owner):
            self.chain.send(instruction, signers=[self.owner])
        self.chain.send(coordinator.set_paused(self.run, authority=owner, paused=False), signers=[self.owner])
        self.authorization = self.authorize(self.grantor, self.alice.pubkey())

    def authorize(self, grantor: Keypair, grantee: Pubkey, *, scope: str = authorizer.JOIN_SCOPE, active: bool = True) -> Pubkey:
        self.chain.send(
            authorizer.create(self.chain.payer.pubkey(), grantor.pubkey(), grantee=grantee, scope=scope), signers=[grantor]
        )
        made = authorizer.address(grantor.pubkey(), grantee, scope)
        if active:
            self.chain.send(authorizer.grantor_update(grantor.pubkey(), made, active=True), signers=[grantor])
        return made

    def delegate(self, *users: Keypair) -> None:
        payer, keys = self.chain.payer.pubkey(), [user.pubkey() for user in users]
        self.chain.send(
            authorizer.grantee_update(payer, self.alice.pubkey(), authorization=self.authorization, add=keys),
            signers=[self.alice],
        )

    def joining(self, user: Keypair, authorization: Pubkey | None = None) -> Instruction:
        by = authorization or self.authorization
        return coordinator.proved_join(self.run, user=user.pubkey(), authorization=by, key=SecretKey(bytes(user)[:32]))[1]

    def proof(self, user: Keypair) -> Instruction:
        by = self.authorization
        return coordinator.proved_join(self.run, user=user.pubkey(), authorization=by, key=SecretKey(bytes(user)[:32]))[0]

    def join(self, user: Keypair, authorization: Pubkey | None = None) -> None:
        self.chain.rehearse(self.proof(user), self.joining(user, authorization), signers=[user])

    def stay(self, user: Keypair, authorization: Pubkey | None = None) -> None:
        self.chain.send(self.proof(user), self.joining(user, authorization), signers=[user])


@pytest.fixture
def world() -> World:
    return World()


def test_the_grantee_joins(world: World) -> None:
    world.join(world.alice)


def test_a_delegate_joins_among_many(world: World) -> None:
    for _ in range(8):
        world.delegate(*(Keypair() for _ in range(28)))
    world.delegate(world.bob)
    world.join(world.bob)
    world.join(world.alice)


def test_everybody_joins_by_an_authorization_of_everybody(world: World) -> None:
    open_to_all = world.authorize(world.grantor, authorizer.EVERYBODY)
    for user in (world.alice, world.bob, world.stranger):
        world.join(user, open_to_all)


REFUSED: dict[str, Callable[[World], tuple[Keypair, Pubkey]]] = {
    "another user": lambda w: (w.bob, w.authorization),
    "not active": lambda w: (w.bob, w.authorize(w.grantor, w.bob.pubkey(), active=False)),
    "another grantor": lambda w: (w.bob, w.authorize(w.stranger, w.bob.pubkey())),
    "a shorter scope": lambda w: (w.bob, w.authorize(w.grantor, w.bob.pubkey(), scope="CoordinatorJoinRu")),
    "a longer scope": lambda w: (w.bob, w.authorize(w.grantor, w.bob.pubkey(), scope="CoordinatorJoinRun2")),
    "another scope as long": lambda w: (w.bob, w.authorize(w.grantor, w.bob.pubkey(), scope="CoordinatorJoinRuN")),
    "the grantor itself": lambda w: (w.grantor, w.authorization),
}


@pytest.mark.parametrize("what", REFUSED)
def test_who_is_not_authorized_does_not_join(world: World, what: str) -> None:
    user, authorization = REFUSED[what](world)
    with pytest.raises(Refused) as refused:
        world.join(user, authorization)
    assert refused.value.code == COORDINATOR_CODES["NotAuthority"]


def test_an_authorization_switched_off_is_not_believed(world: World) -> None:
    world.chain.send(
        authorizer.grantor_update(world.grantor.pubkey(), world.authorization, active=False), signers=[world.grantor]
    )
    with pytest.raises(Refused) as refused:
        world.join(world.alice)
    assert refused.value.code == COORDINATOR_CODES["NotAuthority"]


@pytest.mark.parametrize(
    ("owner", "change", "error"),
    [
        (TOKEN, lambda data: data, "WrongOwner"),
        (COORDINATOR, lambda data: data, "WrongOwner"),
        (AUTHORIZER, lambda data: data[:191], "WrongSize"),
        (AUTHORIZER, lambda data: data + bytes(32), "WrongSize"),
        (AUTHORIZER, lambda data: data[:112] + struct.pack("<I", 1) + data[116:], "WrongSize"),
        (AUTHORIZER, lambda data: b"PsycheRI" + data[8:], "WrongKind"),
        (AUTHORIZER, lambda data: data[:8] + struct.pack("<I", 2) + data[12:], "WrongVersion"),
    ],
)
def test_what_is_no_authorization_is_not_believed(
    world: World, owner: Pubkey, change: Callable[[bytes], bytes], error: str
) -> None:
    data = bytes(world.chain.account(world.authorization).data)
    world.chain.put(world.authorization, change(data), owner)
    with pytest.raises(Refused) as refused:
        world.join(world.alice)
    assert refused.value.code == COORDINATOR_CODES[error]


def test_the_user_signs_and_the_state_is_written(world: World) -> None:
    for changed, error in ((without_signer, "MissingSigner"), (lambda i, _: read_only(i, 3), "NotWritable")):
        with pytest.raises(Refused) as refused:
            world.chain.rehearse(world.proof(world.alice), changed(world.joining(world.alice), 0), signers=[world.alice])
        assert refused.value.code == COORDINATOR_CODES[error]


def limited(world: World, authorization: Pubkey, limit: int | None) -> None:
    grantor = world.grantor
    world.chain.send(authorizer.grantor_update(grantor.pubkey(), authorization, active=True, limit=limit), signers=[grantor])


def test_who_may_name_delegates_fills_no_more_places_than_the_grantor_says(world: World) -> None:
    """The places that are left are for members of other authorizations, and for those who are pending already."""
    delegates = [world.chain.user() for _ in range(25)]
    world.delegate(*delegates)
    limited(world, world.authorization, 3)
    limited(world, world.authorization, None)
    assert authorizer.parse(world.chain.account(world.authorization)).limit == 3
    for user in (delegates[20], world.alice, delegates[24]):
        world.stay(user)
    with pytest.raises(Refused) as refused:
        world.join(delegates[0])
    assert refused.value.code == COORDINATOR_CODES["LimitReached"]
    world.join(delegates[24])
    own = world.authorize(world.grantor, world.bob.pubkey())
    world.stay(world.bob, own)
    world.chain.send(coordinator.withdraw(world.run, user=delegates[20].pubkey()), signers=[delegates[20]])
    world.join(delegates[0])
    limited(world, world.authorization, 2)
    with pytest.raises(Refused):
        world.join(delegates[0])
    limited(world, world.authorization, 0)
    world.join(delegates[0])


def test_an_authorization_for_everybody_leaves_places_to_others(world: World) -> None:
    open_to_all = world.authorize(world.grantor, authorizer.EVERYBODY)
    limited(world, open_to_all, 2)
    for user in (world.alice, world.stranger):
        world.stay(user, open_to_all)
    with pytest.raises(Refused) as refused:
        world.join(world.bob, open_to_all)
    assert refused.value.code == COORDINATOR_CODES["LimitReached"]
    world.join(world.bob, world.authorize(world.grantor, world.bob.pubkey()))
