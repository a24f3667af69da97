"""Transport addresses in joins: parts, the book, and what is believed of a transaction."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from solders.hash import Hash
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.message import Message
from solders.pubkey import Pubkey
from solders.transaction import Transaction

from psyche_backend_solana.address_parts import AddressBook, parts
from psyche_backend_solana.join_history import joins_in
from psyche_backend_solana.layouts import coordinator
from psyche_backend_solana.layouts.coordinator import MAX_ADDRESS_BYTES, Run

SIGNER, P2P, OTHER = b"s" * 32, b"p" * 32, b"o" * 32
RUN = Run(Pubkey(b"i" * 32), Pubkey(b"a" * 32))


@given(st.binary(max_size=1024))
def test_an_address_comes_out_of_its_parts(address: bytes) -> None:
    book = AddressBook()
    pieces = parts(address)
    assert all(len(piece) <= MAX_ADDRESS_BYTES for piece in pieces)
    assert [book.note(SIGNER, P2P, piece) for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert book.address(SIGNER, P2P) == address
    assert book.address(SIGNER, OTHER) is None


def test_an_ordinary_address_is_one_part() -> None:
    assert len(parts(b"x" * 300)) == 1
    with pytest.raises(ValueError, match="1024"):
        parts(b"x" * 1025)


@given(st.lists(st.tuples(st.sampled_from([SIGNER, OTHER]), st.sampled_from([P2P, OTHER]), st.binary(max_size=520)), max_size=12))
def test_whatever_is_written_the_book_holds_addresses_of_their_size(joins: list[tuple[bytes, bytes, bytes]]) -> None:
    book = AddressBook()
    for signer, p2p, part in joins:
        book.note(signer, p2p, part)
        found = book.address(signer, p2p)
        assert found is None or len(found) <= 1024


def test_half_an_address_leaves_the_former_one() -> None:
    book = AddressBook()
    book.note(SIGNER, P2P, *parts(b"old"))
    first, _, last = parts(b"n" * 1024)
    assert not book.note(SIGNER, P2P, first)
    assert not book.note(SIGNER, P2P, last)
    assert book.address(SIGNER, P2P) == b"old"


def test_the_same_address_again_is_no_news() -> None:
    book = AddressBook()
    assert book.note(SIGNER, P2P, *parts(b"a"))
    assert not book.note(SIGNER, P2P, *parts(b"a"))
    assert book.note(SIGNER, OTHER, *parts(b"a"))


def test_who_left_is_forgotten() -> None:
    book = AddressBook()
    book.note(SIGNER, P2P, *parts(b"a"))
    book.keep(frozenset({OTHER}))
    assert book.address(SIGNER, P2P) is None


def transaction(*instructions: Instruction, payer: Keypair) -> bytes:
    return bytes(Transaction.new_unsigned(Message.new_with_blockhash(list(instructions), payer.pubkey(), Hash.default())))


def test_only_joins_of_this_run_at_this_program_are_seen() -> None:
    user = Keypair()
    join = coordinator.join(RUN, user=user.pubkey(), authorization=Pubkey(b"z" * 32), p2p=P2P, address=b"\0\1hello")
    elsewhere = Run(RUN.instance, Pubkey(b"b" * 32))
    others = [
        Instruction(Pubkey(b"q" * 32), join.data, join.accounts),
        coordinator.join(elsewhere, user=user.pubkey(), authorization=Pubkey(b"z" * 32), p2p=P2P, address=b"\0\1x"),
        coordinator.tick(RUN, user=user.pubkey()),
        Instruction(RUN.program, b"\6short", join.accounts),
        Instruction(RUN.program, join.data, [AccountMeta(user.pubkey(), True, True)]),
    ]
    seen = list(joins_in(transaction(*others, join, payer=user), RUN))
    assert [(found.signer, found.p2p, found.part) for found in seen] == [(bytes(user.pubkey()), P2P, b"\0\1hello")]
