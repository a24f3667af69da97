"""solana-py's AsyncClient and websocket client, unchanged, against the local chain: every method they have."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from localnet_parts import MANUAL, START, TOKEN, Rpc, funded, new_mint, paying, signed, token_account
from solana.exceptions import SolanaRpcException
from solana.rpc.async_api import AsyncClient
from solana.rpc.commitment import Processed
from solana.rpc.core import RPCException
from solana.rpc.jsonrpc import SolanaJsonRpcError
from solana.rpc.models import DataSliceOpts, MemcmpOpts, TokenAccountOpts, TxOpts
from solana.rpc.websocket_api import SolanaWsClient, Subscription
from solders.account import Account
from solders.keypair import Keypair
from solders.message import MessageV0
from solders.pubkey import Pubkey
from solders.rpc.config import RpcTransactionLogsFilterMentions
from solders.signature import Signature
from solders.system_program import TransferParams, transfer
from solders.transaction import VersionedTransaction

from psyche_backend_solana.localnet import LAMPORTS_PER_SOL, LocalChain


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_solana_py_reads_what_every_method_answers() -> None:
    async with LocalChain(MANUAL) as chain, AsyncClient(chain.rpc_url) as client, Rpc(chain.rpc_url) as rpc:
        assert await client.is_connected()
        payer, mint, holder = await funded(chain), Keypair(), Keypair()
        blockhash = (await client.get_latest_blockhash()).value.blockhash
        await client.send_transaction(signed(new_mint(mint.pubkey(), payer, 2), blockhash, payer, mint))
        sent = await client.send_transaction(
            signed(token_account(holder.pubkey(), mint.pubkey(), payer), blockhash, payer, holder)
        )
        await chain.advance_slots(3)
        await chain.set_account(str(Keypair().pubkey()), Account(10**9, bytes(200), payer.pubkey()))
        address, owner = payer.pubkey(), payer.pubkey()
        message = MessageV0.try_compile(owner, [], [], blockhash)

        assert (await client.get_balance(address)).value < 100 * LAMPORTS_PER_SOL
        info = (
            await client.get_account_info(mint.pubkey(), encoding="base64", data_slice=DataSliceOpts(offset=44, length=2))
        ).value
        assert info is not None
        assert bytes(info.data) == b"\2\1"  # decimals and whether it is initialized
        assert (await client.get_account_info(Keypair().pubkey())).value is None
        parsed: Any = (await client.get_account_info_json_parsed(mint.pubkey())).value
        assert parsed.data.parsed["info"]["decimals"] == 2
        assert (await client.get_account_info_json_parsed(address)).value is not None
        both = (await client.get_multiple_accounts([address, Keypair().pubkey()])).value
        assert (both[0] is not None, both[1]) == (True, None)
        assert len((await client.get_multiple_accounts_json_parsed([mint.pubkey()])).value) == 1
        filters: list[int | MemcmpOpts] = [82, MemcmpOpts(offset=4, bytes=str(owner))]
        found = (await client.get_program_accounts(TOKEN, encoding="base64", filters=filters)).value
        assert [one.pubkey for one in found] == [mint.pubkey()]
        assert len((await client.get_program_accounts_json_parsed(TOKEN)).value) == 2
        assert (await client.get_block_time(4)).value == START + 1
        assert (await client.get_blocks(1)).value == [1, 4]
        assert (await client.get_blocks(1, 3)).value == [1]
        assert (await client.get_block_height()).value == (await client.get_slot()).value == 4
        assert (await client.get_block(1, max_supported_transaction_version=0)).value is not None
        (node,) = (await client.get_cluster_nodes()).value
        assert f"http://{node.rpc}" == chain.rpc_url
        assert (await client.get_recent_performance_samples(3)).value == []
        assert (await client.get_recent_prioritization_fees([address])).value[0].prioritization_fee == 0
        assert len((await client.get_signatures_for_address(holder.pubkey(), limit=5)).value) == 1
        transaction = (await client.get_transaction(sent.value, max_supported_transaction_version=0)).value
        assert transaction is not None
        assert transaction.slot == 1
        for encoding in ("jsonParsed", "base64", "base58"):
            assert (await client.get_transaction(sent.value, encoding, max_supported_transaction_version=0)).value is not None
        assert (await client.get_transaction(Signature.default())).value is None
        epoch = (await client.get_epoch_info()).value
        assert (epoch.absolute_slot, epoch.transaction_count) == (4, 3)
        assert (await client.get_epoch_schedule()).value.slots_per_epoch == 432_000
        assert (await client.get_fee_for_message(message)).value == 5000
        assert (await client.get_first_available_block()).value == (await client.get_minimum_ledger_slot()).value == 1
        assert str((await client.get_genesis_hash()).value) == await rpc("getGenesisHash")
        assert (await client.get_identity()).value.identity == (await client.get_slot_leader()).value
        assert len((await client.get_slot_leaders(1, 3)).value) == 3
        assert (await client.get_minimum_balance_for_rent_exemption(165)).value > 10**6
        assert (await client.get_signature_statuses([sent.value])).value[0] is not None
        assert (await client.get_token_account_balance(holder.pubkey())).value.amount == "0"
        by_mint, by_program = TokenAccountOpts(mint=mint.pubkey()), TokenAccountOpts(program_id=TOKEN)
        assert len((await client.get_token_accounts_by_owner(owner, by_mint)).value) == 1
        assert len((await client.get_token_accounts_by_owner_json_parsed(owner, by_program)).value) == 1
        assert (await client.get_token_accounts_by_delegate(owner, by_program)).value == []
        assert (await client.get_token_accounts_by_delegate_json_parsed(owner, by_mint)).value == []
        assert len((await client.get_token_largest_accounts(mint.pubkey())).value) == 1
        assert (await client.get_token_supply(mint.pubkey())).value.decimals == 2
        assert (await client.get_transaction_count()).value == 3
        assert (await client.get_version()).value.solana_core
        assert (await client.get_vote_accounts()).value.current == []
        signature = (await client.request_airdrop(address, 5)).value
        assert (await client.confirm_transaction(signature, Processed)).value[0] is not None


async def test_solana_py_sends_simulates_and_confirms() -> None:
    async with LocalChain(MANUAL) as chain, AsyncClient(chain.rpc_url) as client:
        payer, to = await funded(chain), Keypair().pubkey()
        latest = (await client.get_latest_blockhash()).value
        pay = transfer(TransferParams(from_pubkey=payer.pubkey(), to_pubkey=to, lamports=10**6))
        message = MessageV0.try_compile(payer.pubkey(), [pay], [], latest.blockhash)
        transaction = VersionedTransaction(message, [payer])
        tried = (await client.simulate_transaction(transaction, sig_verify=True, accounts_addresses=[to])).value
        assert tried.err is None
        assert tried.accounts is not None
        options = TxOpts(skip_confirmation=False, last_valid_block_height=latest.last_valid_block_height)
        await client.send_transaction(transaction, opts=options)
        assert (await client.get_balance(to)).value == 10**6
        with pytest.raises(RPCException, match="AlreadyProcessed"):
            await client.send_transaction(transaction)
        with pytest.raises(RPCException, match="insufficient lamports"):
            await client.send_transaction(paying(payer, to, 10**15, latest.blockhash))


async def test_what_one_node_cannot_know_is_refused_clearly() -> None:
    async with LocalChain(MANUAL) as chain, AsyncClient(chain.rpc_url) as client:
        refused: list[Callable[[], Awaitable[object]]] = [
            lambda: client.get_block_commitment(1),
            client.get_inflation_governor,
            client.get_inflation_rate,
            lambda: client.get_inflation_reward([Pubkey.default()]),
            client.get_largest_accounts,
            client.get_leader_schedule,
            client.get_supply,
            client.validator_exit,
        ]
        for method in refused:
            with pytest.raises((RPCException, SolanaRpcException), match="Method not found"):
                await method()
    async with LocalChain(MANUAL) as chain, SolanaWsClient(chain.ws_url) as ws:
        for subscribe in (ws.block_subscribe, ws.vote_subscribe, ws.slots_updates_subscribe):
            with pytest.raises(SolanaJsonRpcError, match="Method not found"):
                await subscribe()


async def test_solana_py_subscribes_to_everything_served() -> None:
    async with LocalChain(MANUAL) as chain, SolanaWsClient(chain.ws_url) as ws, Rpc(chain.rpc_url) as rpc, asyncio.timeout(20):
        payer, to = await funded(chain), Keypair().pubkey()
        first = paying(payer, to, 10**6, await rpc.blockhash())
        subscriptions: list[Subscription] = [
            await ws.account_subscribe(pubkey=to, encoding="base64"),
            await ws.program_subscribe(program_id=Pubkey.default(), encoding="base64", filters=[0]),
            await ws.logs_subscribe(filter_=RpcTransactionLogsFilterMentions(to)),
            await ws.signature_subscribe(signature=first.signatures[0]),
            await ws.slot_subscribe(),
            await ws.root_subscribe(),
        ]
        kinds = {one.subscription_id: one.kind.value for one in subscriptions}
        await rpc.send(first)
        await chain.advance_slots(4)
        heard: list[Any] = [await ws.recv() for _ in range(7)]
        assert [kinds[one.subscription] for one in heard] == [
            "account",
            "program",
            "program",
            "logs",
            "signature",
            "slot",
            "root",
        ]
        assert heard[0].result.value.lamports == 10**6
        assert {heard[1].result.value.pubkey, heard[2].result.value.pubkey} == {payer.pubkey(), to}
        assert heard[3].result.value.signature == first.signatures[0]
        assert heard[4].result.value.err is None
        assert (heard[5].result.slot, heard[5].result.parent, heard[6].result) == (5, 1, 5)

        for subscription in subscriptions:
            if subscription.kind.value != "signature":  # it ended with its one notification
                await ws.unsubscribe(subscription)
        await rpc.send(paying(payer, to, 2_000_000, await rpc.blockhash()))
        again = await ws.signature_subscribe(signature=first.signatures[0])  # there already: told at once
        only: Any = await ws.recv()
        assert only.subscription == again.subscription_id
