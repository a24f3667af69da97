"""What this distribution registers, as runs find it."""

from __future__ import annotations

from pathlib import Path

from psyche_core.testing.registration import RegistrationConformance


class TestHttp(RegistrationConformance):
    kind, name = "data", "Http"

    def settings(self, folder: Path) -> dict[str, str]:
        return {"location": "https://data.example.org/tokens.bin"}


class TestWeightedHttp(RegistrationConformance):
    kind, name = "data", "WeightedHttp"

    def settings(self, folder: Path) -> dict[str, str]:
        return {"location": str(folder / "mixture.json")}
