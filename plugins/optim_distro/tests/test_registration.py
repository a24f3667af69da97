"""What this distribution registers, as runs find it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from psyche_core.testing.registration import RegistrationConformance


class TestDistro(RegistrationConformance):
    kind, name = "optimizer", "Distro"


class TestDeepSpeed(RegistrationConformance):
    kind, name = "sharding", "deepspeed"

    def context(self, settings: Any, folder: Path) -> None:
        """It needs two ranks; test_sharding_deepspeed.py has them."""
