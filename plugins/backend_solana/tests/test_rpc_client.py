"""Calls over endpoints that fail: real sockets, a model chain behind them."""

from __future__ import annotations

import pytest
from model_chain_rpc import RpcProblem, open_chain

from psyche_backend_solana.rpc import choice, methods
from psyche_backend_solana.rpc.client import Rpc, RpcUnavailable
from psyche_backend_solana.rpc.failures import RpcError, Verdict

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_a_dead_endpoint_is_left_for_the_next() -> None:
    async with open_chain(unix=1, providers=2) as chain, Rpc([provider.endpoint for provider in chain.providers]) as rpc:
        assert await methods.slot(rpc, timeout=5) == 1
        chain.providers[0].shut()
        for _ in range(3):
            assert await methods.slot(rpc, timeout=5) == 1
        assert rpc.current == chain.providers[1].endpoint


@pytest.mark.parametrize("status", [429, 503, 403])
async def test_http_errors_are_failed_over(status: int) -> None:
    async with open_chain(unix=1, providers=2) as chain, Rpc([provider.endpoint for provider in chain.providers]) as rpc:
        chain.providers[0].status = status
        assert await methods.slot(rpc, timeout=5) == 1
        assert await methods.slot(rpc, timeout=5) == 1
        assert rpc.current == chain.providers[1].endpoint


async def test_a_method_one_endpoint_does_not_have_is_asked_of_the_next() -> None:
    async with open_chain(unix=1, providers=2) as chain, Rpc([provider.endpoint for provider in chain.providers]) as rpc:
        chain.providers[0].problem = RpcProblem(-32601, "Method not found")
        assert await methods.slot(rpc, timeout=5) == 1


async def test_what_nobody_can_do_is_said_at_once_and_not_after_the_deadline() -> None:
    async with open_chain(unix=1, providers=2) as chain, Rpc([provider.endpoint for provider in chain.providers]) as rpc:
        with pytest.raises(RpcError) as raised:
            await rpc.call("getNonsense", timeout=600)
        assert raised.value.failure.verdict is Verdict.FATAL


async def test_a_refusal_of_the_chain_is_not_asked_of_others() -> None:
    async with open_chain(unix=1, providers=2) as chain, Rpc([provider.endpoint for provider in chain.providers]) as rpc:
        data = {"err": {"InstructionError": [0, {"Custom": 3}]}}
        chain.providers[0].problem = RpcProblem(-32002, "Transaction simulation failed", data)
        with pytest.raises(RpcError) as raised:
            await methods.slot(rpc, timeout=5)
        assert raised.value.failure.custom == 3
        assert chain.providers[1].calls == {}
        assert rpc.current == chain.providers[0].endpoint


async def test_without_any_endpoint_the_deadline_ends_it() -> None:
    async with open_chain(unix=1) as chain, Rpc([chain.providers[0].endpoint]) as rpc:
        chain.providers[0].shut()
        with pytest.raises(RpcUnavailable, match=r"no RPC endpoint answered getSlot within 0\.3 s: cannot reach 127"):
            await methods.slot(rpc, timeout=0.3)


async def test_the_first_has_its_place_back_when_it_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "PROBE_SECONDS", 0.0)
    monkeypatch.setattr(choice, "STEADY_SECONDS", 0.0)
    async with open_chain(unix=1, providers=2) as chain, Rpc([provider.endpoint for provider in chain.providers]) as rpc:
        chain.providers[0].status = 403
        await methods.slot(rpc, timeout=5)
        assert rpc.current == chain.providers[1].endpoint
        chain.providers[0].status = 200
        for _ in range(100):
            await methods.slot(rpc, timeout=5)
            if rpc.current == chain.providers[0].endpoint:
                break
        assert rpc.current == chain.providers[0].endpoint


async def test_an_answer_of_another_shape_is_an_error_and_no_value() -> None:
    async with open_chain(unix=1) as chain, Rpc([chain.providers[0].endpoint]) as rpc:
        chain.providers[0].getSlot = lambda *_: {"no": "number"}  # type: ignore[assignment,method-assign]  # a lying provider
        with pytest.raises(RpcError, match="unexpected shape"):
            await methods.slot(rpc, timeout=5)
