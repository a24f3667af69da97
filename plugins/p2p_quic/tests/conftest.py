"""Tests that bind iroh endpoints run only where nothing but loopback can be reached.

The library's port mapper sends UPnP multicast on every bind and has no switch for it.
"""

import socket
from pathlib import Path

import pytest

REASON = (
    "binds iroh endpoints, which send UPnP multicast, and this process can reach other interfaces than loopback: "
    "run `make test`, which uses a loopback-only network namespace"
)


def outer_interfaces() -> list[str]:
    """Names of interfaces that are up and not loopback."""
    names = [name for _, name in socket.if_nameindex()]
    flags = {name: Path("/sys/class/net", name, "flags") for name in names}
    up_and_not_loopback = 0x1, 0x8
    found = []
    for name, file in flags.items():
        bits = int(file.read_text(), 16) if file.exists() else up_and_not_loopback[0] * (not name.startswith("lo"))
        if bits & up_and_not_loopback[0] and not bits & up_and_not_loopback[1]:
            found.append(name)
    return found


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    quic = [item for item in items if item.get_closest_marker("quic")]
    if quic and outer_interfaces():
        for item in quic:
            item.add_marker(pytest.mark.skip(reason=REASON))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
