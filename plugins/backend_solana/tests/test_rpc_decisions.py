"""Pure decisions of the RPC rooms: which endpoint, what a failure means, how long to wait."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche_backend_solana.rpc import choice
from psyche_backend_solana.rpc.choice import EndpointChoice, pause
from psyche_backend_solana.rpc.endpoints import LOCAL_RPC, Endpoint, parse_endpoints
from psyche_backend_solana.rpc.failures import Verdict, of_answer, of_status, of_transaction
from psyche_core.errors import ConfigError


@pytest.mark.parametrize(
    ("http", "websocket"),
    [
        ("http://127.0.0.1:8899", "ws://127.0.0.1:8900"),
        ("https://api.devnet.solana.com", "wss://api.devnet.solana.com"),
        ("https://rpc.example:443/v1?key=abc", "wss://rpc.example:444/v1?key=abc"),
        ("http://[::1]:9000", "ws://[::1]:9001"),
    ],
)
def test_the_websocket_follows_from_the_rpc(http: str, websocket: str) -> None:
    assert Endpoint.parse(http).websocket == websocket


def test_no_endpoint_is_a_local_chain() -> None:
    assert [endpoint.http for endpoint in parse_endpoints([(None, None), (None, None)])] == [LOCAL_RPC]


def test_the_same_endpoint_counts_once() -> None:
    pairs = [("http://a:1", None), ("http://b:1", "ws://b:5"), ("http://a:1", None)]
    assert [endpoint.name for endpoint in parse_endpoints(pairs)] == ["a:1", "b:1"]


@pytest.mark.parametrize("url", ["127.0.0.1:8899", "ws://a:1", "http://", "http://a:0", "http://a:99999", "ftp://a"])
def test_another_scheme_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="expected an endpoint like http"):
        Endpoint.parse(url)


def test_a_websocket_alone_is_refused() -> None:
    with pytest.raises(ConfigError, match="without its RPC"):
        parse_endpoints([(None, "ws://a:1")])


def test_keys_in_urls_are_never_shown() -> None:
    endpoint = Endpoint.parse("https://user:secret@rpc.example/path-secret?api-key=secret")
    assert "secret" not in repr(endpoint) + str(endpoint) + endpoint.name
    with pytest.raises(ConfigError) as raised:
        Endpoint.parse("htps://rpc.example/?api-key=secret")
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("status", "verdict"),
    [(429, Verdict.AGAIN), (503, Verdict.AGAIN), (408, Verdict.AGAIN), (401, Verdict.ELSEWHERE), (404, Verdict.ELSEWHERE)],
)
def test_http_statuses(status: int, verdict: Verdict) -> None:
    assert of_status(status, endpoint="a").verdict is verdict


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        (-32005, Verdict.ELSEWHERE),
        (-32601, Verdict.ELSEWHERE),
        (-32603, Verdict.AGAIN),
        (-32016, Verdict.AGAIN),
        (-32602, Verdict.FATAL),
        (-32003, Verdict.FATAL),
        (429, Verdict.AGAIN),
        (12345, Verdict.ELSEWHERE),
    ],
)
def test_json_rpc_codes(code: int, verdict: Verdict) -> None:
    assert of_answer(code, "anything: timeout connection InvalidRunState", None, endpoint="a").verdict is verdict


@pytest.mark.parametrize(
    ("error", "verdict", "custom"),
    [
        ("BlockhashNotFound", Verdict.REBUILD, None),
        ("AlreadyProcessed", Verdict.KNOWN, None),
        ("AccountInUse", Verdict.AGAIN, None),
        ("WouldExceedMaxBlockCostLimit", Verdict.AGAIN, None),
        ("InsufficientFundsForFee", Verdict.FATAL, None),
        ({"InsufficientFundsForRent": {"account_index": 1}}, Verdict.FATAL, None),
        ({"InstructionError": [2, {"Custom": 103}]}, Verdict.REFUSED, 103),
        ({"InstructionError": [1, "ComputationalBudgetExceeded"]}, Verdict.BUDGET, None),
        ({"InstructionError": [1, "MissingRequiredSignature"]}, Verdict.REFUSED, None),
        ({"InstructionError": [0, {"BorshIoError": "x"}]}, Verdict.REFUSED, None),
        ({"DuplicateInstruction": 3}, Verdict.REFUSED, None),
        ("SomethingNewOfNextYear", Verdict.REFUSED, None),
        (["nonsense"], Verdict.REFUSED, None),
    ],
)
def test_transaction_errors(error: object, verdict: Verdict, custom: int | None) -> None:
    failure = of_transaction(error)
    assert (failure.verdict, failure.custom) == (verdict, custom)


def test_a_failed_preflight_means_what_its_transaction_error_means() -> None:
    data = {"err": {"InstructionError": [1, {"Custom": 100}]}, "logs": []}
    assert of_answer(-32002, "Transaction simulation failed", data, endpoint="a").custom == 100


@given(st.integers(0, 10_000), st.floats(0, 1, exclude_max=True))
def test_pauses_grow_and_stay_bounded(attempt: int, chance: float) -> None:
    assert choice.FIRST_PAUSE / 2 <= pause(attempt, chance) <= choice.LONGEST_PAUSE
    assert pause(attempt, chance) <= pause(attempt + 2, chance)


def test_one_failure_changes_nothing_two_do() -> None:
    endpoints = EndpointChoice(2)
    assert not endpoints.failed(0)
    assert endpoints.current == 0
    assert endpoints.failed(0)
    assert endpoints.current == 1


def test_a_success_between_failures_forgives() -> None:
    endpoints = EndpointChoice(2)
    for _ in range(10):
        endpoints.failed(0)
        endpoints.succeeded(0)
    assert endpoints.current == 0


def test_one_that_cannot_is_left_at_once() -> None:
    endpoints = EndpointChoice(3)
    assert endpoints.failed(0, for_good=True)
    assert endpoints.order() == (1, 2, 0)


def test_the_first_has_its_place_back_only_after_steady_probes() -> None:
    endpoints = EndpointChoice(2)
    endpoints.failed(0, for_good=True)
    assert endpoints.to_probe(100.0) == 0
    assert endpoints.to_probe(101.0) is None
    assert not endpoints.probed(0, 100.0, well=True)
    assert not endpoints.probed(0, 105.0, well=True)
    assert not endpoints.probed(0, 106.0, well=False)
    for at in (110.0, 113.0, 116.0):
        assert not endpoints.probed(0, at, well=True)
        assert endpoints.current == 1
    assert endpoints.probed(0, 120.0, well=True)
    assert endpoints.current == 0
    assert endpoints.to_probe(200.0) is None


def test_when_nobody_is_well_all_take_turns() -> None:
    endpoints = EndpointChoice(2)
    seen = set()
    for _ in range(8):
        endpoints.failed(endpoints.current, for_good=True)
        seen.add(endpoints.current)
    assert seen == {0, 1}


@given(st.integers(1, 4), st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["ok", "no", "never", "well", "ill"]))))
def test_somebody_is_always_current_and_all_are_in_the_order(count: int, steps: list[tuple[int, str]]) -> None:
    endpoints = EndpointChoice(count)
    for at, (number, what) in enumerate(steps):
        number %= count
        if what == "ok":
            endpoints.succeeded(number)
        elif what in ("no", "never"):
            endpoints.failed(number, for_good=what == "never")
        else:
            endpoints.probed(number, float(at), well=what == "well")
        assert sorted(endpoints.order()) == list(range(count))
        assert endpoints.order()[0] == endpoints.current
