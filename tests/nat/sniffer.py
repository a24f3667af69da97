"""Prints where this namespace sends IP packets, one destination a line: `protocol address port`. Ends when it is killed.

python -m tests.nat.sniffer INTERFACE
"""

from __future__ import annotations

import ipaddress
import socket
import sys

_EVERY_PROTOCOL = 3
_OUTGOING = socket.PACKET_OUTGOING
_NAMES = {1: "icmp", 2: "igmp", 6: "tcp", 17: "udp", 58: "icmp6"}


def destination(packet: bytes) -> str | None:
    """Of an Ethernet frame; None if it carries no IP packet."""
    kind, body = packet[12:14], packet[14:]
    if kind == b"\x08\x00":
        protocol, address, head = body[9], ipaddress.ip_address(body[16:20]), 4 * (body[0] & 15)
    elif kind == b"\x86\xdd":
        protocol, address, head = body[6], ipaddress.ip_address(body[24:40]), 40
    else:
        return None

    port = int.from_bytes(body[head + 2 : head + 4], "big") if protocol in (6, 17) else 0
    return f"{_NAMES.get(protocol, protocol)} {address} {port}"


def main() -> None:
    """See the module."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_EVERY_PROTOCOL)) as raw:
        raw.bind((sys.argv[1], 0))
        sys.stdout.write("listening\n")
        sys.stdout.flush()
        seen = set()
        while True:
            packet, origin = raw.recvfrom(65536)
            if origin[2] == _OUTGOING and (found := destination(packet)) is not None and found not in seen:
                seen.add(found)
                sys.stdout.write(found + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
