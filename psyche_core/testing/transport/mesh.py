"""What the conformance classes of transports share: a mesh of endpoints, and helpers that wait for events."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import ClassVar, NoReturn

import anyio
import anyio.lowlevel

from psyche_core.errors import WireError
from psyche_core.interfaces.transport import Incoming, Opened, Transport
from psyche_core.testing.conformance import Conformance
from psyche_core.testing.contracts import CONTRACTS, Contract
from psyche_core.testing.needs_pytest import pytest
from psyche_core.testing.sentences import shown

TIMEOUT = 30.0
"""Seconds that a test waits for what must happen, unless its class has another `timeout`."""

TIMEOUT_AFTER_A_HANG = 2.0
"""The same for the tests of a class after one of them waited in vain: a transport that hangs would take minutes to fail."""

BLOB = bytes(range(256)) * 12_000
"""3 072 000 bytes."""


class _Waiting:
    """How long the test that runs now waits, and whether it has waited in vain."""

    seconds = TIMEOUT
    in_vain = False

    @classmethod
    def fail(cls, sentence: str) -> NoReturn:
        cls.in_vain = True
        message = f"{sentence} within {cls.seconds:g} s; the contract is psyche_core.interfaces.Transport"
        raise AssertionError(message)


async def until(condition: Callable[[], bool], *, what: str = "what `stats` should show did not come") -> None:
    """Poll until a condition on snapshots (`stats`) holds, since there is no event to wait for. what: said if it never does."""
    with anyio.move_on_after(_Waiting.seconds):
        while not condition():  # noqa: ASYNC110  # see above
            await anyio.sleep(0.005)
        return
    _Waiting.fail(what)


async def connected(endpoints: Sequence[Transport]) -> None:
    """Wait until every endpoint sees all the others, or those of them that its `stats.neighbours` names."""
    everybody = {endpoint.peer_id for endpoint in endpoints}

    def sees_all(endpoint: Transport) -> bool:
        stats = endpoint.stats
        awaited = everybody - {endpoint.peer_id}
        return (awaited if stats.neighbours is None else awaited & set(stats.neighbours)) <= set(stats.peers)

    await until(
        lambda: all(sees_all(endpoint) for endpoint in endpoints),
        what=f"`stats.peers` of {len(everybody)} endpoints, each of which knows the others by set_peers, did not name all others",
    )


async def received(endpoint: Transport, count: int) -> list[Incoming]:
    """Wait for `count` messages."""
    found: list[Incoming] = []
    with anyio.move_on_after(_Waiting.seconds):
        while len(found) < count:
            found.append(await endpoint.receive())
        return found
    _Waiting.fail(f"`receive` gave {len(found)} of {count} messages that others had broadcast")


def by_its_first_bytes(message: bytes) -> Opened:
    """A check for `Transport.check_messages`. A message is its author's key, then its content; an unknown content is false."""
    if message[32:] == b"false":
        error = "nobody said this"
        raise WireError(error)

    return Opened(message[:32], message[32:])


def by_its_round(message: bytes) -> Opened:
    """A check as above, of contents that end with the only tag they can have."""
    tag = int(message.rpartition(b" ")[2])
    return Opened(message[:32], message[32:], (tag, tag))


class ExternalBlob:
    """A blob stored outside a transport. Tests can change the result of `read`, and every read is recorded."""

    def __init__(self, blob: bytes = BLOB) -> None:
        self.blob_hash: bytes = hashlib.sha256(blob).digest()
        self.size: int = len(blob)
        self.holds: bytes | Exception = blob
        self.readers: list[int] = []

    def read(self) -> bytes:
        """Return the current bytes, or raise the exception set in their place."""
        self.readers.append(threading.get_ident())
        if isinstance(self.holds, Exception):
            raise self.holds

        return self.holds


@pytest.mark.anyio
class MeshTests(Conformance):
    """Tests with a mesh of endpoints, which a subclass makes.

    Attributes:
        can_cut: whether the subclass can cut links.
        timeout: seconds that a test waits for what must happen. After a first wait in vain the others wait shorter.
    """

    contract: ClassVar[Contract] = CONTRACTS["transport"]
    optional: ClassVar[Mapping[str, str]] = {"checked-messages": "only what a member signed is delivered and passed on"}
    can_cut = False
    timeout: ClassVar[float] = TIMEOUT
    _hung: ClassVar[set[type]] = set()

    @pytest.fixture(autouse=True)
    def _patience(self) -> Iterator[None]:
        hung = type(self) in self._hung
        _Waiting.seconds, _Waiting.in_vain = min(self.timeout, TIMEOUT_AFTER_A_HANG) if hung else self.timeout, False
        yield
        if _Waiting.in_vain:
            self._hung.add(type(self))
        _Waiting.seconds = TIMEOUT

    def make_mesh(self, count: int) -> AbstractAsyncContextManager[list[Transport]]:
        """`count` entered endpoints. Each knows all others through `set_peers`; they are closed at the end."""
        raise NotImplementedError

    def cut(self, one: Transport, other: Transport) -> None:
        """Cut the link between two endpoints."""
        raise NotImplementedError

    def mend(self, one: Transport, other: Transport) -> None:
        """Restore a link that was cut."""
        raise NotImplementedError

    @pytest.fixture
    def anyio_backend(self) -> str:
        """The event loop for the tests."""
        return "asyncio"

    def _needs_cuts(self) -> None:
        if not self.can_cut:
            pytest.skip("a test cannot cut this transport's links")

    @staticmethod
    def _needs_checks(endpoint: Transport) -> None:
        if type(endpoint).check_messages is Transport.check_messages:
            pytest.skip("this transport does not check messages, and forwards all of them")

    @staticmethod
    async def _got(endpoint: Transport, external: ExternalBlob, source: Transport, *, tag: int = 1) -> bytes:
        """Offer a blob and fetch it without keeping it."""
        return await endpoint.fetch(
            external.blob_hash, sources=[source.peer_id], max_bytes=external.size, timeout=TIMEOUT, tag=tag, keep=False
        )

    @staticmethod
    async def _fetched(endpoint: Transport, blob_hash: bytes, source: bytes) -> None:
        blob = await endpoint.fetch(blob_hash, sources=[source], max_bytes=4, timeout=TIMEOUT, tag=1)
        assert_blob(blob, b"blob")

    @staticmethod
    async def _all_members(endpoints: Sequence[Transport], *, with_self: bool = False) -> None:
        for endpoint in endpoints:
            await endpoint.set_peers({other.peer_id: other.address for other in endpoints if with_self or other is not endpoint})

    @staticmethod
    async def _nothing_more(endpoints: Sequence[Transport]) -> None:
        """Check that no message is ready to be read. It does not wait for later messages."""
        for endpoint in endpoints:
            with anyio.move_on_after(0.05):
                incoming = await endpoint.receive()
                pytest.fail(
                    "receive must give each message of members once and nothing else, got one too many: "
                    f"{shown(incoming.message)} by way of {shown(incoming.via)}"
                )


def assert_blob(blob: bytes, wanted: bytes) -> None:
    """Check what `fetch` returned."""
    __tracebackhide__ = True  # so that pytest shows the test
    assert blob == wanted, f"fetch must return the blob of the hash that it was asked for, {shown(wanted)}, got {shown(blob)}"


def assert_messages(got: Sequence[Incoming], messages: Sequence[bytes], wanted: str) -> None:
    """Check the messages that `receive` gave, in their order. wanted: what the contract wants."""
    __tracebackhide__ = True
    came = [incoming.message for incoming in got]
    assert came == list(messages), f"{wanted}: expected {shown(list(messages))}, got {shown(came)}"
