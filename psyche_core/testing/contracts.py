"""Where the contract of each kind of plugin is written: the interface, and the page that explains it. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Contract:
    """Where a contract is written; as text, half a sentence.

    Attributes:
        interface: dotted name of what a plugin implements.
        page: page of the documentation, from the repository's root.
    """

    interface: str
    page: str

    def __str__(self) -> str:
        return f"the contract is {self.interface}, which the documentation explains in {self.page}"


CONTRACTS: Mapping[str, Contract] = MappingProxyType(
    {
        kind: Contract(f"psyche_core.{interface}", f"docs/plugins/kinds/{kind}.md")
        for kind, interface in (
            ("backend", "interfaces.Backend"),
            ("optimizer", "interfaces.Optimizer"),
            ("data", "interfaces.DataProvider"),
            ("transport", "interfaces.Transport"),
            ("model", "interfaces.Model"),
            ("sharding", "interfaces.ShardingEngine"),
            ("relay", "interfaces.Relay"),
            ("tracker", "interfaces.Tracker"),
            ("store", "interfaces.ModelStore"),
            ("command", "hookspecs.CommandRegistration"),
        )
    }
)
"""By kind."""

REPLAY = Contract("psyche_core.interfaces.Replay", "docs/plugins/kinds/optimizer.md")
"""An optimizer's optional `replay`."""

REGISTRATION = Contract("psyche_core.hookspecs", "docs/plugins/README.md")
"""What a plugin of any kind registers."""
