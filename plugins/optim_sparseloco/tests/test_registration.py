"""What this distribution registers, as runs find it."""

from __future__ import annotations

from psyche_core.testing.registration import RegistrationConformance


class TestSparseLoCo(RegistrationConformance):
    kind, name = "optimizer", "SparseLoCo"
