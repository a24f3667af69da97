"""What a member sends to whom, and what `psyche doctor network` says, in the laboratory."""

from __future__ import annotations

import ipaddress
import json
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from tests.nat.lab import Host, Lab
from tests.nat.meeting import RELAY_PORT, ROOT, Meeting

pytestmark = pytest.mark.slow

QUIET_SECONDS = 3.0
SERVER_PORT = 20000


class Sniffer:
    """Where a host sends packets."""

    def __init__(self, host: Host) -> None:
        self.seen: list[tuple[str, str, int]] = []
        self._process = host.start(
            sys.executable,
            "-m",
            "tests.nat.sniffer",
            "eth0",
            stdout=subprocess.PIPE,
            cwd=str(ROOT),
            env={"PYTHONUNBUFFERED": "1"},
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "listening\n"
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            protocol, address, port = line.split()
            self.seen.append((protocol, address, int(port)))

    def stop(self) -> list[tuple[str, str, int]]:
        """End it; returns what it saw."""
        self._process.kill()
        self._process.wait()
        self._thread.join(10)
        return self.seen


def is_the_librarys(protocol: str, address: str, port: int, gateway: str) -> bool:
    """The port mapper: UPnP multicast, and UPnP, NAT-PMP and PCP at our own router. It has no switch; see the plugin's README."""
    if address == "239.255.255.250":
        return protocol == "udp" and port == 1900
    return address == gateway and port in (1900, 5351)


def of_the_link(protocol: str, address: str) -> bool:
    """What every system says on its own link: neighbour discovery, multicast listener reports."""
    ip = ipaddress.ip_address(address)
    return protocol in ("icmp6", "igmp", "0") and (ip.is_multicast or ip.is_link_local)


def strangers(seen: list[tuple[str, str, int]], known: set[str], *, gateway: str) -> list[tuple[str, str, int]]:
    """Packets to anybody else."""
    return [each for each in seen if each[1] not in known and not is_the_librarys(*each, gateway) and not of_the_link(*each[:2])]


def test_a_member_sends_nothing_to_anybody_but_members_and_the_runs_relay(lab: Lab, meeting: Meeting) -> None:
    """No name is looked up either: a look-up would be a packet to a name server."""
    one, other = lab.behind("port", "one"), lab.behind("sym", "other")
    sniffer = Sniffer(one)
    pair = meeting.join(one), meeting.join(other)
    meeting.until_paths([(*pair, "relayed")])
    time.sleep(QUIET_SECONDS)  # what a library sends on the side, it sends in the first seconds
    seen = sniffer.stop()
    relay = {(protocol, port) for protocol, address, port in seen if address == lab.relay.address}
    assert {("tcp", RELAY_PORT), ("udp", RELAY_PORT)} <= relay
    assert relay <= {("tcp", RELAY_PORT), ("udp", RELAY_PORT), ("tcp", 80)}  # 80: the library looks for a captive portal
    known = {lab.relay.address, other.outside, other.address}
    strangers = [
        (protocol, address, port)
        for protocol, address, port in seen
        if address not in known
        and not is_the_librarys(protocol, address, port, "192.168.1.1")
        and not of_the_link(protocol, address)
    ]
    assert strangers == []


def test_without_a_relay_only_members_get_packets(lab: Lab, meeting: Meeting) -> None:
    one, other = lab.public("one"), lab.public("other")
    sniffer = Sniffer(one)
    pair = meeting.join(one, relay="disabled"), meeting.join(other, relay="disabled")
    meeting.until_paths([(*pair, "direct")])
    time.sleep(QUIET_SECONDS)
    strangers = [
        each
        for each in sniffer.stop()
        if each[1] != other.address and not is_the_librarys(*each, "") and not of_the_link(*each[:2])
    ]
    assert strangers == []


def doctors_report(lab: Lab, host: Host, *relays: str) -> dict[str, Any]:
    """What the doctor says on a host, as its JSON."""
    server = lab.relay.start(
        *(sys.executable, "-m", "tests.nat.coordinator", str(SERVER_PORT)), stdout=subprocess.PIPE, cwd=str(ROOT)
    )
    assert server.stdout is not None
    address = lab.relay.address + server.stdout.readline().strip()
    process = host.start(
        sys.executable,
        "-m",
        "psyche_core",
        *("doctor", "network", "--server-addr", address, "--json", "--bind-p2p-interface", "eth0"),
        *(word for relay in relays for word in ("--relay", relay)),
        stdout=subprocess.PIPE,
        cwd=str(ROOT),
    )
    told, _ = process.communicate(timeout=90)
    server.kill()
    server.wait()
    assert process.returncode == 0
    report: dict[str, Any] = json.loads(told)
    return report


@pytest.mark.parametrize(
    ("kind", "verdict", "nat", "udp"),
    [
        ("public", "direct", "none", True),
        ("port", "direct", "cone", True),
        ("sym", "relayed", "symmetric", True),
        ("noudp", "relayed", "unknown", False),
    ],
)
def test_the_doctor_knows_the_router(lab: Lab, meeting: Meeting, kind: str, verdict: str, nat: str, udp: bool) -> None:
    second = lab.public("second")
    with Meeting.second_relay(second) as url:
        host = lab.host(kind, kind)
        report = doctors_report(lab, host, meeting.url, url)
    assert (report["verdict"]["kind"], report["verdict"]["nat"], report["verdict"]["udp"]) == (verdict, nat, udp)
    assert [relay["reachable"] for relay in report["relays"]] == [True, True]
    assert all(relay["upload"] > 0 and relay["download"] > 0 and abs(relay["clock_offset"]) < 3 for relay in report["relays"])
    if udp:
        assert {relay["seen"].partition(":")[0] for relay in report["relays"]} == {host.outside}


def test_the_doctor_does_not_blame_a_member_for_a_relay_whose_own_udp_port_is_closed(lab: Lab, meeting: Meeting) -> None:
    lab.relay.space.do(
        "nft",
        "-f",
        "-",
        given=f"""table inet closed {{
          chain input {{ type filter hook input priority 0; udp dport {RELAY_PORT} drop
          }}
        }}""",
    )
    with Meeting.second_relay(lab.public("second")) as url:
        host = lab.behind("full", "full")
        alone, both = doctors_report(lab, host, meeting.url), doctors_report(lab, host, meeting.url, url)
    assert (alone["verdict"]["kind"], alone["verdict"]["udp"], alone["verdict"]["blamed"]) == ("relayed", False, "either")
    assert (both["verdict"]["kind"], both["verdict"]["udp"], both["verdict"]["blamed"]) == ("direct", True, "")
    assert any(f"the observer of {meeting.url} does not answer" in each for each in both["verdict"]["advice"])
