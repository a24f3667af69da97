"""LiteSVM's metadata of a transaction, as a real validator's JSON."""

from __future__ import annotations

import base64
from typing import Any

from solders.transaction_metadata import TransactionMetadata

from psyche_backend_solana.localnet import base58


def inner_json(meta: TransactionMetadata) -> list[dict[str, Any]]:
    """Return `innerInstructions`: the inner instructions of each instruction that has any."""
    groups = []
    for index, group in enumerate(meta.inner_instructions()):
        instructions = [
            {
                "programIdIndex": inner.instruction().program_id_index,
                "accounts": list(bytes(inner.instruction().accounts)),
                "data": base58.encode(bytes(inner.instruction().data)),
                "stackHeight": inner.stack_height(),
            }
            for inner in group
        ]
        if instructions:
            groups.append({"index": index, "instructions": instructions})
    return groups


def return_data_json(meta: TransactionMetadata) -> dict[str, Any] | None:
    """Return `returnData`; None if the program returned nothing."""
    returned = meta.return_data()
    data = bytes(returned.data)
    return {"programId": str(returned.program_id), "data": [base64.b64encode(data).decode(), "base64"]} if data else None
