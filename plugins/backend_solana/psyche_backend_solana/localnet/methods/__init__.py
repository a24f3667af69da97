"""All JSON-RPC methods by name. Each takes a `Call` and returns its `result` as JSON, or raises RpcError."""

from __future__ import annotations

from psyche_backend_solana.localnet.methods import accounts, admin, blocks, cluster, token_accounts, transactions
from psyche_backend_solana.localnet.methods.call import Call, Handler

METHODS: dict[str, Handler] = {
    **cluster.METHODS,
    **blocks.METHODS,
    **accounts.METHODS,
    **token_accounts.METHODS,
    **transactions.METHODS,
}
ADMIN_METHODS: dict[str, Handler] = admin.METHODS

__all__ = ["ADMIN_METHODS", "METHODS", "Call", "Handler"]
