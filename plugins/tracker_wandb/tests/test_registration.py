"""What this distribution registers, as runs find it."""

from __future__ import annotations

from pathlib import Path

from psyche_core.testing.registration import RegistrationConformance


class TestWandb(RegistrationConformance):
    kind, name = "tracker", "wandb"

    def settings(self, folder: Path) -> dict[str, str]:
        return {"wandb_mode": "offline", "wandb_dir": str(folder)}
