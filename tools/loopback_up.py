"""Bring the loopback interface of this network namespace up, as `ip link set lo up` does where it is installed."""

from __future__ import annotations

import fcntl
import socket
import struct

SIOCGIFFLAGS = 0x8913
SIOCSIFFLAGS = 0x8914
IFF_UP = 0x1
REQUEST = "16sH14x"  # struct ifreq: interface name, flags, rest of the union


def main() -> None:
    """Set the flag; raises OSError where that is not permitted."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        answer = fcntl.ioctl(any_socket, SIOCGIFFLAGS, struct.pack(REQUEST, b"lo", 0))
        _, flags = struct.unpack(REQUEST, answer)
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack(REQUEST, b"lo", flags | IFF_UP))


if __name__ == "__main__":
    main()
