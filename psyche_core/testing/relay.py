"""Conformance of relays: what `psyche_core.interfaces.relay` promises, as tests a plugin author inherits.

    class TestMyRelay(RelayConformance):
        registration = MY_REGISTRATION  # as its hook returns it

        @asynccontextmanager
        async def connect(self, url: str, key: SecretKey) -> AsyncIterator[Callable[[], Awaitable[None]]]:
            ...  # a client of that key: TransportError if it is refused; yields a function that waits until it is disconnected

Every wait is for an event, with a deadline.
"""

# ruff: noqa: D102  # the tests' names describe them

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import ClassVar

from psyche_core.errors import TransportError, UserError
from psyche_core.hookspecs import RelayContext, RelayRegistration
from psyche_core.interfaces.relay import Relay
from psyche_core.testing.conformance import Conformance
from psyche_core.testing.contracts import CONTRACTS, Contract
from psyche_core.testing.needs_pytest import pytest
from psyche_core.testing.ports import free_port
from psyche_core.testing.sentences import raises, shown, within
from psyche_core.wire.signing import SecretKey

TIMEOUT = 30.0


class RelayConformance(Conformance):
    """Inherit, set `registration`, and override `connect`."""

    contract: ClassVar[Contract] = CONTRACTS["relay"]
    registration: ClassVar[RelayRegistration]

    def connect(self, url: str, key: SecretKey) -> AbstractAsyncContextManager[Callable[[], Awaitable[None]]]:
        raise NotImplementedError

    def create(self, **given: object) -> Relay:
        return self.registration.create(RelayContext(**given))  # type: ignore[arg-type]  # as tests give them

    @pytest.mark.anyio
    async def test_it_says_where_members_reach_it(self) -> None:
        port = free_port()
        async with self.create(port=port) as relay:
            assert str(port) in relay.url, f"url must name the port on which it listens, {port}, got {shown(relay.url)}"
        async with self.create(url="https://relay.example.org/") as relay:
            assert relay.url == "https://relay.example.org/", (
                f"url must be the one of RelayContext.url where one is given, https://relay.example.org/, got {shown(relay.url)}"
            )

    @pytest.mark.anyio
    async def test_members_are_served_and_others_are_not(self) -> None:
        member, stranger = SecretKey.generate(), SecretKey.generate()
        with within(TIMEOUT, "a relay must serve its members and refuse others"):
            async with self.create() as relay:
                relay.set_members([member.public])
                async with self.connect(relay.url, member):
                    pass
                with raises(TransportError, "a relay must serve members only, so a stranger's connection must be refused"):
                    async with self.connect(relay.url, stranger):
                        pass

    @pytest.mark.anyio
    async def test_nobody_is_a_member_at_first(self) -> None:
        with within(TIMEOUT, "a relay must refuse everybody before the first set_members"):
            async with self.create() as relay:
                with raises(TransportError, "nobody is a member before the first set_members, so a connection must be refused"):
                    async with self.connect(relay.url, SecretKey.generate()):
                        pass

    @pytest.mark.anyio
    async def test_who_is_no_member_any_more_is_disconnected(self) -> None:
        member, other = SecretKey.generate(), SecretKey.generate()
        with within(TIMEOUT, "set_members must disconnect who is not named any more"):
            async with self.create() as relay:
                relay.set_members([member.public, other.public])
                async with self.connect(relay.url, member) as disconnected, self.connect(relay.url, other):
                    relay.set_members([other.public])
                    await disconnected()

    @pytest.mark.anyio
    async def test_its_end_disconnects_everybody_and_may_be_repeated(self) -> None:
        member = SecretKey.generate()
        with within(TIMEOUT, "aclose must disconnect everybody and end"):
            async with self.create() as relay:
                relay.set_members([member.public])
                async with self.connect(relay.url, member) as disconnected:
                    await relay.aclose()
                    await disconnected()
                await relay.aclose()

    @pytest.mark.anyio
    async def test_a_port_that_is_taken_is_an_error_of_the_user(self) -> None:
        port = free_port()
        async with self.create(port=port):
            wanted = "entering a relay whose port is taken must raise UserError, with the port in its sentence"
            with raises(UserError, wanted, match=str(port)):
                async with self.create(port=port):
                    pass
