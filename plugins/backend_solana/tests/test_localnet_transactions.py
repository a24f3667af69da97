"""Transactions on the local chain, over real sockets: what is processed, what is refused and how, time, tokens, deployment."""

from __future__ import annotations

import asyncio
import struct
from base64 import b64encode
from dataclasses import replace
from pathlib import Path

import pytest
from blockbuster import blockbuster_ctx
from localnet_parts import (
    LOADER,
    MANUAL,
    START,
    SYSVARS,
    TOKEN,
    Rpc,
    RpcFailure,
    deploy,
    encoded,
    funded,
    new_mint,
    paying,
    signed,
    token_account,
    upload,
)
from solders.account import Account
from solders.address_lookup_table_account import AddressLookupTableAccount
from solders.compute_budget import set_compute_unit_limit, set_compute_unit_price
from solders.hash import Hash
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.message import MessageV0
from solders.pubkey import Pubkey
from solders.system_program import TransferParams, transfer
from solders.transaction import VersionedTransaction

from psyche_backend_solana.localnet import LAMPORTS_PER_SOL, ChainSettings, LocalChain
from psyche_backend_solana.programs import load
from psyche_backend_solana.programs.addresses import AUTHORIZER

CLOCK = str(SYSVARS[1])
TABLES = Pubkey.from_string("AddressLookupTab1e1111111111111111111111111")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_a_transfer_is_final_at_once_and_found_everywhere() -> None:
    async with LocalChain(MANUAL) as chain, Rpc(chain.rpc_url) as rpc:
        payer, to = await funded(chain), Keypair().pubkey()
        transaction = paying(payer, to, LAMPORTS_PER_SOL, await rpc.blockhash())
        signature = await rpc.send(transaction)
        assert signature == str(transaction.signatures[0])
        assert await rpc.balance(to) == LAMPORTS_PER_SOL
        assert await rpc.balance(payer.pubkey()) == 99 * LAMPORTS_PER_SOL - 5000
        status = (await rpc("getSignatureStatuses", [signature, str(Keypair().sign_message(b""))]))["value"]
        assert status[0]["confirmationStatus"] == "finalized"
        assert (status[0]["err"], status[0]["status"], status[1]) == (None, {"Ok": None}, None)
        found = await rpc("getTransaction", signature, {"encoding": "base64"})
        assert found["transaction"] == [encoded(transaction), "base64"]
        assert found["blockTime"] == START
        assert found["meta"]["fee"] == 5000
        plain = await rpc("getTransaction", signature)
        assert plain["transaction"]["message"]["accountKeys"][:2] == [str(payer.pubkey()), str(to)]
        assert plain["meta"]["preBalances"][:2] == [100 * LAMPORTS_PER_SOL, 0]
        assert [one["signature"] for one in await rpc("getSignaturesForAddress", str(to))] == [signature]


async def test_a_transaction_is_processed_once() -> None:
    async with LocalChain(MANUAL) as chain, Rpc(chain.rpc_url) as rpc:
        payer, to = await funded(chain), Keypair().pubkey()
        transaction = paying(payer, to, 1_000_000, await rpc.blockhash())
        await rpc.send(transaction)
        await chain.advance_slots(100)
        with pytest.raises(RpcFailure, match="already been processed") as caught:
            await rpc.send(transaction)
        assert (caught.value.code, caught.value.data["err"]) == (-32002, "AlreadyProcessed")
        await rpc.send(transaction, skipPreflight=True)
        await chain.advance_slots(51)  # its blockhash is no longer good, and neither is it remembered
        with pytest.raises(RpcFailure, match="Blockhash not found"):
            await rpc.send(transaction)
        assert await rpc.balance(to) == 1_000_000


