"""Which plugin comes with which extra of psyche-core, and which of them are not installed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from psyche_core.plugins.records import PluginRecord, Records

FIRST_PARTY_EXTRAS: Mapping[tuple[str, str], str] = MappingProxyType(
    {
        ("backend", "solana"): "solana",
        ("backend", "tcp"): "tcp",
        ("command", "relay"): "quic",
        ("command", "run-manager"): "solana",
        ("command", "solana"): "solana",
        ("data", "Server"): "tcp",
        ("data", "Http"): "http",
        ("data", "WeightedHttp"): "http",
        ("optimizer", "Distro"): "distro",
        ("optimizer", "SparseLoCo"): "sparseloco",
        ("relay", "iroh"): "quic",
        ("sharding", "deepspeed"): "deepspeed",
        ("tracker", "mlflow"): "mlflow",
        ("tracker", "tensorboard"): "tensorboard",
        ("tracker", "wandb"): "wandb",
        ("transport", "quic"): "quic",
    }
)
"""(kind, name) -> the extra of psyche-core that installs it."""


def install_line(extra: str) -> str:
    """What to type to install an extra."""
    return f"pip install 'psyche-core[{extra}]'"


def not_installed(records: Iterable[PluginRecord]) -> Records:
    """Records of our own plugins that are missing here; each cause says how to install it."""
    here = {(record.kind, record.name) for record in records}
    return [
        PluginRecord(
            kind=kind,
            name=name,
            distribution="",
            version="",
            module="",
            status="not installed",
            cause=f"install it with: {install_line(extra)}",
        )
        for (kind, name), extra in FIRST_PARTY_EXTRAS.items()
        if (kind, name) not in here
    ]
