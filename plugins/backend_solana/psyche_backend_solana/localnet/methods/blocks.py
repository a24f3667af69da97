"""Methods about slots, blocks and blockhashes. Every slot is final at once, and a slot's block height is its number."""

from __future__ import annotations

from typing import Any

from psyche_backend_solana.localnet.ledger.records import Block
from psyche_backend_solana.localnet.methods.call import Call, Handler
from psyche_backend_solana.localnet.rpc.parameters import Options, read_base58, read_integer
from psyche_backend_solana.localnet.rpc.transaction_json import ENCODINGS, transaction_json
from psyche_backend_solana.localnet.rpc_error import BLOCK_CLEANED_UP, BLOCK_NOT_AVAILABLE, SLOT_SKIPPED, RpcError, invalid

_MAX_BLOCKS = 500_000
_DETAILS = ("full", "signatures", "none")


def get_slot(call: Call) -> int:
    """The newest slot."""
    call.options(call.params(most=1), 0)
    return call.ledger.slot


def get_transaction_count(call: Call) -> int:
    """Number of transactions since genesis."""
    call.options(call.params(most=1), 0)
    return call.ledger.transaction_count


def get_block_time(call: Call) -> int:
    """Return a block's time in unix seconds."""
    return _block(call, call.params(most=1).integer(0, "slot")).unix


def get_latest_blockhash(call: Call) -> dict[str, Any]:
    """The newest blockhash, for signing a transaction."""
    call.options(call.params(most=1), 0)
    last = call.ledger.slot + call.faults.now.expire_blockhashes_after
    return call.in_context({"blockhash": call.ledger.blockhashes.latest, "lastValidBlockHeight": last})


def is_blockhash_valid(call: Call) -> dict[str, Any]:
    """Return whether a transaction signed with this blockhash would still be processed."""
    params = call.params(most=2)
    blockhash = read_base58(params.required(0, "blockhash"), 32, "blockhash")
    call.options(params, 1)
    within = call.faults.now.expire_blockhashes_after
    return call.in_context(call.ledger.blockhashes.is_valid(blockhash, within=within))


def get_blocks(call: Call) -> list[int]:
    """Return the kept slots in a range that were not skipped."""
    params = call.params(most=3)
    first = params.integer(0, "start slot")
    second = params.get(1)
    last = call.ledger.slot if second is None or isinstance(second, dict) else read_integer(second, "end slot")
    if last < first:
        return []

    if last - first > _MAX_BLOCKS:
        message = f"slot range too large; max {_MAX_BLOCKS}"
        raise invalid(message)

    return [block.slot for block in call.ledger.history.blocks() if first <= block.slot <= last]


def get_blocks_with_limit(call: Call) -> list[int]:
    """Slots that were not skipped, from a given one on."""
    params = call.params(most=3)
    first, most = params.integer(0, "start slot"), params.integer(1, "limit", high=_MAX_BLOCKS)
    return [block.slot for block in call.ledger.history.blocks() if block.slot >= first][:most]


def get_block(call: Call) -> dict[str, Any]:
    """A block, with its transactions if requested."""
    params = call.params(most=2)
    block = _block(call, params.integer(0, "slot"))
    given = params.get(1)
    options = Options({"encoding": given} if isinstance(given, str) else given)
    encoding = options.choice("encoding", ENCODINGS, default="json")
    details = options.choice("transactionDetails", _DETAILS, default="full")
    version = options.integer("maxSupportedTransactionVersion", high=255)
    parent = call.ledger.history.block(block.parent)
    result: dict[str, Any] = {
        "blockhash": block.blockhash,
        "previousBlockhash": parent.blockhash if parent is not None else call.ledger.genesis_hash,
        "parentSlot": block.parent,
        "blockHeight": block.slot,
        "blockTime": block.unix,
    }
    if options.flag("rewards", default=True):
        result["rewards"] = []
    if details == "signatures":
        result["signatures"] = list(block.signatures)
    elif details == "full":
        records = [call.ledger.history.record(signature) for signature in block.signatures]
        result["transactions"] = [
            transaction_json(record, encoding, max_version=version) for record in records if record is not None
        ]
    return result


def get_first_available_block(call: Call) -> int:
    """The oldest block that is kept."""
    call.params(most=0)
    return call.ledger.history.first_slot


def _block(call: Call, slot: int) -> Block:
    history = call.ledger.history
    block = history.block(slot)
    if block is not None:
        return block

    if slot > call.ledger.slot:
        message = f"Block not available for slot {slot}"
        raise RpcError(BLOCK_NOT_AVAILABLE, message)

    if slot < history.first_slot:
        message = f"Block {slot} cleaned up, does not exist on node. First available block: {history.first_slot}"
        raise RpcError(BLOCK_CLEANED_UP, message)

    message = f"Slot {slot} was skipped, or missing due to ledger jump to recent snapshot"
    raise RpcError(SLOT_SKIPPED, message)


METHODS: dict[str, Handler] = {
    "getSlot": get_slot,
    "getBlockHeight": get_slot,
    "getTransactionCount": get_transaction_count,
    "getBlockTime": get_block_time,
    "getLatestBlockhash": get_latest_blockhash,
    "isBlockhashValid": is_blockhash_valid,
    "getBlocks": get_blocks,
    "getBlocksWithLimit": get_blocks_with_limit,
    "getBlock": get_block,
    "getFirstAvailableBlock": get_first_available_block,
    "minimumLedgerSlot": get_first_available_block,
}