async def test_a_blockhash_is_good_for_150_slots() -> None:
    async with LocalChain(MANUAL) as chain, Rpc(chain.rpc_url) as rpc:
        payer, to = await funded(chain), Keypair().pubkey()
        latest = (await rpc("getLatestBlockhash"))["value"]
        blockhash = await rpc.blockhash()
        assert latest["lastValidBlockHeight"] == await rpc("getBlockHeight") + 150
        await chain.advance_slots(150)
        assert (await rpc("isBlockhashValid", str(blockhash)))["value"] is True
        await rpc.send(paying(payer, to, 1_000_000, blockhash))
        await chain.advance_slots(1)
        assert (await rpc("isBlockhashValid", str(blockhash)))["value"] is False
        late = paying(payer, to, 2_000_000, blockhash)
        with pytest.raises(RpcFailure) as caught:
            await rpc.send(late)
        assert (caught.value.code, caught.value.data["err"]) == (-32002, "BlockhashNotFound")
        assert await rpc.send(late, skipPreflight=True) == str(late.signatures[0])
        assert (await rpc("getSignatureStatuses", [str(late.signatures[0])]))["value"] == [None]
        await chain.expire_blockhashes()
        assert (await rpc("isBlockhashValid", str(await rpc.blockhash())))["value"] is True
        assert await rpc.balance(to) == 1_000_000


async def test_failures_are_worded_as_by_a_real_validator() -> None:
    async with LocalChain(MANUAL) as chain, Rpc(chain.rpc_url) as rpc:
        payer, to = await funded(chain), Keypair().pubkey()
        blockhash = await rpc.blockhash()
        too_much = paying(payer, to, 10**12, blockhash)
        with pytest.raises(RpcFailure) as caught:
            await rpc.send(too_much)
        assert caught.value.code == -32002
        sentence = "Transaction simulation failed: Error processing Instruction 0: custom program error: 0x1"
        assert caught.value.message == sentence
        assert caught.value.data["err"] == {"InstructionError": [0, {"Custom": 1}]}
        assert any("insufficient lamports" in line for line in caught.value.data["logs"])
        assert caught.value.data["unitsConsumed"] == 150
        assert await rpc.balance(payer.pubkey()) == 100 * LAMPORTS_PER_SOL  # preflight costs nothing

        await rpc.send(too_much, skipPreflight=True)  # lands, fails, and pays
        assert await rpc.balance(payer.pubkey()) == 100 * LAMPORTS_PER_SOL - 5000
        failed = await rpc("getTransaction", str(too_much.signatures[0]))
        assert failed["meta"]["err"] == {"InstructionError": [0, {"Custom": 1}]}
        with pytest.raises(RpcFailure, match="already been processed"):
            await rpc.send(too_much)

        forged = VersionedTransaction.populate(paying(payer, to, 5, blockhash).message, [Keypair().sign_message(b"x")])
        with pytest.raises(RpcFailure) as caught:
            await rpc.send(forged)
        assert (caught.value.code, caught.value.message) == (-32003, "Transaction signature verification failure")
        await rpc.send(forged, skipPreflight=True)
        assert await rpc.balance(to) == 0

        unsigned = VersionedTransaction.populate(paying(payer, to, 5, blockhash).message, [])
        with pytest.raises(RpcFailure, match="invalid transaction") as caught:
            await rpc.send(unsigned, skipPreflight=True)
        assert caught.value.code == -32602

        poor = Keypair()
        with pytest.raises(RpcFailure) as caught:
            await rpc.send(paying(poor, to, 5, blockhash))
        assert caught.value.data["err"] == "AccountNotFound"
        with pytest.raises(RpcFailure) as caught:
            await rpc.send(signed([Instruction(Pubkey.default(), b"\xff", [])], blockhash, payer))
        assert caught.value.data["err"] == {"InstructionError": [0, "InvalidInstructionData"]}


