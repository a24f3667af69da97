"""A hostile peer's side of a conversation: the log stays within its limits, no answer is longer than what the log holds.

The input is a list of operations: 0 beat, 1 and a byte expire, 2 and a byte say something ourselves, 3.. a frame with two bytes
of length before it.
"""

from __future__ import annotations

from random import Random

from psyche_core.errors import WireError
from psyche_core.p2p.message_log import PREFIX_BYTES, LogLimits, MessageLog
from psyche_p2p_quic.connections import control_frames
from psyche_p2p_quic.connections.control_frames import IHave, Inventory, IWant, Message, Ping, Pong
from psyche_p2p_quic.connections.control_protocol import ControlProtocol, PeerSilent
from psyche_p2p_quic.settings import QuicSettings
from tests.fuzz.mutation import change_bytes, change_cbor

__all__ = ["DOCUMENTED", "MAX_BYTES", "MEMORY", "TARGET", "mutate", "seeds"]

DOCUMENTED = (WireError, PeerSilent)
MAX_BYTES = 1024
MEMORY = (600, 262_144)

_LIMITS = LogLimits(own_messages=4, own_bytes=400, relayed_messages=6, relayed_bytes=600, tag_ahead=5, remembered=8)
_SETTINGS = QuicSettings(silent_beats=4, inventory_beats=2, frame_bytes=1024, log=_LIMITS)
_BEAT, _EXPIRE, _SAY, _FRAME = range(4)


def _framed(*frames: bytes) -> bytes:
    return b"".join(bytes((_FRAME,)) + len(frame).to_bytes(2, "big") + frame for frame in frames)


def seeds() -> list[bytes]:
    messages = [control_frames.encode(Message(tag, b"m%d" % tag * 30, relayed=tag % 2 == 0)) for tag in range(4)]
    asking = [
        control_frames.encode(frame)
        for frame in (
            Inventory(()),
            Ping(1, b"d" * 32),
            Pong(1),
            Ping(2, None),
            Inventory((b"x" * PREFIX_BYTES,)),
            IHave((b"x" * PREFIX_BYTES,) * 3),
            IWant((b"x" * PREFIX_BYTES,) * 2),
        )
    ]
    say, beat = bytes((_SAY, 3)), bytes((_BEAT,))
    return [
        say + _framed(*messages) + beat + _framed(*asking) + beat * 2 + _framed(asking[1]),
        _framed(*messages, *messages) + bytes((_EXPIRE, 2)) + _framed(*messages) + say,
        say * 3 + _framed(asking[0]) * 5,
    ]


def mutate(data: bytes, random: Random) -> bytes:
    """One operation changed, left out or repeated; a frame's inside stays CBOR."""
    operations = list(_operations(data)) or [(_BEAT, b"")]
    place = random.randrange(len(operations))
    kind, body = operations[place]
    match random.randrange(4):
        case 0:
            del operations[place]
        case 1:
            operations.insert(random.randint(0, len(operations)), (kind, body))
        case _:
            operations[place] = (kind, change_cbor(body, random) if kind == _FRAME else change_bytes(body, random)[:1])
    return b"".join(_framed(body[:0xFFFF]) if kind == _FRAME else bytes((kind,)) + body for kind, body in operations)


def _operations(data: bytes) -> list[tuple[int, bytes]]:
    found, at = [], 0
    while at < len(data):
        kind = min(data[at], _FRAME)
        size = {_BEAT: 0, _EXPIRE: 1, _SAY: 1}.get(kind)
        at += 1
        if size is None:
            size = int.from_bytes(data[at : at + 2], "big")
            at += 2
        found.append((kind, data[at : at + size]))
        at += size

    return found


def TARGET(data: bytes) -> None:
    log = MessageLog(limits=_LIMITS)
    conversation = ControlProtocol(b"p" * 32, log, settings=_SETTINGS)
    own = 0
    for kind, body in _operations(data):
        match kind:
            case 0:
                conversation.beat()
            case 1:
                log.expire(int.from_bytes(body, "big"))
            case 2:
                own += log.add_own(b"own %d" % len(log), tag=int.from_bytes(body, "big")) is not None
            case _:
                conversation.note_received()
                answers = conversation.receive(body)
                assert len(answers) <= len(log) + 2
                for answer in answers:
                    control_frames.decode(answer, max_bytes=_SETTINGS.frame_bytes + 16 * 1024)
        assert len(log) <= own + _LIMITS.own_messages + _LIMITS.relayed_messages
        log.read()
    assert len(log.digest()) == 32
