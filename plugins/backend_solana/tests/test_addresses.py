"""Transport addresses in accounts of the members: what is written, and what is believed of what lies there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from plugins.backend_solana.tests.svm.program_chain import ProgramChain, Refused
from psyche_backend_solana.layouts import address_record, authorizer

P2P, OTHER = b"p" * 32, b"o" * 32
INSTANCE = Pubkey(b"i" * 32)


def content(p2p: bytes, address: bytes) -> bytes:
    return b"".join(map(bytes, address_record.delegates(p2p, address)))


@given(st.binary(max_size=1024))
def test_an_address_comes_out_as_it_went_in(address: bytes) -> None:
    written = content(P2P, address)
    assert address_record.address_in(written, P2P) == address
    assert address_record.address_in(written, OTHER) is None
    assert len(written) <= address_record.DELEGATES[1]
    for short in range(0, len(written), 32):
        assert address_record.address_in(written[:short], P2P) is None


@given(st.binary(max_size=1200), st.sampled_from([P2P, b""]))
def test_whatever_lies_there_is_an_address_of_its_size_or_none(written: bytes, before: bytes) -> None:
    found = address_record.address_in(before + written, P2P)
    assert found is None or len(found) <= address_record.MAX_ADDRESS_BYTES


def test_a_longer_address_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 1024 bytes, got 1025"):
        address_record.delegates(P2P, b"x" * 1025)


def written(chain: ProgramChain, user: Keypair) -> bytes:
    return bytes(chain.account(address_record.place(user.pubkey(), INSTANCE)).data)[authorizer.BYTES :]


def test_the_program_keeps_it_and_takes_it_from_its_member_alone() -> None:
    """The real program: the longest address in two transactions, a shorter one after it, and a stranger's attempts."""
    chain = ProgramChain(["authorizer"])
    user, stranger = chain.user(), chain.user()
    made = False
    for address in (b"x" * 1024, b"short", b"y" * 300):
        plan = address_record.publication(user.pubkey(), INSTANCE, p2p=P2P, address=address, made=made)
        assert len(plan) == (2 if len(address) == 1024 else 1)
        for instructions in plan:
            chain.send(*instructions, signers=[user])
        made = True
        assert address_record.address_in(written(chain, user), P2P) == address

    at = address_record.place(user.pubkey(), INSTANCE)
    lie = address_record.delegates(P2P, b"elsewhere")
    write = authorizer.grantee_update(stranger.pubkey(), stranger.pubkey(), authorization=at, add=lie, clear=True)
    with pytest.raises(Refused):
        chain.send(write, signers=[stranger])
    with pytest.raises(Refused):
        chain.send(authorizer.close(stranger.pubkey(), stranger.pubkey(), authorization=at), signers=[stranger])
    assert address_record.address_in(written(chain, user), P2P) == b"y" * 300
    before = chain.account(user.pubkey()).lamports
    chain.send(authorizer.close(user.pubkey(), user.pubkey(), authorization=at), signers=[user])
    assert not chain.exists(at)
    assert chain.account(user.pubkey()).lamports > before + 10**6


def test_an_address_lets_nobody_join() -> None:
    """The account is an authorization, but never active, and of another scope than a join's."""
    found = authorizer.Authorization(255, False, Pubkey(P2P), Pubkey(P2P), address_record.scope(INSTANCE), (Pubkey(P2P),))
    assert not found.allows(Pubkey(P2P))
    assert found.scope != authorizer.JOIN_SCOPE
    assert address_record.scope(INSTANCE) != address_record.scope(Pubkey(OTHER))
