"""Whether an address is this machine's own, which ends a connection from an address that is gone."""

from __future__ import annotations

import anyio
import pytest

from psyche_backend_tcp.client.own_address import is_ours, until_moved

pytestmark = pytest.mark.anyio


def test_an_address_of_this_machine_is_told_from_one_of_others() -> None:
    assert is_ours("127.0.0.1")
    assert not is_ours("192.0.2.1")
    assert not is_ours("2001:db8::1")
    for unknown in ("", "fe80::1%eth0"):
        assert is_ours(unknown)


async def test_the_wait_for_a_move_ends_at_one_only() -> None:
    with anyio.fail_after(30):
        await until_moved("192.0.2.1")
    with anyio.move_on_after(0.05) as waited:
        await until_moved("127.0.0.1")
    assert waited.cancelled_caught
