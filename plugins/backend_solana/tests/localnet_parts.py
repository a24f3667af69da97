"""What the tests of the local chain share: funded keys, signed transactions, raw JSON-RPC over a real connection."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any, Self

import httpx2
from solders.compute_budget import set_compute_unit_limit
from solders.hash import Hash
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.message import Message
from solders.pubkey import Pubkey
from solders.system_program import CreateAccountParams, TransferParams, create_account, transfer
from solders.transaction import VersionedTransaction

from psyche_backend_solana.localnet import LAMPORTS_PER_SOL, ChainSettings, LocalChain

START = 1_700_000_000
MANUAL = ChainSettings(manual_clock=True, start_time=START, programs={})
TOKEN = Pubkey.from_string("TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA")
MEMO = Pubkey.from_string("MemoSq4gqABAXKb96qnH8TysNcWxMyWCqXgDLGmfcHr")
LOADER = Pubkey.from_string("BPFLoaderUpgradeab1e11111111111111111111111")
SYSVARS = [
    Pubkey.from_string(name)
    for name in ("SysvarRent111111111111111111111111111111111", "SysvarC1ock11111111111111111111111111111111")
]
TIMEOUT = 20.0


class RpcFailure(Exception):
    """An error object."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error)
        self.code = error["code"]
        self.message = error["message"]
        self.data: Any = error.get("data") or {}


class Rpc:
    """JSON-RPC by hand, as the documentation of Solana describes it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.http = httpx2.AsyncClient(timeout=TIMEOUT)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()

    async def __call__(self, method: str, *params: Any) -> Any:
        answer = await self.http.post(self.url, json={"jsonrpc": "2.0", "id": 7, "method": method, "params": list(params)})
        answer.raise_for_status()
        reply = answer.json()
        assert (reply["jsonrpc"], reply["id"]) == ("2.0", 7)
        if "error" in reply:
            raise RpcFailure(reply["error"])

        return reply["result"]

    async def send(self, transaction: VersionedTransaction, **options: Any) -> str:
        result = await self("sendTransaction", encoded(transaction), {"encoding": "base64", **options})
        assert isinstance(result, str)
        return result

    async def blockhash(self) -> Hash:
        return Hash.from_string((await self("getLatestBlockhash"))["value"]["blockhash"])

    async def balance(self, address: Pubkey) -> int:
        return int((await self("getBalance", str(address)))["value"])


def encoded(transaction: VersionedTransaction) -> str:
    return base64.b64encode(bytes(transaction)).decode()


def signed(instructions: list[Instruction], blockhash: Hash, payer: Keypair, *others: Keypair) -> VersionedTransaction:
    message = Message.new_with_blockhash(instructions, payer.pubkey(), blockhash)
    return VersionedTransaction(message, [payer, *others])


def paying(payer: Keypair, to: Pubkey, lamports: int, blockhash: Hash) -> VersionedTransaction:
    return signed([transfer(TransferParams(from_pubkey=payer.pubkey(), to_pubkey=to, lamports=lamports))], blockhash, payer)


async def funded(chain: LocalChain, sol: int = 100) -> Keypair:
    key = Keypair()
    await chain.airdrop(str(key.pubkey()), sol * LAMPORTS_PER_SOL)
    return key


def token_account(address: Pubkey, mint: Pubkey, owner: Keypair) -> list[Instruction]:
    """Create and initialize (InitializeAccount3)."""
    keys = [AccountMeta(address, False, True), AccountMeta(mint, False, False)]
    return [
        new_account(owner, address, 2_039_280, 165, TOKEN),
        Instruction(TOKEN, bytes([18]) + bytes(owner.pubkey()), keys),
    ]


def new_mint(address: Pubkey, authority: Keypair, decimals: int) -> list[Instruction]:
    """Create and initialize (InitializeMint2)."""
    data = bytes([20, decimals]) + bytes(authority.pubkey()) + b"\0"
    return [new_account(authority, address, 1_461_600, 82, TOKEN), Instruction(TOKEN, data, [AccountMeta(address, False, True)])]


def new_account(payer: Keypair, address: Pubkey, lamports: int, space: int, owner: Pubkey) -> Instruction:
    parameters = CreateAccountParams(from_pubkey=payer.pubkey(), to_pubkey=address, lamports=lamports, space=space, owner=owner)
    return create_account(parameters)


def request(method: str, *params: Any, number: int = 1) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": list(params)})


async def upload(rpc: Rpc, owner: Keypair, elf: bytes) -> Pubkey:
    """Write a program into a buffer of the upgradeable loader, as its own tools do: 900 bytes a transaction."""
    buffer, size = Keypair(), 37 + len(elf)
    rent = await rpc("getMinimumBalanceForRentExemption", size)
    signs = AccountMeta(owner.pubkey(), True, False)
    start = Instruction(LOADER, struct.pack("<I", 0), [AccountMeta(buffer.pubkey(), False, True), signs])
    create = new_account(owner, buffer.pubkey(), rent, size, LOADER)
    await rpc.send(signed([create, start], await rpc.blockhash(), owner, buffer))
    for at in range(0, len(elf), 900):
        part = elf[at : at + 900]
        keys = [AccountMeta(buffer.pubkey(), False, True), signs]
        write = Instruction(LOADER, struct.pack("<IIQ", 1, at, len(part)) + part, keys)
        await rpc.send(signed([write], await rpc.blockhash(), owner))
    return buffer.pubkey()


async def deploy(rpc: Rpc, owner: Keypair, program: Keypair, elf: bytes, *, room: int) -> None:
    """Deploy with the upgradeable loader. room: bytes the program may grow to."""
    buffer = await upload(rpc, owner, elf)
    programdata, _ = Pubkey.find_program_address([bytes(program.pubkey())], LOADER)
    instruction = Instruction(
        LOADER,
        struct.pack("<IQB", 2, room, 1),
        [
            AccountMeta(owner.pubkey(), True, True),
            AccountMeta(programdata, False, True),
            AccountMeta(program.pubkey(), False, True),
            AccountMeta(buffer, False, True),
            *(AccountMeta(at, False, False) for at in SYSVARS),
            AccountMeta(Pubkey.default(), False, False),
            AccountMeta(owner.pubkey(), True, False),
        ],
    )
    rent = await rpc("getMinimumBalanceForRentExemption", 36)
    create = new_account(owner, program.pubkey(), rent, 36, LOADER)
    steps = [set_compute_unit_limit(1_400_000), create, instruction]
    await rpc.send(signed(steps, await rpc.blockhash(), owner, program))
