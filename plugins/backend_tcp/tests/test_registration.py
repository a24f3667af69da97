"""What this distribution registers, as runs find it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from psyche_core.hookspecs import BackendContext, DataContext
from psyche_core.testing.registration import RegistrationConformance
from psyche_core.wire.signing import SecretKey


class TestTcp(RegistrationConformance):
    kind, name = "backend", "tcp"

    def context(self, settings: Any, folder: Path) -> BackendContext:
        address = f"127.0.0.1:20000#{SecretKey(bytes([2]) * 32).public.hex()}"
        return BackendContext(run_id="conformance", address=address, key=SecretKey(bytes([1]) * 32), settings=settings)


class TestServerData(RegistrationConformance):
    kind, name = "data", "Server"

    def settings(self, folder: Path) -> dict[str, str]:
        return {"location": f"127.0.0.1:20000#{SecretKey(bytes([2]) * 32).public.hex()}"}

    def context(self, settings: Any, folder: Path) -> DataContext:
        return DataContext(settings=settings, sequence_length=8, key=SecretKey(bytes([1]) * 32))
