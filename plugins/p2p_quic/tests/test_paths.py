"""Which path of a link is said to be in use, where the library says it of none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from psyche_p2p_quic.endpoint.links import Link, Path


class Connection:
    """What a link asks of the library's connection. shown: its paths now."""

    def __init__(self) -> None:
        self.shown: list[Any] = []
        self.ended = ""

    def remote_id(self) -> Any:
        return SimpleNamespace(to_bytes=lambda: bytes(32))

    def paths(self) -> list[Any]:
        return self.shown

    def close_reason(self) -> str:
        return self.ended


def path(address: str, received: int, *, ip: bool = True, selected: bool = False) -> Any:
    return SimpleNamespace(
        is_ip=ip, remote_addr=address, rtt_ms=7, is_selected=selected, stats=SimpleNamespace(udp_rx_datagrams=received)
    )


def test_the_selected_path_is_used() -> None:
    connection = Connection()
    link = Link(connection)
    assert link.path is None
    connection.shown = [path("relay", 0, ip=False)]
    assert link.path is None, "nothing has arrived"
    connection.shown = [path("relay", 90, ip=False), path("1.2.3.4:5", 0, selected=True)]
    assert link.path == Path(relayed=False, rtt=0.007)


def test_where_none_is_selected_it_is_the_one_from_which_most_came_lately() -> None:
    connection = Connection()
    link = Link(connection)
    connection.shown = [path("relay", 90, ip=False), path("1.2.3.4:5", 3)]
    assert link.path == Path(relayed=True, rtt=0.007)
    connection.shown = [path("relay", 91, ip=False), path("1.2.3.4:5", 30)]
    assert link.path == Path(relayed=False, rtt=0.007), "more has come through the relay only in all"
    assert link.path == Path(relayed=False, rtt=0.007), "nothing has come since"


def test_a_link_that_lists_no_path_for_a_while_still_has_its_last_one_until_it_ends() -> None:
    connection = Connection()
    link = Link(connection)
    connection.shown = [path("1.2.3.4:5", 3, selected=True)]
    assert link.path is not None
    connection.shown = [path("1.2.3.4:5", 0)]
    assert link.path == Path(relayed=False, rtt=0.007)
    connection.shown = []
    assert link.path == Path(relayed=False, rtt=0.007)
    connection.ended = "the peer closed it"
    assert link.path is None
