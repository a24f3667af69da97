"""A relay never takes the files that the coordinator beside it needs."""

from __future__ import annotations

import resource

import pytest

from psyche_p2p_quic.relay.limits import RelayLimits
from psyche_p2p_quic.relay_program.open_files import within_open_files


@pytest.fixture
def allowed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The process's limit, as the system would keep it: soft and hard."""
    limits = [(1024, 1024)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: limits.append(pair))
    return limits


def test_the_limit_is_raised_as_far_as_the_system_allows(allowed: list[tuple[int, int]]) -> None:
    allowed.append((1024, 20_000))
    assert within_open_files(RelayLimits(), others=1024) == RelayLimits()
    assert allowed[-1] == (RelayLimits().connections + 1024, 20_000)


@pytest.mark.parametrize(("hard", "connections"), [(4096, 3072), (1500, 750), (20, 16)])
def test_where_it_allows_few_the_rest_of_the_process_keeps_its_share(
    allowed: list[tuple[int, int]], caplog: pytest.LogCaptureFixture, hard: int, connections: int
) -> None:
    allowed.append((hard, hard))
    limits = within_open_files(RelayLimits(), others=1024)
    assert (limits.connections, limits.clients) == (connections, min(connections // 2, RelayLimits().clients))
    assert f"takes {connections} connections" in caplog.text
