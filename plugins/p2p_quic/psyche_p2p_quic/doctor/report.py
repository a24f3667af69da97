"""The figures of a network check as lines for people. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from psyche_core.text_safety import printable
from psyche_p2p_quic.doctor.verdict import Figures, RelayFigures, Verdict

_NAT = {
    "none": "none: this machine has the address that others see",
    "cone": "a router that keeps one port for all destinations (members behind such routers reach each other directly)",
    "symmetric": "a router that uses another port for each destination (symmetric)",
    "keeps the port": "a router that keeps the port; a second relay on another host would tell whether for all destinations",
    "changes the port": "a router that changes the port; a second relay on another host would tell whether for each destination",
    "unknown": "unknown: no observer told the address that others see",
}

_SILENT = {
    "either": "no answer, so it is blocked either here or at the relay",
    "here": "no answer from any relay, so it is most likely blocked here",
}


def lines(figures: Figures, verdict: Verdict) -> Iterator[str]:
    """Yield the report; the verdict comes last."""
    server = figures.server.partition("#")[0]
    if figures.server_reachable:
        found = figures.server_wrong or figures.server_problem
        trouble = f" ({printable(found)})" if found else ""
        yield f"server {printable(server)}: reached in {figures.server_ms:.0f} ms{trouble}"
    else:
        yield f"server {printable(server)}: not reached ({printable(figures.server_problem)})"
    for relay in figures.relays:
        yield from _relay(relay)
    yield f"UDP: {'not tested' if verdict.udp is None else 'open' if verdict.udp else _SILENT[verdict.blamed]}"
    yield f"own addresses: {', '.join(f'{ip} port {port}' for ip, port in figures.local)}"
    yield f"seen from outside: {', '.join(dict.fromkeys(verdict.seen)) or 'unknown'}"
    yield f"router: {_NAT[verdict.nat]}"
    for sentence in verdict.advice:
        yield f"advice: {sentence}"
    yield verdict.sentence


def _relay(relay: RelayFigures) -> Iterator[str]:
    if not relay.reachable:
        yield f"relay {printable(relay.url)}: not reached ({printable(relay.problem)})"
        return

    parts = [f"reached in {relay.ms:.0f} ms"]
    if relay.clock_offset is not None:
        parts.append(f"our clock is {round(relay.clock_offset):+d} s off its own")
    if relay.upload is not None and relay.download is not None:
        parts.append(f"upload {relay.upload / 1e6:.2f} MB/s, download at least {relay.download / 1e6:.2f} MB/s")
    yield f"relay {printable(relay.url)}: {', '.join(parts)}"
    if relay.problem:
        yield f"  {printable(relay.problem)}"
