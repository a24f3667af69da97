"""Reads a run's model configuration from a chain, without a wallet and without taking part."""

from __future__ import annotations

from psyche_backend_solana.lookup.runs import CALL_SECONDS, coordinator_account, find_run
from psyche_backend_solana.lookup.treasurers import check_owner
from psyche_backend_solana.rpc.client import Rpc
from psyche_backend_solana.rpc.failures import RpcError
from psyche_backend_solana.settings import ChainSettings
from psyche_core.config.run_config import ModelConfig
from psyche_core.errors import BackendError, UserError


async def read_model(run_id: str, settings: ChainSettings) -> ModelConfig:
    """Return the table `[model]` of a run as it is on the chain now. Raises UserError, BackendError."""
    try:
        async with Rpc(settings.endpoints()) as rpc:
            found = await find_run(rpc, run_id, programs=settings.programs, timeout=CALL_SECONDS)
            await check_owner(rpc, found, settings.wanted_owner, programs=settings.programs, timeout=CALL_SECONDS)
            state = (await coordinator_account(rpc, found.run, timeout=CALL_SECONDS)).state
    except RpcError as error:
        raise BackendError(str(error)) from error
    if state is None:
        message = f"the run {run_id!r} has no configuration yet; its owner gives it one with `psyche run-manager update-config`"
        raise UserError(message)

    return state.model
