"""What `psyche doctor network` makes of its figures, and what it says and returns as a program."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from psyche_core.cli import cli
from psyche_core.errors import UserError
from psyche_p2p_quic.doctor.checks import measure
from psyche_p2p_quic.doctor.report import lines
from psyche_p2p_quic.doctor.verdict import Figures, RelayFigures, judge, nat_kind
from psyche_p2p_quic.relay.access import MemberAccess, TokenAccess
from psyche_p2p_quic.relay_program.service import RelayService, ServiceOptions

HOME = (("192.168.1.23", 51514),)
URL, OTHER = "https://one.example.org", "https://two.example.org"


def relay(url: str = URL, **given: object) -> RelayFigures:
    return RelayFigures(url, **{"reachable": True, "ms": 20.0, **given})  # type: ignore[arg-type]


def figures(*relays: RelayFigures, local: tuple[tuple[str, int], ...] = HOME, server: bool = True) -> Figures:
    return Figures("server:1#ab", server, 20.0 if server else None, "" if server else "refused", local, relays)


@pytest.mark.parametrize(
    ("seen", "kind"),
    [
        ([], "unknown"),
        (["192.168.1.23:51514"], "none"),
        (["203.0.113.5:51514"], "keeps the port"),
        (["203.0.113.5:6000"], "changes the port"),
        (["203.0.113.5:6000", "203.0.113.5:6000"], "cone"),
        (["203.0.113.5:6000", "203.0.113.5:6001"], "symmetric"),
    ],
)
def test_the_kind_of_router_follows_from_what_observers_saw(seen: list[str], kind: str) -> None:
    assert nat_kind(HOME, seen) == kind


@pytest.mark.parametrize(
    ("measured", "kind", "begins"),
    [
        (figures(server=False), "impossible", "you cannot take part, because the server server:1#ab cannot be reached (refused)"),
        (figures(relay(udp=True, seen="203.0.113.5:51514")), "direct", "you can take part: others will reach"),
        (
            figures(relay(udp=True, seen="203.0.113.5:6000")),
            "direct",
            "you can take part: others will reach this machine directly, or mostly through the relay if",
        ),
        (
            figures(relay(udp=False)),
            "relayed",
            "you can take part, and will be relayed unless only the relay's UDP port",
        ),
        (
            figures(relay(udp=False, reachable=True), relay(OTHER, reachable=False)),
            "relayed",
            "you can take part, and will be relayed unless only the relay's UDP port",
        ),
        (figures(relay(udp=False), relay(OTHER, udp=False)), "relayed", "you will be relayed: no relay's observer answered"),
        (
            figures(relay(udp=True, seen="203.0.113.5:1"), relay(OTHER, udp=True, seen="203.0.113.5:2")),
            "relayed",
            "you will be relayed to members behind most routers",
        ),
        (figures(relay(udp=False, refused=True)), "unknown", "it is not known whether you can take part: no relay can be used"),
        (
            figures(*(relay(url, udp=False, refused=True) for url in (URL, OTHER))),
            "impossible",
            "you cannot take part, because UDP is most likely blocked here and no relay can be used",
        ),
        (
            figures(relay(reachable=False)),
            "unknown",
            (
                "it is not known whether you can take part: no relay that was asked can be used, so UDP was not tested; if "
                "it gets through here, members with public addresses"
            ),
        ),
        (
            figures(relay(reachable=False), local=(("45.1.2.3", 1),)),
            "unknown",
            (
                "it is not known whether you can take part: no relay that was asked can be used, so UDP was not tested; if "
                "it gets through here, others reach this machine directly"
            ),
        ),
        (
            figures(relay(udp=True, refused=True)),
            "direct",
            (
                "you can take part with members that have public addresses or are in the same network only, because this "
                "machine has no public address and no relay that was asked can be used"
            ),
        ),
        (figures(), "direct", "you can take part with members that have public addresses or are in the same network"),
        (figures(local=(("45.1.2.3", 1),)), "direct", "you can take part: this machine has a public address"),
        (figures(relay()), "relayed", "you can take part; whether directly"),
        (figures(relay(members_only=True)), "relayed", "you can take part, directly or through the relay: before you join"),
    ],
)
def test_the_verdict_is_one_of_three(measured: Figures, kind: str, begins: str) -> None:
    verdict = judge(measured)
    assert (verdict.kind, verdict.sentence[: len(begins)]) == (kind, begins)
    assert list(lines(measured, verdict))[-1] == verdict.sentence


def test_without_a_relay_it_is_said_that_udp_was_not_tested() -> None:
    assert judge(figures()).sentence.endswith("no relay was asked; UDP was not tested")
    assert judge(figures(local=(("45.1.2.3", 1),))).sentence.endswith("(no relay told how others see it; UDP was not tested)")


def test_a_symmetric_router_is_no_obstacle_with_ipv6() -> None:
    seen = [relay(url, udp=True, seen=f"203.0.113.5:{port}") for port, url in enumerate((URL, OTHER), 1)]
    assert judge(figures(*seen, local=(*HOME, ("2a10:1::2", 1)))).kind == "direct"


def test_advice_names_the_clock_and_the_port() -> None:
    seen = [relay(url, udp=True, seen=f"203.0.113.5:{port}", clock_offset=-61.0) for port, url in enumerate((URL, OTHER), 1)]
    advice = " ".join(judge(figures(*seen)).advice)
    assert "--advertise-address" in advice
    assert "-61 s off" in advice


@pytest.mark.parametrize(
    ("measured", "says"),
    [
        (figures(server=False), "ask the server's owner"),
        (replace(figures(), run_id="first-light"), "the run names no relay"),
        (figures(), "give --relay URL or --run-id NAME"),
        (figures(relay(reachable=False)), f"check the URL {URL}, or ask"),
    ],
)
def test_what_cannot_be_reached_or_was_not_asked_has_its_own_advice(measured: Figures, says: str) -> None:
    (advice,) = judge(measured).advice
    assert advice.startswith(says)


@pytest.mark.parametrize(
    ("relays", "line", "says"),
    [
        ([relay(udp=False)], "no answer, so it is blocked either here or at the relay", "here: let UDP out"),
        (
            [relay(udp=False), relay(f"{URL}:3341", udp=False)],
            "no answer, so it is blocked either here or at the relay",
            "here: let UDP out",
        ),
        (
            [relay(udp=False), relay(OTHER, udp=False)],
            "no answer from any relay, so it is most likely blocked here",
            "let UDP out",
        ),
        (
            [relay(udp=False), relay(OTHER, udp=True, seen="203.0.113.5:51514")],
            "open",
            f"UDP is open here, but the observer of {URL} does not answer: its owner must let UDP in",
        ),
    ],
)
def test_udp_is_blamed_on_nobody_whom_the_figures_do_not_name(relays: list[RelayFigures], line: str, says: str) -> None:
    measured = figures(*relays)
    verdict = judge(measured)
    assert any(each.startswith(f"UDP: {line}") for each in lines(measured, verdict))
    (advice,) = verdict.advice
    assert advice.startswith(says)


def test_a_clock_that_is_right_is_not_minus_nothing_off() -> None:
    measured = figures(relay(clock_offset=-0.3))
    assert "our clock is +0 s off its own" in next(line for line in lines(measured, judge(measured)) if URL in line)


@pytest.mark.quic
@pytest.mark.anyio
@pytest.mark.parametrize("rates", [False, True])
async def test_the_observer_of_a_relay_with_tokens_tells_who_gives_one(rates: bool) -> None:
    async with RelayService(TokenAccess(["right"]), ServiceOptions(port=0)) as relay:
        figures = await measure("127.0.0.1:1", [relay.url], interface="127.0.0.1", token="right", rates=rates)
    assert figures.relays[0].seen == f"127.0.0.1:{figures.local[0][1]}"
    assert figures.relays[0].problem == ""
    assert (figures.relays[0].upload is not None) is rates


@pytest.mark.quic
@pytest.mark.anyio
async def test_a_relay_for_members_is_told_apart_from_one_that_is_of_no_use() -> None:
    async with RelayService(MemberAccess(), ServiceOptions(port=0)) as relay:
        figures = await measure("127.0.0.1:1#insecure", [relay.url], interface="127.0.0.1", rates=False)
    assert figures.relays[0].members_only
    assert not figures.relays[0].refused
    assert figures.relays[0].udp
    assert "before you join" in figures.relays[0].problem


@pytest.mark.quic
@pytest.mark.anyio
async def test_why_a_relay_or_the_server_is_not_reached_is_said_in_words() -> None:
    async with RelayService(TokenAccess(["right"]), ServiceOptions(port=0)) as relay:
        plain = relay.url.replace("http:", "https:")
        figures = await measure("127.0.0.1:1", ["http://127.0.0.1:1", plain], interface="127.0.0.1", rates=False)
    refused, without_tls = figures.relays
    assert (figures.server_problem, refused.problem) == ("Connection refused", "Connection refused")
    assert without_tls.problem == "it does not speak TLS; if it is a plain one, its URL begins with http://"


@pytest.mark.quic
@pytest.mark.anyio
@pytest.mark.parametrize("rates", [False, True])
async def test_a_relay_that_refuses_the_token_is_told_apart_with_and_without_rates(rates: bool) -> None:
    async with RelayService(TokenAccess(["right"]), ServiceOptions(port=0)) as relay:
        figures = await measure("127.0.0.1:1", [relay.url], interface="127.0.0.1", token="wrong", rates=rates)
    assert figures.relays[0].refused
    assert "give the relay's token with --relay-token" in judge(figures).advice


@pytest.mark.quic
def test_an_unreachable_server_is_exit_code_1_and_a_wrong_option_2() -> None:
    done = CliRunner().invoke(cli, ["doctor", "network", "--server-addr", "127.0.0.1:1", "--json"], standalone_mode=False)
    assert json.loads(done.output)["verdict"]["kind"] == "impossible"
    assert done.return_value == 1
    for wrong in (
        ["--server-addr", "nowhere"],
        ["--server-addr", "127.0.0.1:1#00ff"],
        ["--server-addr", "127.0.0.1:1#"],
        ["--server-addr", "127.0.0.1:99999"],
        ["--server-addr", "127.0.0.1:1", "--relay", "nonsense"],
    ):
        assert isinstance(CliRunner().invoke(cli, ["doctor", "network", *wrong]).exception, UserError)  # exit status 2


def test_what_could_not_be_found_out_is_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    async def measured(server: str, *_: object, **__: object) -> Figures:
        return replace(figures(relay(reachable=False)), server=server)

    monkeypatch.setattr("psyche_p2p_quic.doctor.checks.measure", measured)
    words = ["doctor", "network", "--server-addr", "127.0.0.1:1", "--bind-p2p-interface", "127.0.0.1", "--json"]
    done = CliRunner().invoke(cli, words, standalone_mode=False)
    assert json.loads(done.output)["verdict"]["kind"] == "unknown"
    assert done.return_value == 1


def test_a_token_for_no_relay_is_refused_unless_it_comes_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = ["doctor", "network", "--server-addr", "127.0.0.1:1", "--bind-p2p-interface", "127.0.0.1"]
    refused = CliRunner().invoke(cli, [*words, "--relay-token", "x"]).exception
    assert isinstance(refused, UserError)
    assert str(refused) == "--relay-token is for a relay, and none is tested; name one with --relay, or the run with --run-id"
    monkeypatch.setattr("psyche_p2p_quic.doctor.checks.measure", _measured_without_relays)
    with pytest.raises(UserError, match="the run 'first' names none; name one with --relay"):
        CliRunner().invoke(cli, [*words, "--run-id", "first", "--relay-token", "x"], catch_exceptions=False)
    monkeypatch.setenv("PSYCHE_IROH_RELAY_TOKEN", "x")  # a client on this machine may need it
    assert CliRunner().invoke(cli, words).exception is None


async def _measured_without_relays(server: str, *_: object, **__: object) -> Figures:
    return Figures(server, True, 1.0, "", (("192.0.2.1", 1),), ())
