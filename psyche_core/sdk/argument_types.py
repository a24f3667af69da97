"""The arguments of `Client` and `Coordinator` as typed dictionaries, for functions that pass them on; see those classes.

Used only by type checkers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from psyche_core.plugins import PluginRegistry
from psyche_core.sdk.arguments.callbacks import Callback
from psyche_core.sdk.arguments.objects import BackendGiven, OptimizerGiven, TransportGiven
from psyche_core.sdk.coordinator import OnChange
from psyche_core.wire.signing import SecretKey

if TYPE_CHECKING:
    from psyche_core.sdk.arguments.objects import DataGiven, EvalGiven, ModelGiven


class ClientArguments(TypedDict, total=False):
    """The arguments of `Client` except the address."""

    run_id: str | None
    model: ModelGiven | None
    data: DataGiven | None
    eval_data: EvalGiven | None
    optimizer: OptimizerGiven | None
    transport: TransportGiven | None
    backend: BackendGiven | None
    callbacks: Iterable[Callback]
    checkpoint_dir: Path | str | None
    key: SecretKey | Path | str | None
    device: str
    micro_batch_size: int | Literal["auto"]
    base: Path | str | None
    options: Mapping[str, Any] | None
    backend_options: Mapping[str, Any] | None
    plugins: PluginRegistry | None


class CoordinatorArguments(TypedDict, total=False):
    """The arguments of `Coordinator` except the run."""

    backend: str
    host: str
    port: int
    state_dir: Path | str | None
    key: SecretKey | None
    on_change: OnChange | None
    plugins: PluginRegistry | None