async def test_version_0_and_addresses_from_a_lookup_table(tmp_path: Path) -> None:
    settings = replace(MANUAL, state=tmp_path / "chain")
    async with LocalChain(settings) as chain, Rpc(chain.rpc_url) as rpc:
        payer, to, table = await funded(chain), Keypair().pubkey(), Keypair().pubkey()
        header = struct.pack("<IQQBB", 1, 2**64 - 1, 0, 0, 1) + bytes(payer.pubkey()) + bytes(2)
        data = header + bytes(Keypair().pubkey()) + bytes(to)
        await chain.set_account(str(table), Account(10**9, data, TABLES))
        await chain.advance_slots(2)
        pay = transfer(TransferParams(from_pubkey=payer.pubkey(), to_pubkey=to, lamports=10**6))

        def compiled(addresses: list[Pubkey], blockhash: Hash) -> VersionedTransaction:
            lookup = AddressLookupTableAccount(table, addresses)
            return VersionedTransaction(MessageV0.try_compile(payer.pubkey(), [pay], [lookup], blockhash), [payer])

        transaction = compiled([Keypair().pubkey(), to], await rpc.blockhash())
        assert to not in transaction.message.account_keys
        signature = await rpc.send(transaction)
        with pytest.raises(RpcFailure, match="maxSupportedTransactionVersion") as caught:
            await rpc("getTransaction", signature)
        assert caught.value.code == -32015
        found = await rpc("getTransaction", signature, {"maxSupportedTransactionVersion": 0})
        assert found["version"] == 0
        assert found["meta"]["loadedAddresses"] == {"writable": [str(to)], "readonly": []}
        assert found["meta"]["postBalances"][-1] - found["meta"]["preBalances"][-1] == 10**6
        parsed = await rpc("getTransaction", signature, {"maxSupportedTransactionVersion": 0, "encoding": "jsonParsed"})
        loaded = [key for key in parsed["transaction"]["message"]["accountKeys"] if key["source"] == "lookupTable"]
        assert loaded == [{"pubkey": str(to), "signer": False, "writable": True, "source": "lookupTable"}]
        with pytest.raises(RpcFailure, match="has 2 addresses, the transaction names 3"):
            await rpc.send(compiled([Keypair().pubkey()] * 3 + [to], await rpc.blockhash()))
    async with LocalChain(settings) as chain, Rpc(chain.rpc_url) as rpc:
        assert await rpc.balance(to) == 10**6


async def test_simulation_changes_nothing_and_takes_any_blockhash_on_request() -> None:
    async with LocalChain(MANUAL) as chain, Rpc(chain.rpc_url) as rpc:
        payer, to = await funded(chain), Keypair().pubkey()
        stale = await rpc.blockhash()
        await chain.advance_slots(151)
        transaction = paying(payer, to, 2_000_000, stale)
        unsigned = VersionedTransaction.populate(transaction.message, [Keypair().sign_message(b"x")])
        options = {"encoding": "base64"}
        assert (await rpc("simulateTransaction", encoded(transaction), options))["value"]["err"] == "BlockhashNotFound"
        wanted = {"accounts": {"encoding": "base64", "addresses": [str(to), str(Keypair().pubkey())]}}
        result = await rpc("simulateTransaction", encoded(unsigned), {**options, **wanted, "replaceRecentBlockhash": True})
        value = result["value"]
        assert (value["err"], value["unitsConsumed"], value["fee"]) == (None, 150, 5000)
        assert value["replacementBlockhash"]["blockhash"] == str(await rpc.blockhash())
        assert (value["accounts"][0]["lamports"], value["accounts"][1]) == (2_000_000, None)
        with pytest.raises(RpcFailure, match="signature verification"):
            await rpc("simulateTransaction", encoded(unsigned), {**options, "sigVerify": True})
        with pytest.raises(RpcFailure, match="may not be used with"):
            await rpc("simulateTransaction", encoded(unsigned), {**options, "sigVerify": True, "replaceRecentBlockhash": True})
        assert await rpc.balance(to) == 0
        forged = VersionedTransaction.populate(
            paying(payer, to, 3_000_000, await rpc.blockhash()).message, [Keypair().sign_message(b"x")]
        )
        await rpc.send(forged, skipPreflight=True)  # verification is on again after a simulation without
        assert await rpc.balance(to) == 0


async def test_programs_see_the_clock_a_test_sets() -> None:
    async with LocalChain(MANUAL) as chain, Rpc(chain.rpc_url) as rpc:

        async def clock() -> tuple[int, int]:
            account = await chain.account(CLOCK)
            assert account is not None
            slot, _, _, _, unix = struct.unpack("<QqQQq", bytes(account.data))
            return slot, unix

        assert await clock() == (1, START)
        await chain.advance(4.0)
        assert await clock() == (11, START + 4) == (await rpc("getSlot"), await rpc("getBlockTime", 11))
        await chain.set_time(START + 1000)
        assert await clock() == (12, START + 1000)
        await chain.advance_slots(5)
        assert await clock() == (17, START + 1002)
        assert (await chain.now()).slot == 17
        assert await rpc("getBlocks", 1, 20) == [1, 11, 12, 17]  # those between were skipped
        with pytest.raises(RpcFailure, match="skipped") as caught:
            await rpc("getBlockTime", 5)
        assert caught.value.code == -32007
        with pytest.raises(ValueError, match="does not go back"):
            await chain.set_time(START)


