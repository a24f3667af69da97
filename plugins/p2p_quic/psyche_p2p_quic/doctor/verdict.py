"""Interprets the figures of a network check. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from psyche_core.text_safety import printable

CLOCK_SECONDS = 5.0
"""A clock offset of at least this many seconds is reported: times of a run are whole seconds."""


@dataclass(frozen=True, slots=True)
class RelayFigures:
    """The figures of one relay. reachable: over TCP. ms: of one request. udp: whether its observer answered over UDP; None if it
    has no observer.

    seen: the `ip:port` that the observer saw; None if it did not answer. clock_offset: our clock minus the relay's, seconds, to
    about one second. upload, download: bytes a second; None if not measured. problem: why something was not measured. refused:
    whether it needs another token than it got. members_only: whether it serves only members of a run, and our key is not one now.
    """

    url: str
    reachable: bool
    ms: float | None = None
    udp: bool | None = None
    seen: str | None = None
    clock_offset: float | None = None
    upload: float | None = None
    download: float | None = None
    problem: str = ""
    refused: bool = False
    members_only: bool = False


@dataclass(frozen=True, slots=True)
class Figures:
    """All that was measured. server: address of the coordinator. local: (ip, port) pairs that the endpoint is bound to.

    run_id: the run that was asked for its relays, None if none was. server_wrong, server_unnamed: see `ServerFigures`.
    """

    server: str
    server_reachable: bool
    server_ms: float | None
    server_problem: str = ""
    local: tuple[tuple[str, int], ...] = ()
    relays: tuple[RelayFigures, ...] = ()
    run_id: str | None = None
    server_wrong: str = ""
    server_unnamed: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result. kind: `direct`, `relayed` or `impossible`; `unknown` if what was measured does not tell. sentence: for people.

    nat: see `nat_kind`. udp: whether an observer answered over UDP; None if none was asked. blamed: what is known of who blocks
    UDP if none answered: `either`, if all observers are on one host, else `here`. advice: what would help.
    """

    kind: str
    sentence: str
    nat: str
    seen: tuple[str, ...] = ()
    udp: bool | None = None
    advice: tuple[str, ...] = field(default=())
    blamed: str = ""


def nat_kind(local: Sequence[tuple[str, int]], seen: Sequence[str]) -> str:
    """Return what is between us and the internet, from addresses that observers at different places saw.

    `none`: we have the address that others see. `cone`: the same port for all destinations. `symmetric`: another port for each.
    `keeps the port`, `changes the port`: only one observer was asked, so it is unknown whether that holds for all destinations.
    `unknown`: no observer answered.
    """
    if not seen:
        return "unknown"

    own = {f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}" for ip, port in local}
    if set(seen) <= own:
        return "none"
    if len(seen) > 1:
        return "cone" if len(set(seen)) == 1 else "symmetric"

    ports = {port for _, port in local}
    return "keeps the port" if int(seen[0].rpartition(":")[2]) in ports else "changes the port"


def who_blocks_udp(relays: Sequence[RelayFigures]) -> str:
    """Return `either` if one host's observers did not answer over UDP, `here` if those of several did not, else ""."""
    asked = [relay for relay in relays if relay.udp is not None]
    if not asked or any(relay.udp for relay in asked):
        return ""
    return "here" if len({urlsplit(relay.url).hostname for relay in asked}) > 1 else "either"


def judge(figures: Figures) -> Verdict:
    """Return whether this machine can take part, and how it will be reached."""
    blamed = who_blocks_udp(figures.relays)
    verdict = _judge(figures, blamed)
    return replace(verdict, blamed=blamed)


