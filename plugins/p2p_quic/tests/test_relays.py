"""Which relays are contacted, and what is published: never a relay that the run does not name."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Self

import anyio
import iroh
import pytest
from anyio.abc import SocketStream

from psyche_core.config.options.loading import load_settings
from psyche_core.errors import CannotBind, ConfigError, UserError, WireError
from psyche_core.hookspecs import TransportContext
from psyche_core.testing.transport import connected, received, until
from psyche_core.wire import codec
from psyche_core.wire.signing import SecretKey
from psyche_p2p_quic.addresses.interfaces import addresses_of
from psyche_p2p_quic.addresses.peer_address import PeerAddress
from psyche_p2p_quic.addresses.relay_urls import N0_RELAYS, RelayChoice, canonical_relay, canonical_relays
from psyche_p2p_quic.endpoint.endpoint import ALPN, Endpoint
from psyche_p2p_quic.options import QuicOptions, parse_advertised
from psyche_p2p_quic.relay.access import MemberAccess, OpenAccess, TokenAccess
from psyche_p2p_quic.relay.limits import RelayLimits
from psyche_p2p_quic.relay.login import why_refused
from psyche_p2p_quic.relay.server import RelayServer
from psyche_p2p_quic.relay_program import service
from psyche_p2p_quic.relay_program.service import RelayService, ServiceOptions
from psyche_p2p_quic.settings import QuicSettings
from psyche_p2p_quic.transport import QuicTransport

QUICK = QuicSettings(heartbeat_seconds=0.05, silent_beats=40, dial_grace_seconds=0.0, address_seconds=0.05)


def options(**given: object) -> QuicOptions:
    return load_settings(QuicOptions, given)


def member(*, settings: QuicSettings = QUICK, **given: object) -> QuicTransport:
    return QuicTransport("run", SecretKey.generate(), settings=settings, options=options(**given))


def relay_service() -> RelayService:
    return RelayService(OpenAccess(), ServiceOptions(port=0))


class Trap:
    """A listener that nobody should connect to."""

    def __init__(self) -> None:
        self.connections = 0
        self.url = ""


@asynccontextmanager
async def trap() -> AsyncIterator[Trap]:
    caught = Trap()

    async def count(stream: SocketStream) -> None:
        caught.connections += 1
        await stream.aclose()

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        caught.url = f"http://127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}"
        tasks.start_soon(listener.serve, count)
        yield caught
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("https://Relay.Example.org", "https://relay.example.org"),
        ("https://relay.example.org.:443/", "https://relay.example.org"),
        ("http://198.51.100.7:80/relay", "http://198.51.100.7"),
        ("http://[2001:DB8:0::1]:3340", "http://[2001:db8::1]:3340"),
    ],
)
def test_a_relay_has_one_spelling(written: str, meant: str) -> None:
    assert canonical_relay(written) == meant
    assert canonical_relay(meant) == meant


@pytest.mark.parametrize(
    "wrong",
    [
        *["", "relay.example.org", "ftp://a", "http://", "http://u:p@a", "http://a/x", "http://a?x", "http://a#x"],
        *["http://a:0", "http://a:99999", "http://a b", "http://-a", "https://[::1", "http://" + "a" * 64],
    ],
)
def test_what_is_no_relay_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="relay"):
        canonical_relay(wrong)


def test_a_members_own_choice_takes_precedence() -> None:
    run = ["https://run.example.org", "nonsense"]
    assert RelayChoice.parse(None).of(run) == ("https://run.example.org",)
    assert RelayChoice.parse("disabled").of(run) == ()
    assert RelayChoice.parse("n0").of(run) == N0_RELAYS
    assert RelayChoice.parse("http://a, http://b/").of(run) == ("http://a", "http://b")
    with pytest.raises(ValueError, match="at most 8"):
        canonical_relays(f"http://a{number}" for number in range(9))
    with pytest.raises(ConfigError, match=r"^--iroh-relay: got the relay 'my relay', expected http"):
        options(iroh_relay="my relay")


def test_options_that_exclude_each_other() -> None:
    for given, sentence in (
        ({"iroh_relay": "disabled", "iroh_relay_token": "x"}, "no relay is shown a token"),
        ({"iroh_relay": "n0", "iroh_relay_token": "x"}, "n0's relays ask for none"),
        ({"iroh_relay": "disabled", "iroh_discovery": "observer"}, "an observer belongs to a relay"),
    ):
        with pytest.raises(ConfigError, match=sentence) as refused:
            options(**given)
        assert str(refused.value).startswith("--iroh-relay ")  # and not with all options, of which one is a secret


def test_advertised_addresses() -> None:
    assert parse_advertised("203.0.113.7, 203.0.113.7:4433,[2001:db8::7]:1,2001:db8::8") == (
        ("203.0.113.7", None),
        ("203.0.113.7", 4433),
        ("2001:db8::7", 1),
        ("2001:db8::8", None),
    )
    for wrong in ("", "home.example.org", "203.0.113.7:", "203.0.113.7:0", "0.0.0.0", "224.0.0.1", "1.2.3.4:99999", "[::1"):
        with pytest.raises(ConfigError, match="--advertise-address"):
            options(advertise_address=wrong or ",")


@pytest.mark.parametrize("advertised", ["203.0.113.7", "203.0.113.8:4433,2001:db8::7"])
def test_an_advertised_address_needs_a_port_that_stays(advertised: str) -> None:
    context = TransportContext(run_id="run", key=SecretKey.generate(), settings=options(advertise_address=advertised))
    with pytest.raises(
        ConfigError, match=r"names no port, and without --bind-p2p-port .*; give .*:PORT with the port"
    ) as refused:
        QuicTransport.from_context(context)
    assert "\n" not in str(refused.value)
    QuicTransport.from_context(replace(context, port=4433))
    QuicTransport.from_context(replace(context, settings=options(advertise_address="203.0.113.7:4433")))


def test_an_address_of_version_1_is_still_read_and_one_of_version_2_keeps_everything() -> None:
    old = codec.encode([1, [["203.0.113.7", 4433]], None])
    assert PeerAddress.decode(old) == PeerAddress((("203.0.113.7", 4433),))
    new = PeerAddress((("203.0.113.7", 4433),), "https://relay.example.org", b"8 bytes.")
    assert PeerAddress.decode(new.encode()) == new
    with pytest.raises(WireError, match="version 3, expected version 2"):
        PeerAddress.decode(codec.encode([3, [], None, b"8 bytes."]))
    for relay in ("relay.example.org", "http://a/x", "http://" + "a." * 200):
        with pytest.raises(WireError):
            PeerAddress.decode(codec.encode([2, [], relay, b"8 bytes."]))


def test_an_interface_has_addresses_of_both_families() -> None:
    assert addresses_of("lo")[0] == "127.0.0.1"
    assert addresses_of("192.0.2.7") == ("192.0.2.7",)
    with pytest.raises(CannotBind, match=r"cannot bind 'l0': expected an IP address of this machine, or one of .*\(lo"):
        addresses_of("l0")


@pytest.mark.quic
async def test_members_connect_through_the_runs_relay() -> None:
    async with relay_service() as relay, member() as one, member() as other:
        for each in (one, other):
            await each.use_relays([relay.url])
            assert PeerAddress.decode(each.address).relay == canonical_relay(relay.url)
        bare = {each.peer_id: PeerAddress((), canonical_relay(relay.url), b"8 bytes.").encode() for each in (one, other)}
        await one.set_peers(bare)
        await other.set_peers(bare)
        await connected((one, other))
        await one.broadcast(b"over the relay", tag=1)
        assert [each.message for each in await received(other, 1)] == [b"over the relay"]
        assert relay.relay.router.counters.frames_forwarded > 0
        await until(lambda: [each.peer for each in one.paths] == [other.peer_id])


@pytest.mark.quic
async def test_a_relay_that_only_a_peer_names_is_never_contacted() -> None:
    async with relay_service() as relay, trap() as ours, trap() as foreign, member() as one:
        await one.use_relays([relay.url, ours.url])
        strangers = {SecretKey.generate().public: PeerAddress((), url, b"8 bytes.").encode() for url in (ours.url, foreign.url)}
        await one.set_peers(strangers)
        await until(lambda: ours.connections > 2)  # the relay of the run is tried again and again
        assert foreign.connections == 0


@pytest.mark.quic
async def test_a_peer_that_lives_at_another_relay_does_not_lead_us_there() -> None:
    async with relay_service() as ours, relay_service() as theirs, member() as one:
        await one.use_relays([ours.url])
        relays = iroh.RelayMap.empty()
        for url in (ours.url, theirs.url):
            relays.insert(iroh.RelayConfig(url=url, quic_port=None, auth_token=None))
        key = SecretKey.generate()
        endpoint = await iroh.Endpoint.bind(
            iroh.EndpointOptions(
                preset=iroh.preset_minimal(), relay_mode=iroh.RelayMode.custom(relays), secret_key=key.seed, alpns=[ALPN]
            )
        )
        await endpoint.online()
        await one.set_peers({key.public: PeerAddress((), canonical_relay(theirs.url), b"8 bytes.").encode()})
        target = iroh.EndpointAddr(iroh.EndpointId.from_bytes(one.peer_id), ours.url, [])
        connection = await endpoint.connect(target, ALPN)
        await until(lambda: theirs.relay.router.is_connected(key.public) or ours.relay.router.is_connected(key.public))
        await anyio.sleep(0.5)  # time to be told of another relay
        assert ours.relay.router.is_connected(one.peer_id)
        assert not theirs.relay.router.is_connected(one.peer_id)
        connection.close(0, b"")
        await endpoint.close()


@pytest.mark.quic
async def test_nothing_is_contacted_by_a_member_that_disabled_relays() -> None:
    async with trap() as used, trap() as unused, member(iroh_relay="disabled") as one, member() as other:
        await one.use_relays([unused.url])
        await one.set_peers({SecretKey.generate().public: PeerAddress((), unused.url, b"8 bytes.").encode()})
        await other.use_relays([used.url])
        await until(lambda: used.connections > 2)
        assert unused.connections == 0
        assert PeerAddress.decode(one.address).relay is None


@pytest.mark.quic
async def test_an_advertised_address_is_published_first_and_the_observed_one_follows() -> None:
    async with relay_service() as relay, member(advertise_address="203.0.113.7:4433,203.0.113.8") as one:
        await one.use_relays([relay.url])
        sockets = PeerAddress.decode(one.address).sockets
        assert one._endpoint is not None
        assert sockets == (("203.0.113.7", 4433), ("203.0.113.8", one._endpoint.port))
        assert relay.observer is not None
        assert relay.observer.caller_count == 1


@pytest.mark.quic
async def test_a_new_address_of_the_same_life_leaves_the_connection_alone() -> None:
    patient = replace(QUICK, dial_grace_seconds=60.0)  # so that two dials do not cross, of which one would replace the other
    async with member(settings=patient) as one, member(settings=patient) as other:
        answers, dials = sorted((one, other), key=lambda each: each.peer_id, reverse=True)  # the smaller key dials
        await answers.set_peers({dials.peer_id: dials.address})
        await dials.set_peers({answers.peer_id: answers.address})
        await connected((one, other))
        assert one._mesh is not None
        session = one._mesh.sessions[other.peer_id]
        published = PeerAddress.decode(other.address)
        moved = PeerAddress((("192.0.2.1", 4433), *published.sockets), None, published.instance)
        await one.set_peers({other.peer_id: moved.encode()})
        await one.broadcast(b"still here", tag=1)
        assert [each.message for each in await received(other, 1)] == [b"still here"]
        assert one._mesh.sessions[other.peer_id] is session
        assert not session.ended.is_set()
        restarted = PeerAddress(published.sockets, None, b"another.")
        await one.set_peers({other.peer_id: restarted.encode()})
        await until(session.ended.is_set)


@pytest.mark.quic
async def test_a_relay_can_be_replaced_by_another() -> None:
    async with relay_service() as old, relay_service() as new, member() as one:
        await one.use_relays([old.url])
        await until(lambda: old.relay.router.is_connected(one.peer_id))
        await one.use_relays([new.url])
        await until(lambda: new.relay.router.is_connected(one.peer_id))
        assert PeerAddress.decode(one.address).relay == canonical_relay(new.url)


@pytest.mark.quic
async def test_a_member_whose_token_is_refused_is_told_so_and_what_to_do_until_it_is_let_in() -> None:
    access = TokenAccess(["right"])
    quick = replace(QUICK, relay_check_seconds=0.05)
    async with RelayService(access, ServiceOptions(port=0)) as relay:
        for token, words in ((None, "none was given"), ("wrong", "another one was given")):
            given = options(**({} if token is None else {"iroh_relay_token": token}))
            one = QuicTransport("run", SecretKey.generate(), settings=quick, options=given)
            async with one:
                await one.use_relays([relay.url])
                await until(lambda: bool(one.problems))  # noqa: B023  # it is over before the next
                url = canonical_relay(relay.url)
                assert one.problems == (
                    f"the relay {url} needs a token, and {words}; ask its owner for it, and give it with --iroh-relay-token",
                )
                if token is not None:
                    access.replace(["wrong"])
                    await until(lambda: not one.problems)  # noqa: B023


@pytest.mark.quic
async def test_who_is_no_member_yet_is_not_told_that_the_relay_serves_members_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client goes to the relay before it loads the model, and joins after that."""
    answers: list[str | None] = []

    async def listening(*arguments: Any, **more: Any) -> str | None:
        answers.append(await why_refused(*arguments, **more))
        return answers[-1]

    monkeypatch.setattr("psyche_p2p_quic.endpoint.relay_refusals.why_refused", listening)
    access = MemberAccess()
    quick = replace(QUICK, relay_check_seconds=0.05)
    served = ServiceOptions(port=0, limits=RelayLimits(admission_seconds=0.05))
    async with RelayService(access, served) as relay, member(settings=quick) as one:
        await one.use_relays([relay.url])
        await until(lambda: len(answers) >= 2)
        assert (answers[0], one.problems) == (None, ())
        assert relay.relay.router.counters.logins_denied >= 2
        await one.set_peers({one.peer_id: one.address})
        await until(lambda: bool(one.problems))
        refused = f"{canonical_relay(relay.url)}: the relay refuses this key: {MemberAccess.refusal}"
        assert one.problems[0].startswith(refused)
        access.replace([one.peer_id])
        await until(lambda: not one.problems)


