"""Methods of this chain only, served with `--allow-faults`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from psyche_backend_solana.localnet.methods.call import Call, Handler
from psyche_backend_solana.localnet.rpc.faults import Faults, faults_from_json
from psyche_backend_solana.localnet.rpc_error import RpcError, invalid
from psyche_core.errors import ConfigError


def set_faults(call: Call) -> dict[str, Any]:
    """Change the faults of this RPC provider; null or no parameter removes them. The answer is the faults now in force."""
    params = call.params(most=1)
    try:
        changes = asdict(Faults()) if params.get(0) is None else faults_from_json(params.get(0))
        return asdict(call.faults.set(**changes))
    except ConfigError as error:
        raise invalid(str(error)) from error


def save_state(call: Call) -> bool:
    """Save the state to disk before answering."""
    call.params(most=0)
    if call.save is None:
        raise RpcError(-32603, "this chain keeps no state; start it with --state")

    call.save()
    return True


METHODS: dict[str, Handler] = {"psyche_setFaults": set_faults, "psyche_saveState": save_state}
