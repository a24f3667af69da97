"""A processed transaction as JSON: json, jsonParsed, base58 and base64.

jsonParsed names accounts but does not parse instructions, like a real validator with unknown programs.
"""

from __future__ import annotations

import base64
from typing import Any

from solders.message import MessageV0
from solders.transaction import VersionedTransaction

from psyche_backend_solana.localnet import base58
from psyche_backend_solana.localnet.ledger.records import TransactionRecord
from psyche_backend_solana.localnet.rpc_error import UNSUPPORTED_VERSION, RpcError

ENCODINGS = ("json", "jsonParsed", "base58", "base64")


def transaction_json(record: TransactionRecord, encoding: str, *, max_version: int | None) -> dict[str, Any]:
    """`transaction`, `meta` and, for clients that support versions, `version`. Raises RpcError for an unsupported one."""
    if record.version != "legacy" and max_version is None:
        message = (
            f"Transaction version ({record.version}) is not supported by the requesting client. Please try the request again "
            f'with the following configuration parameter: "maxSupportedTransactionVersion": {record.version}'
        )
        raise RpcError(UNSUPPORTED_VERSION, message)

    result: dict[str, Any] = {"transaction": _encoded(record, encoding), "meta": _meta(record, encoding)}
    if max_version is not None:
        result["version"] = record.version if record.version == "legacy" else int(record.version)
    return result


def _encoded(record: TransactionRecord, encoding: str) -> Any:
    if encoding == "base64":
        return [base64.b64encode(record.raw).decode(), encoding]
    if encoding == "base58":
        return [base58.encode(record.raw), encoding]

    transaction = VersionedTransaction.from_bytes(record.raw)
    message = transaction.message
    parsed = encoding == "jsonParsed"
    result: dict[str, Any] = {
        "accountKeys": _keys_parsed(record, transaction) if parsed else [str(key) for key in message.account_keys],
        "recentBlockhash": str(message.recent_blockhash),
        "instructions": [
            _instruction(record, one.program_id_index, bytes(one.accounts), base58.encode(bytes(one.data)), None, parsed=parsed)
            for one in message.instructions
        ],
    }
    if not parsed:
        header = message.header
        result["header"] = {
            "numRequiredSignatures": header.num_required_signatures,
            "numReadonlySignedAccounts": header.num_readonly_signed_accounts,
            "numReadonlyUnsignedAccounts": header.num_readonly_unsigned_accounts,
        }
    if isinstance(message, MessageV0):
        result["addressTableLookups"] = [
            {
                "accountKey": str(lookup.account_key),
                "writableIndexes": list(bytes(lookup.writable_indexes)),
                "readonlyIndexes": list(bytes(lookup.readonly_indexes)),
            }
            for lookup in message.address_table_lookups
        ]
    return {"signatures": [str(signature) for signature in transaction.signatures], "message": result}


def _keys_parsed(record: TransactionRecord, transaction: VersionedTransaction) -> list[dict[str, Any]]:
    header, static = transaction.message.header, len(transaction.message.account_keys)
    signers = header.num_required_signatures
    keys = []
    for index, key in enumerate(record.accounts):
        if index < static:
            writable = (
                index < signers - header.num_readonly_signed_accounts
                or signers <= index < static - header.num_readonly_unsigned_accounts
            )
        else:
            writable = index < static + record.loaded_writable
        source = "transaction" if index < static else "lookupTable"
        keys.append({"pubkey": key, "signer": index < signers, "writable": writable, "source": source})
    return keys


def _instruction(
    record: TransactionRecord, program: int, accounts: bytes, data: str, height: int | None, *, parsed: bool
) -> dict[str, Any]:
    if not parsed:
        return {"programIdIndex": program, "accounts": list(accounts), "data": data, "stackHeight": height}

    keys = record.accounts
    return {"programId": keys[program], "accounts": [keys[at] for at in accounts], "data": data, "stackHeight": height}


def _meta(record: TransactionRecord, encoding: str) -> dict[str, Any]:
    parsed = encoding == "jsonParsed"
    writable_at = len(record.accounts) - record.loaded_writable - record.loaded_readonly
    readonly_at = writable_at + record.loaded_writable
    inner = [
        {
            "index": group["index"],
            "instructions": [
                _instruction(
                    record, one["programIdIndex"], bytes(one["accounts"]), one["data"], one["stackHeight"], parsed=parsed
                )
                for one in group["instructions"]
            ],
        }
        for group in record.inner
    ]
    meta: dict[str, Any] = {
        "err": record.err,
        "status": {"Ok": None} if record.err is None else {"Err": record.err},
        "fee": record.fee,
        "preBalances": record.pre_balances,
        "postBalances": record.post_balances,
        "preTokenBalances": record.pre_tokens,
        "postTokenBalances": record.post_tokens,
        "innerInstructions": inner,
        "logMessages": record.logs,
        "rewards": [],
        "computeUnitsConsumed": record.units,
    }
    if not parsed:
        meta["loadedAddresses"] = {
            "writable": record.accounts[writable_at:readonly_at],
            "readonly": record.accounts[readonly_at:],
        }
    if record.return_data is not None:
        meta["returnData"] = record.return_data
    return meta