@pytest.mark.quic
@pytest.mark.parametrize("taken", [1, 99])
async def test_a_port_that_the_system_chooses_is_free_for_both_or_another_is_taken(
    taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody has the UDP port of the number that the system gives for TCP: the first time, or always."""
    occupied: dict[int, socket.socket] = {}

    class Occupying(RelayServer):
        async def __aenter__(self) -> Self:
            await super().__aenter__()
            if len(occupied) < taken:
                occupied[self.port] = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                with suppress(OSError):  # another test's process has it: taken as well
                    occupied[self.port].bind(("127.0.0.1", self.port))
            return self

    monkeypatch.setattr(service, "RelayServer", Occupying)
    try:
        if taken == 1:
            async with RelayService(OpenAccess(), ServiceOptions(port=0)) as relay:
                assert relay.observer is not None
                assert relay.relay.port not in occupied
        else:
            with pytest.raises(UserError, match="the address observer cannot use UDP port"):
                await RelayService(OpenAccess(), ServiceOptions(port=0)).__aenter__()
    finally:
        for each in occupied.values():
            each.close()


@pytest.mark.quic
async def test_of_overlapping_choices_of_relays_the_newest_stays() -> None:
    async with relay_service() as old, relay_service() as new, member() as one:
        async with anyio.create_task_group() as tasks:
            for urls in ([old.url], [], [new.url], [old.url, new.url], [new.url]):
                tasks.start_soon(one.use_relays, urls)
        await until(lambda: new.relay.router.is_connected(one.peer_id))
        assert PeerAddress.decode(one.address).relay == canonical_relay(new.url)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one.use_relays, [old.url])
            tasks.start_soon(one.use_relays, [])
        assert PeerAddress.decode(one.address).relay is None
        assert not old.relay.router.is_connected(one.peer_id)


@pytest.mark.quic
async def test_a_relay_of_a_newer_choice_is_shown_the_token_of_that_choice() -> None:
    """The older call is still at work when the newer one comes, and goes on with what the newer one wants."""
    asks = RelayService(TokenAccess(["new"]), ServiceOptions(port=0))
    async with asks as relay, relay_service() as older:
        key = SecretKey.generate()
        endpoint = await Endpoint.bind(key.seed, interface="127.0.0.1", port=0, relays=True)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(partial(endpoint.use_relays, [older.url], token="old"))
                tasks.start_soon(partial(endpoint.use_relays, [relay.url], token="new"))
            await until(lambda: relay.relay.router.is_connected(key.public))
            assert relay.relay.router.counters.logins_denied == 0
        finally:
            await endpoint.aclose(timeout=1.0)


@pytest.mark.quic
async def test_members_stay_connected_when_their_relay_is_replaced_and_meet_others_at_the_new_one() -> None:
    """The coordinator offers another URL, one member hears of it before the other, and the old relay ends. Then a third comes."""
    async with member() as one, member() as other, member() as late, relay_service() as new:

        async def tell_addresses(*members: QuicTransport) -> None:
            """As the coordinator does, but without sockets, so that only a relay leads from one to the other."""
            bare = {}
            for each in members:
                published = PeerAddress.decode(each.address)
                bare[each.peer_id] = PeerAddress((), published.relay, published.instance).encode()
            for each in members:
                await each.set_peers(bare)

        async with relay_service() as old:
            for each in (one, other):
                await each.use_relays([old.url])
            await tell_addresses(one, other)
            await connected((one, other))
            for each in (one, other):
                await each.use_relays([new.url])
                await tell_addresses(one, other)
            assert {PeerAddress.decode(each.address).relay for each in (one, other)} == {canonical_relay(new.url)}
            await other.broadcast(b"replaced", tag=1)
            assert [each.message for each in await received(one, 1)] == [b"replaced"]
            assert [each.stats.peers for each in (one, other)] == [(other.peer_id,), (one.peer_id,)]
        await until(lambda: all(new.relay.router.is_connected(each.peer_id) for each in (one, other)))
        forwarded = new.relay.router.counters.frames_forwarded
        await late.use_relays([new.url])
        await tell_addresses(one, other, late)
        await connected((one, other, late))
        assert new.relay.router.counters.frames_forwarded > forwarded
