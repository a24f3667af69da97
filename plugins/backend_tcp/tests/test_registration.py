"""What this distribution registers, as runs find it."""

from __future__ import annotations

from pathlib import Path

from psyche_core.testing.registration import RegistrationConformance
from psyche_core.wire.signing import SecretKey


class TestTcp(RegistrationConformance):
    kind, name = "backend", "tcp"


class TestServerData(RegistrationConformance):
    kind, name = "data", "Server"

    def settings(self, folder: Path) -> dict[str, str]:
        return {"location": f"127.0.0.1:20000#{SecretKey(bytes([2]) * 32).public.hex()}"}