async def test_slots_follow_the_wall_clock_by_themselves() -> None:
    async with LocalChain(ChainSettings(slot_ms=5, programs={})) as chain, Rpc(chain.rpc_url) as rpc, asyncio.timeout(20):
        first = await rpc.blockhash()
        while await rpc("getSlot") < 20:
            await asyncio.sleep(0.01)
        assert await rpc.blockhash() != first


async def test_tokens_are_minted_and_moved_by_spl_token_itself() -> None:
    async with LocalChain(MANUAL) as chain, Rpc(chain.rpc_url) as rpc:
        owner, mint, one, two = await funded(chain), Keypair(), Keypair(), Keypair()
        blockhash = await rpc.blockhash()
        await rpc.send(signed(new_mint(mint.pubkey(), owner, 3), blockhash, owner, mint))
        for holder in (one, two):
            await rpc.send(signed(token_account(holder.pubkey(), mint.pubkey(), owner), blockhash, owner, holder))
        to_one = [AccountMeta(mint.pubkey(), False, True), AccountMeta(one.pubkey(), False, True)]
        signs = AccountMeta(owner.pubkey(), True, False)
        await rpc.send(signed([Instruction(TOKEN, struct.pack("<BQ", 7, 12_500), [*to_one, signs])], blockhash, owner))
        moved = [AccountMeta(one.pubkey(), False, True), AccountMeta(two.pubkey(), False, True), signs]
        signature = await rpc.send(signed([Instruction(TOKEN, struct.pack("<BQ", 3, 2_500), moved)], blockhash, owner))

        supply = (await rpc("getTokenSupply", str(mint.pubkey())))["value"]
        assert supply == {"amount": "12500", "decimals": 3, "uiAmount": 12.5, "uiAmountString": "12.5"}
        assert (await rpc("getTokenAccountBalance", str(one.pubkey())))["value"]["uiAmountString"] == "10"
        by_mint = await rpc(
            "getTokenAccountsByOwner", str(owner.pubkey()), {"mint": str(mint.pubkey())}, {"encoding": "jsonParsed"}
        )
        held = {
            entry["pubkey"]: entry["account"]["data"]["parsed"]["info"]["tokenAmount"]["amount"] for entry in by_mint["value"]
        }
        assert held == {str(one.pubkey()): "10000", str(two.pubkey()): "2500"}
        largest = (await rpc("getTokenLargestAccounts", str(mint.pubkey())))["value"]
        assert [entry["address"] for entry in largest] == [str(one.pubkey()), str(two.pubkey())]
        moved_by = await rpc("getTransaction", signature)
        keys = moved_by["transaction"]["message"]["accountKeys"]
        before, after = (
            {keys[entry["accountIndex"]]: entry["uiTokenAmount"]["amount"] for entry in moved_by["meta"][name]}
            for name in ("preTokenBalances", "postTokenBalances")
        )
        assert before == {str(one.pubkey()): "12500", str(two.pubkey()): "0"}
        assert after == held
        with pytest.raises(RpcFailure, match="not a Token account"):
            await rpc("getTokenAccountBalance", str(mint.pubkey()))
        filters = [{"dataSize": 165}, {"memcmp": {"offset": 64, "bytes": "AQ==", "encoding": "base64"}}]
        assert await rpc("getProgramAccounts", str(TOKEN), {"encoding": "base64", "filters": filters}) == []
        filters[1] = {"memcmp": {"offset": 0, "bytes": str(mint.pubkey())}}
        found = await rpc("getProgramAccounts", str(TOKEN), {"encoding": "base64", "filters": filters, "withContext": True})
        assert {entry["pubkey"] for entry in found["value"]} == set(held)


async def test_the_shipped_programs_stand_at_their_addresses() -> None:
    async with LocalChain(ChainSettings(manual_clock=True)) as chain, Rpc(chain.rpc_url) as rpc:
        account = (await rpc("getAccountInfo", str(AUTHORIZER), {"encoding": "base64"}))["value"]
        assert account["executable"]
        payer = await funded(chain)
        with pytest.raises(RpcFailure) as caught:
            await rpc.send(signed([Instruction(AUTHORIZER, b"\xff", [])], await rpc.blockhash(), payer))
        assert "Custom" in caught.value.data["err"]["InstructionError"][1], caught.value.data