def _judge(figures: Figures, blamed: str) -> Verdict:
    reachable = [relay for relay in figures.relays if relay.reachable and not relay.refused]
    answers = [relay.udp for relay in figures.relays if relay.udp is not None]
    udp = any(answers) if answers else None
    seen = tuple(relay.seen for relay in figures.relays if relay.seen is not None)
    nat = nat_kind(figures.local, seen)
    global6 = any(":" in ip and ipaddress.ip_address(ip).is_global for ip, _ in figures.local)
    advice = tuple(_advice(figures, nat, global6=global6))
    if not figures.server_reachable:
        why = f"the server {figures.server} cannot be reached ({figures.server_problem or 'no answer'})"
        return Verdict("impossible", f"you cannot take part, because {why}", nat, seen, udp, advice)
    if figures.server_wrong:
        place = printable(figures.server.partition("#")[0])
        sentence = f"you cannot take part with the address {place}: {figures.server_wrong}"
        return Verdict("impossible", sentence, nat, seen, udp, advice)

    if udp is False and blamed == "either":
        if reachable:
            sentence = (
                "you can take part, and will be relayed unless only the relay's UDP port is closed: its observer did not answer, "
                "so UDP is blocked either here or at the relay"
            )
            return Verdict("relayed", sentence, nat, seen, udp, advice)
        sentence = (
            "it is not known whether you can take part: no relay can be used, and the observer did not answer, so UDP is blocked "
            "either here or at the relay"
        )
        return Verdict("unknown", sentence, nat, seen, udp, advice)

    if udp is False:
        if reachable:
            sentence = "you will be relayed: no relay's observer answered over UDP, so UDP is most likely blocked here"
            return Verdict("relayed", sentence, nat, seen, udp, advice)
        sentence = "you cannot take part, because UDP is most likely blocked here and no relay can be used"
        return Verdict("impossible", sentence, nat, seen, udp, advice)

    if nat == "symmetric" and not global6:
        if not reachable:
            sentence = "you cannot take part, because the router changes ports for each destination and no relay can be used"
            return Verdict("impossible", sentence, nat, seen, udp, advice)
        sentence = (
            "you will be relayed to members behind most routers, because yours uses another port for each destination; members "
            "with public addresses are reached directly"
        )
        return Verdict("relayed", sentence, nat, seen, udp, advice)

    if nat == "none":
        return Verdict("direct", "you can take part: others reach this machine directly", nat, seen, udp, advice)
    if nat == "unknown":
        public = any(ipaddress.ip_address(ip).is_global for ip, _ in figures.local)
        if udp is None and figures.relays and not reachable:
            then = (
                "others reach this machine directly" if public else "members with public addresses can be reached, and no others"
            )
            sentence = (
                "it is not known whether you can take part: no relay that was asked can be used, so UDP was not tested; if "
                f"it gets through here, {then}"
            )
            return Verdict("unknown", sentence, nat, seen, udp, advice)
        if public:
            untested = "" if udp else "; UDP was not tested"
            sentence = f"you can take part: this machine has a public address (no relay told how others see it{untested})"
            return Verdict("direct", sentence, nat, seen, udp, advice)
        if reachable and all(relay.members_only for relay in reachable):
            sentence = (
                "you can take part, directly or through the relay: before you join, it cannot be told which, because the relay "
                "serves members only; the client's log says it for each member"
            )
            return Verdict("relayed", sentence, nat, seen, udp, advice)
        if reachable:
            sentence = "you can take part; whether directly or through the relay cannot be told without an observer"
            return Verdict("relayed", sentence, nat, seen, udp, advice)
        untested = "no relay that was asked can be used" if udp else "no relay was asked; UDP was not tested"
        sentence = (
            "you can take part with members that have public addresses or are in the same network only, because this machine has "
            f"no public address and {untested}"
        )
        return Verdict("direct", sentence, nat, seen, udp, advice)

    if nat == "changes the port" and not global6:
        sentence = (
            "you can take part: others will reach this machine directly, or mostly through the relay if the router uses another "
            "port for each destination"
        )
        return Verdict("direct", sentence, nat, seen, udp, advice)

    sentence = "you can take part: others will reach this machine directly, except from behind the strictest routers"
    return Verdict("direct", sentence, nat, seen, udp, advice)


def _advice(figures: Figures, nat: str, *, global6: bool) -> list[str]:
    advice = []
    if figures.server_unnamed:
        advice.append("check the host in the server's address, and whether this machine can look up names")
    elif not figures.server_reachable:
        advice.append("ask the server's owner for its address, whether it runs, and whether its firewall lets its TCP port in")
    elif figures.server_wrong:
        pass  # the sentence says what to do
    elif not figures.relays and figures.run_id is not None and not figures.server_problem:
        advice.append("the run names no relay; its owner starts one with --with-relay, or you name one with --relay URL")
    elif not figures.relays:
        advice.append("give --relay URL or --run-id NAME, so that UDP, the router and the rates can be measured")
    advice += [
        f"check the URL {printable(relay.url)}, or ask the relay's owner whether it runs and can be reached"
        for relay in figures.relays
        if not relay.reachable
    ]
    if any(relay.refused for relay in figures.relays):
        advice.append("give the relay's token with --relay-token")
    advice += _advice_about_udp(figures.relays)
    if nat in ("symmetric", "changes the port") and not global6:
        advice.append(
            "forward a UDP port of the router to this machine, and start with --bind-p2p-port PORT --advertise-address "
            "PUBLIC_IP; IPv6 helps as well"
        )
    offsets = [relay.clock_offset for relay in figures.relays if relay.clock_offset is not None]
    if offsets and min(map(abs, offsets)) > CLOCK_SECONDS:
        advice.append(f"set the clock of this machine: it is {min(offsets, key=abs):+.0f} s off")
    return advice


def _advice_about_udp(relays: Sequence[RelayFigures]) -> list[str]:
    """What whoever may block UDP can do."""
    at_relay = "let UDP in at the number of the relay's TCP port, or that of --observer-port"
    match who_blocks_udp(relays):
        case "here":
            return ["let UDP out of the firewall"]
        case "either":
            here = "here: let UDP out of the firewall"
            return [
                f"{here}; at the relay: its owner must {at_relay}; a second --relay on another host tells which of the two it is"
            ]
    return [
        f"UDP is open here, but the observer of {printable(relay.url)} does not answer: its owner must {at_relay}"
        for relay in relays
        if relay.udp is False
    ]


def as_json(figures: Figures, verdict: Verdict) -> dict[str, Any]:
    """Return everything as plain values."""
    return {"verdict": asdict(verdict), **asdict(figures)}
