import hashlib

import pytest

from psyche_core.errors import TransportError
from psyche_core.p2p.offers import Offer, OfferBook


def offer(blob: bytes, *, tag: int, gives: bytes | memoryview | Exception | None = None) -> Offer:
    def read() -> bytes | memoryview:
        if isinstance(gives, Exception):
            raise gives
        return blob if gives is None else gives

    return Offer(hashlib.sha256(blob).digest(), len(blob), read, tag)


def test_what_is_read_is_the_blob_or_nothing() -> None:
    assert offer(b"blob", tag=1).checked() == b"blob"
    assert offer(b"blob", tag=1, gives=memoryview(b"blob")).checked() == b"blob"
    for gives in (b"blub", b"blo", b"blob!", b"", OSError("gone"), TransportError("gone")):
        assert offer(b"blob", tag=1, gives=gives).checked() is None


def test_a_size_that_is_not_the_blobs_is_noticed_though_the_hash_is_right() -> None:
    good = offer(b"blob", tag=1)
    assert Offer(good.blob_hash, 5, good.read, 1).checked() is None


def test_offers_are_kept_until_their_tag_expires() -> None:
    book, given = OfferBook(), offer(b"blob", tag=3)
    book.add(given)
    book.expire(3)
    assert book.get(given.blob_hash) is given
    book.expire(4)
    assert book.get(given.blob_hash) is None
    with pytest.raises(TransportError, match="its tag 3 has expired"):
        book.add(given)


@pytest.mark.parametrize(("first", "second", "stays"), [(1, 2, 1), (2, 1, 0), (2, 2, 1)])
def test_of_two_offers_the_higher_tag_counts_and_then_the_later(first: int, second: int, stays: int) -> None:
    book = OfferBook()
    offers = [offer(b"blob", tag=first), offer(b"blob", tag=second)]
    for given in offers:
        book.add(given)
    assert book.get(offers[0].blob_hash) is offers[stays]
    assert len(book) == 1


def test_too_many_offers_are_refused_and_push_nothing_out() -> None:
    book = OfferBook(max_offers=2)
    first, second, third = (offer(text, tag=tag) for text, tag in ((b"1", 1), (b"2", 1), (b"3", 9)))
    book.add(first)
    book.add(second)
    with pytest.raises(TransportError, match="too many offers"):
        book.add(third)
    book.add(offer(b"1", tag=2))  # it is there already
    assert len(book) == 2


def test_withdrawing_a_void_offer_leaves_the_one_that_took_its_place() -> None:
    book, old, new = OfferBook(), offer(b"blob", tag=1), offer(b"blob", tag=2)
    book.add(old)
    book.add(new)
    book.withdraw(old)
    assert book.get(old.blob_hash) is new
    book.withdraw(new)
    assert len(book) == 0


def test_bytes_are_hashed_again_only_when_their_owner_says_that_they_may_have_changed() -> None:
    holds, stamps = [b"blob"], [1]
    kept = Offer(hashlib.sha256(b"blob").digest(), 4, lambda: holds[0], 1, lambda: stamps[0])
    assert kept.checked() == b"blob"
    holds[0] = b"blub"
    assert kept.checked() == b"blub", "the owner promised that nothing had changed"
    stamps[0] = 2
    assert kept.checked() is None
    holds[0] = b"blob"
    assert kept.checked() == b"blob"
    holds[0] = b"longer than said"
    assert kept.checked() is None


def test_without_a_stamp_every_read_is_compared_with_the_hash() -> None:
    holds = [b"blob"]
    kept = Offer(hashlib.sha256(b"blob").digest(), 4, lambda: holds[0], 1)
    assert kept.checked() == b"blob"
    holds[0] = b"blub"
    assert kept.checked() is None


def test_a_stamp_that_cannot_be_had_voids_the_offer() -> None:
    def stamp() -> None:
        raise OSError("gone")

    assert Offer(hashlib.sha256(b"blob").digest(), 4, lambda: b"blob", 1, stamp).checked() is None
