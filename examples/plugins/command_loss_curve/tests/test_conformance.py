"""Every check that a command must pass."""

from psyche_command_loss_curve.hooks import psyche_register_commands

from psyche_core.testing.command import CommandConformance
from psyche_core.testing.registration import RegistrationConformance


class TestLossCurve(CommandConformance):
    registration = psyche_register_commands()[0]
    hooks = "psyche_command_loss_curve.hooks"


class TestRegistration(RegistrationConformance):
    kind, name = "command", "loss-curve"
