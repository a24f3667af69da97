"""What this distribution registers, as runs find it."""

from __future__ import annotations

from psyche_core.testing.registration import RegistrationConformance


class TestQuic(RegistrationConformance):
    kind, name = "transport", "quic"


class TestIroh(RegistrationConformance):
    kind, name = "relay", "iroh"


class TestDoctor(RegistrationConformance):
    kind, name = "command", "doctor"


class TestRelay(RegistrationConformance):
    kind, name = "command", "relay"
