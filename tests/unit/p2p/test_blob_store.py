import hashlib

import pytest

from psyche_core.errors import TransportError
from psyche_core.p2p.blob_store import BlobStore


def put(store: BlobStore, blob: bytes, *, tag: int, own: bool = False) -> tuple[bytes, bool]:
    name = hashlib.sha256(blob).digest()
    return name, store.put(name, blob, tag=tag, own=own)


def test_keeps_until_the_tag_expires() -> None:
    store = BlobStore()
    name, kept = put(store, b"blob", tag=3)
    assert kept
    store.expire(3)
    assert store.get(name) == b"blob"
    store.expire(4)
    assert store.get(name) is None
    assert store.total_bytes == 0
    assert put(store, b"blob", tag=3)[1] is False


def test_a_blob_put_again_or_touched_keeps_the_higher_tag() -> None:
    store = BlobStore()
    name, _ = put(store, b"blob", tag=3)
    put(store, b"blob", tag=1)
    store.touch(name, tag=5)
    store.touch(name, tag=2)
    store.expire(5)
    assert store.get(name) == b"blob"
    assert store.total_bytes == 4


def test_makes_room_fetched_first_then_by_tag_then_by_age() -> None:
    store = BlobStore(max_blobs=3)
    own, _ = put(store, b"own", tag=0, own=True)
    first, _ = put(store, b"first", tag=5)
    second, _ = put(store, b"second", tag=5)
    third, kept = put(store, b"third", tag=5)
    assert kept
    assert [name for name in (own, first, second, third) if store.get(name)] == [own, second, third]
    assert put(store, b"low", tag=1)[1] is False


def test_bytes_are_bounded() -> None:
    store = BlobStore(max_bytes=10)
    assert put(store, b"x" * 11, tag=1)[1] is False
    put(store, b"x" * 6, tag=1)
    assert put(store, b"y" * 6, tag=2)[1]
    assert (len(store), store.total_bytes) == (1, 6)


async def test_a_published_blob_is_our_own_and_one_without_room_is_refused() -> None:
    store = BlobStore(max_bytes=10)
    own = await store.publish(b"own", tag=1)
    assert own == hashlib.sha256(b"own").digest()
    assert put(store, b"x" * 8, tag=9)[1] is False, "what is fetched makes room for what is our own"
    assert store.get(own) == b"own"
    with pytest.raises(TransportError, match="a blob of 11 bytes cannot be kept"):
        await store.publish(b"x" * 11, tag=2)
    store.expire(2)
    with pytest.raises(TransportError, match="its tag 1 has expired or the store is full"):
        await store.publish(b"own", tag=1)
