"""One request, as passed to a method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from psyche_backend_solana.localnet.ledger.ledger import Ledger
from psyche_backend_solana.localnet.rpc.faults import FaultSwitch
from psyche_backend_solana.localnet.rpc.parameters import Options, Params
from psyche_backend_solana.localnet.rpc_error import MIN_CONTEXT_SLOT, RpcError
from psyche_backend_solana.localnet.settings import Limits

API_VERSION = "3.0.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """The chain, the request's parameters, the RPC provider that received it, and its limits.

    save: writes the state now. providers: `host:port` of RPC and of websockets, for all RPC providers.
    """

    ledger: Ledger
    values: Sequence[Any]
    limits: Limits
    faults: FaultSwitch
    save: Callable[[], None] | None = None
    providers: Sequence[tuple[str, str]] = ()

    def params(self, *, most: int) -> Params:
        """The parameters. most: maximum number of parameters of the method."""
        return Params(self.values, most=most)

    def options(self, params: Params, index: int) -> Options:
        """The configuration object. Raises RpcError if it requests a future slot."""
        options = params.options(index)
        self.check_context(options)
        return options

    def check_context(self, options: Options) -> None:
        """Check minContextSlot. Raises RpcError if that slot was not reached."""
        least = options.integer("minContextSlot")
        if least is not None and least > self.ledger.slot:
            raise RpcError(MIN_CONTEXT_SLOT, "Minimum context slot has not been reached", {"contextSlot": self.ledger.slot})

    def in_context(self, value: Any) -> dict[str, Any]:
        """A result with the slot to which it belongs."""
        return with_context(self.ledger.slot, value)


def with_context(slot: int, value: Any) -> dict[str, Any]:
    """A result with the slot to which it belongs."""
    return {"context": {"apiVersion": API_VERSION, "slot": slot}, "value": value}


Handler = Callable[[Call], Any]
