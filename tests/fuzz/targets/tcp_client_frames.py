"""What a logged-in client sends the coordinator's server: frames and the commands inside."""

from __future__ import annotations

from dataclasses import replace

from psyche_backend_tcp.protocol import (
    ClientMessage,
    CommandRequest,
    Heartbeat,
    JoinRequest,
    WholeRequest,
    decode_client,
    encode_client,
)
from psyche_core.config.run_config import Choice
from psyche_core.coordinator.commands import (
    Checkpoint,
    Equivocation,
    HealthCheck,
    SignedResult,
    VerifierCommit,
    WarmupWitness,
    Withdraw,
    Witness,
)
from psyche_core.errors import WireError
from psyche_core.interfaces.backend import ClientCommand
from psyche_core.interfaces.command_codec import decode_command, encode_command
from psyche_core.types import NodeIdentity, WitnessMetadata, WitnessStatement
from tests.fuzz.mutation import change_cbor as mutate

__all__ = ["DOCUMENTED", "MAX_BYTES", "MEMORY", "TARGET", "mutate", "seeds"]

DOCUMENTED = (WireError,)
MAX_BYTES = 1024
MEMORY = (400, 65_536)

_SENDER = NodeIdentity(b"s" * 32, b"p" * 32)


def seeds() -> list[bytes]:
    statement = WitnessStatement(1, 2, 3, bytes(32), bytes(320), bytes(32), bytes(32))
    commands: list[ClientCommand] = [
        Withdraw(_SENDER),
        WarmupWitness(_SENDER, 1, 2, b"d" * 32),
        Witness(_SENDER, statement, WitnessMetadata(1, 2.0, 3.5, 1e-3)),
        Witness(_SENDER, statement, None),
        Witness(_SENDER, replace(statement, words=b"\x21\x03"), None),
        VerifierCommit(_SENDER, 1, 2**64 - 1, 3, 255, b"r" * 32),
        VerifierCommit(_SENDER, 1, 2, 3, 4, None),
        HealthCheck(_SENDER, (0, 255)),
        Equivocation(_SENDER, 1, 2, 3, SignedResult(b"h" * 32, b"s" * 64), SignedResult(b"g" * 32, b"t" * 64)),
        Checkpoint(_SENDER, Choice("Hub", {"repo_id": "a/b"})),
        Checkpoint(_SENDER, Choice("Dummy")),
    ]
    messages: list[ClientMessage] = [Heartbeat(), JoinRequest(1, b"address", bytes(64)), WholeRequest()]
    messages += [CommandRequest(number, encode_command(command)) for number, command in enumerate(commands)]
    return list(map(encode_client, messages))


def TARGET(data: bytes) -> None:
    message = decode_client(data)
    if isinstance(message, CommandRequest):
        command = decode_command(message.command, _SENDER)
        assert command.sender == _SENDER
        assert decode_command(encode_command(command), _SENDER) == command
