"""What this distribution registers, as runs find it."""

from __future__ import annotations

from pathlib import Path

from psyche_core.testing.registration import RegistrationConformance


class TestTensorBoard(RegistrationConformance):
    kind, name = "tracker", "tensorboard"

    def settings(self, folder: Path) -> dict[str, str]:
        return {"tensorboard_dir": str(folder)}
