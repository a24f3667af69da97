"""Transactions on their way: budget, refusals, lost ones, expired blockhashes, duplicates."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_chain import ModelChain
from model_chain_rpc import RpcProblem, open_chain
from model_runs import OWNER, make_run
from solders.compute_budget import ID as COMPUTE_BUDGET
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.transaction import Transaction

from psyche_backend_solana.layouts import authorizer
from psyche_backend_solana.layouts import coordinator as program
from psyche_backend_solana.rpc.client import Rpc
from psyche_backend_solana.sending import compute_budget as budget
from psyche_backend_solana.sending import sender
from psyche_backend_solana.sending.sender import OutOfUnits, Sender, signed_size
from psyche_backend_solana.wallet import Wallet
from psyche_core.errors import BackendError, CommandRefused
from psyche_core.testing.backend import small_state

pytestmark = pytest.mark.anyio
TIMEOUT = 20.0


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def chain() -> AsyncIterator[ModelChain]:
    async with open_chain(unix=small_state().since, providers=2) as chain:
        yield chain


@pytest.fixture
async def run(chain: ModelChain) -> program.Run:
    return await make_run(chain, small_state())


@pytest.fixture
async def rpc(chain: ModelChain) -> AsyncIterator[Rpc]:
    async with Rpc([provider.endpoint for provider in chain.providers]) as rpc:
        yield rpc


@given(st.integers(0, 2_000_000), st.integers(0, budget.DISTINCT - 1), st.integers(0, 3))
def test_limits_are_enough_and_no_transaction_asks_for_more_than_there_is(used: int, distinct: int, attempt: int) -> None:
    limit = budget.unit_limit(used, distinct=distinct, attempt=attempt)
    assert limit <= budget.MAX_UNITS
    assert limit >= min(used, budget.MAX_UNITS - budget.DISTINCT)


def test_priority_fees_are_rounded_up() -> None:
    assert budget.priority_fee(1, units=1) == 1
    assert budget.priority_fee(1_000_000, units=7) == 7


def test_the_size_of_a_transaction_is_known_before_it_is_signed() -> None:
    user, other = Keypair(), Keypair()
    run = program.Run(other.pubkey(), other.pubkey())
    one = signed_size([program.tick(run, user=user.pubkey())], user.pubkey())
    two = signed_size([program.tick(run, user=user.pubkey())] * 2, user.pubkey())
    assert 0 < two - one < 20


def rates(run: program.Run) -> Instruction:
    """A command of the owner's that may be given again and again."""
    return program.set_future_epoch_rates(run, authority=OWNER.pubkey)


async def test_the_same_command_twice_is_two_transactions(chain: ModelChain, run: program.Run, rpc: Rpc) -> None:
    owner = Sender(rpc, OWNER)
    landed = len(chain.landed)
    for _ in range(3):
        await owner.send(rates(run), timeout=TIMEOUT)
    assert len({record.signature for record in chain.landed[landed:]}) == 3


async def test_units_and_price_are_asked_for(chain: ModelChain, run: program.Run, rpc: Rpc) -> None:
    await Sender(rpc, OWNER, price=1000).send(rates(run), timeout=TIMEOUT)
    message = Transaction.from_bytes(chain.landed[-1].raw).message
    limit, price = (bytes(instruction.data) for instruction in message.instructions[:2])
    assert message.account_keys[message.instructions[0].program_id_index] == COMPUTE_BUDGET
    asked = int.from_bytes(limit[1:5], "little")
    assert chain.units * budget.MARGIN <= asked <= chain.units * budget.MARGIN + budget.FLAT + budget.DISTINCT
    assert int.from_bytes(price[1:9], "little") == 1000


async def test_a_refusal_has_the_coordinators_name_and_costs_nothing(chain: ModelChain, run: program.Run, rpc: Rpc) -> None:
    landed = len(chain.landed)
    with pytest.raises(CommandRefused) as refused:
        await Sender(rpc, OWNER).send(program.withdraw(run, user=OWNER.pubkey), timeout=TIMEOUT)
    assert refused.value.code == "InvalidWithdraw"
    assert "pending" in refused.value.message
    assert len(chain.landed) == landed


async def test_a_refusal_behind_the_simulation_has_its_name_too(
    chain: ModelChain, run: program.Run, rpc: Rpc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chain, "simulate", lambda raw: None)
    with pytest.raises(CommandRefused, match="InvalidWithdraw"):
        await Sender(rpc, OWNER).send(program.withdraw(run, user=OWNER.pubkey), timeout=TIMEOUT)