async def test_a_program_is_deployed_and_upgraded_by_the_real_loader_over_rpc(tmp_path: Path) -> None:
    elf, other = load("authorizer"), load("treasurer")
    unknown_instruction = {"InstructionError": [0, {"Custom": 1}]}
    settings = replace(MANUAL, state=tmp_path / "chain")
    async with LocalChain(settings) as chain:
        owner, program = await funded(chain), Keypair()
        programdata, _ = Pubkey.find_program_address([bytes(program.pubkey())], LOADER)

        async def outcome(rpc: Rpc) -> object:
            called = signed([Instruction(program.pubkey(), b"\xff", [])], await rpc.blockhash(), owner)
            value = (await rpc("simulateTransaction", encoded(called), {"encoding": "base64"}))["value"]
            return value["err"]

        async with Rpc(chain.rpc_url) as rpc:
            await deploy(rpc, owner, program, elf, room=200_000)
            await chain.advance_slots(1)  # a program may be called in the slot after the one it was deployed in
            assert await outcome(rpc) == unknown_instruction
            better = await upload(rpc, owner, other)
            upgrade = Instruction(
                LOADER,
                struct.pack("<I", 3),
                [
                    AccountMeta(programdata, False, True),
                    AccountMeta(program.pubkey(), False, True),
                    AccountMeta(better, False, True),
                    AccountMeta(owner.pubkey(), False, True),
                    *(AccountMeta(at, False, False) for at in SYSVARS),
                    AccountMeta(owner.pubkey(), True, False),
                ],
            )
            await rpc.send(signed([set_compute_unit_limit(1_400_000), upgrade], await rpc.blockhash(), owner))
            slot = await rpc("getSlot")
            data = await chain.account(str(programdata))
            assert data is not None
            assert struct.unpack_from("<IQ", bytes(data.data)) == (3, slot)
            assert bytes(data.data)[45:].rstrip(b"\0") == other.rstrip(b"\0")
    async with LocalChain(replace(settings, programs={str(program.pubkey()): elf})) as chain, Rpc(chain.rpc_url) as rpc:
        await chain.advance_slots(1)
        assert await outcome(rpc) == unknown_instruction
        assert chain.differing == [str(program.pubkey())]
    async with LocalChain(replace(settings, programs={str(program.pubkey()): other})) as chain:
        assert chain.differing == []


async def test_what_is_charged_is_what_was_announced() -> None:
    async with LocalChain(MANUAL) as chain, Rpc(chain.rpc_url) as rpc:
        payer = await funded(chain)
        pay = transfer(TransferParams(from_pubkey=payer.pubkey(), to_pubkey=Keypair().pubkey(), lamports=10**6))
        for extra in ([], [set_compute_unit_price(12_345)], [set_compute_unit_price(77), set_compute_unit_limit(3_333)]):
            transaction = signed([*extra, pay], await rpc.blockhash(), payer)
            message = b64encode(bytes(transaction.message)).decode()
            announced = (await rpc("getFeeForMessage", message))["value"]
            signature = await rpc.send(transaction)
            assert (await rpc("getTransaction", signature))["meta"]["fee"] == announced
            await chain.advance_slots(1)
        await chain.advance_slots(200)
        assert (await rpc("getFeeForMessage", message))["value"] is None


async def test_the_event_loop_never_blocks(tmp_path: Path) -> None:
    settings = ChainSettings(slot_ms=20, programs={}, state=tmp_path / "chain", save_seconds=0.01)
    async with LocalChain(settings) as warm, Rpc(warm.rpc_url) as rpc:  # imports of the first request
        await rpc("getSlot")
    async with Rpc("") as rpc:
        with blockbuster_ctx():
            async with LocalChain(settings) as chain:
                rpc.url = chain.rpc_url
                payer = await funded(chain)
                for lamports in range(10**6, 10**6 + 10):
                    await rpc.send(paying(payer, Keypair().pubkey(), lamports, await rpc.blockhash()))
                await chain.save()