async def test_another_programs_refusal_has_its_own_name(chain: ModelChain, run: program.Run, rpc: Rpc) -> None:
    at = authorizer.address(OWNER.pubkey, authorizer.EVERYBODY)
    close = authorizer.close(OWNER.pubkey, OWNER.pubkey, authorization=at)
    with pytest.raises(CommandRefused, match="StillActive"):
        await Sender(rpc, OWNER).send(rates(run), close, timeout=TIMEOUT)


async def test_a_transaction_that_got_lost_is_sent_again(
    chain: ModelChain, run: program.Run, rpc: Rpc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "RESEND_SECONDS", 0.1)
    chain.swallow = 1
    sent = await Sender(rpc, OWNER).send(rates(run), timeout=TIMEOUT)
    assert str(sent.signature) == chain.landed[-1].signature
    assert chain.providers[0].calls["getLatestBlockhash"] == chain.providers[0].calls["simulateTransaction"]


async def test_after_its_blockhash_has_expired_it_is_signed_anew(
    chain: ModelChain, run: program.Run, rpc: Rpc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "RESEND_SECONDS", 0.1)
    landed, hashes = len(chain.landed), chain.providers[0].calls["getLatestBlockhash"]
    original = chain.send

    def losing(raw: bytes) -> str:
        chain.next_slot(1000)
        chain.send = original  # type: ignore[method-assign]
        chain.swallow = 1
        return original(raw)

    chain.send = losing  # type: ignore[method-assign]
    await Sender(rpc, OWNER).send(rates(run), timeout=TIMEOUT)
    assert len(chain.landed) == landed + 1
    assert chain.providers[0].calls["getLatestBlockhash"] == hashes + 2


async def test_no_answer_is_a_time_out_and_not_a_guess(chain: ModelChain, run: program.Run, rpc: Rpc) -> None:
    chain.swallow = 10**9
    with pytest.raises(TimeoutError):
        await Sender(rpc, OWNER).send(rates(run), timeout=0.5)


async def test_no_endpoint_is_a_time_out(chain: ModelChain, run: program.Run, rpc: Rpc) -> None:
    for provider in chain.providers:
        provider.shut()
    with pytest.raises(TimeoutError):
        await Sender(rpc, OWNER).send(program.tick(run, user=OWNER.pubkey), timeout=0.5)


async def test_an_empty_wallet_is_told_so(chain: ModelChain, run: program.Run, rpc: Rpc) -> None:
    poor = Wallet.generate()
    with pytest.raises(BackendError, match="cannot pay"):
        await Sender(rpc, poor).send(program.tick(run, user=poor.pubkey), timeout=TIMEOUT)


async def test_too_much_work_is_told_apart(
    chain: ModelChain, run: program.Run, rpc: Rpc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chain, "simulate", lambda raw: {"InstructionError": [1, "ComputationalBudgetExceeded"]})
    with pytest.raises(OutOfUnits):
        await Sender(rpc, OWNER).send(program.tick(run, user=OWNER.pubkey), timeout=TIMEOUT)


async def test_too_large_a_transaction_is_refused_before_anything_is_sent(run: program.Run, rpc: Rpc) -> None:
    with pytest.raises(ValueError, match="1232"):
        await Sender(rpc, OWNER).send(*[program.tick(run, user=OWNER.pubkey)] * 200, timeout=TIMEOUT)


async def test_a_missing_signature_is_named(
    chain: ModelChain, run: program.Run, rpc: Rpc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chain, "simulate", lambda raw: None)
    stranger = Keypair().pubkey()
    with pytest.raises((ValueError, CommandRefused), match=str(stranger)):
        await Sender(rpc, OWNER).send(program.tick(run, user=stranger), timeout=TIMEOUT)


async def test_a_busy_chain_is_asked_again(
    chain: ModelChain, run: program.Run, rpc: Rpc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "POLL_SECONDS", 0.01)
    answers = iter(["AccountInUse", {"InstructionError": [0, {"Custom": 1}]}])
    monkeypatch.setattr(chain, "simulate", lambda raw: next(answers))
    with pytest.raises(CommandRefused):
        await Sender(rpc, OWNER).send(program.tick(run, user=OWNER.pubkey), timeout=TIMEOUT)


async def test_an_endpoint_that_says_it_knows_the_transaction_already_is_believed_nothing_more(
    chain: ModelChain, run: program.Run, rpc: Rpc
) -> None:
    original = chain.providers[0].sendTransaction

    def twice(raw: str, options: object) -> str:
        original(raw, options)
        raise RpcProblem(-32002, "Transaction simulation failed", {"err": "AlreadyProcessed"})

    chain.providers[0].sendTransaction = twice  # type: ignore[assignment,method-assign]
    sent = await Sender(rpc, OWNER).send(rates(run), timeout=TIMEOUT)
    assert str(sent.signature) == chain.landed[-1].signature
