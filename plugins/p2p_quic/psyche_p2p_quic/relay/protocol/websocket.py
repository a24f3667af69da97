"""WebSocket frames (RFC 6455) as a relay needs them: bytes in, messages out. No I/O.

This is not a library because every forwarded byte passes through it: see "How fast it is" in docs/how-to/run-a-relay.md for the
measurements. It has no buffer while no message is in progress, so that an idle client costs almost no memory. Extensions are
never negotiated. Text messages are skipped, without a check of their encoding.
"""

from __future__ import annotations

import base64
import enum
import hashlib

from psyche_core.errors import WireError

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0, 1, 2, 8, 9, 10
_FIN, _MASKED = 0x80, 0x80
_MAX_CONTROL = 125


class CloseCode(enum.IntEnum):
    """Why a connection is closed, by the numbers of RFC 6455."""

    GOING_AWAY = 1001
    PROTOCOL_ERROR = 1002
    POLICY = 1008
    TOO_BIG = 1009


class WebSocketError(WireError):
    """The client broke RFC 6455 or a limit. code: for closing the connection."""

    def __init__(self, message: str, code: CloseCode) -> None:
        super().__init__(message)
        self.code = code


class Closed(Exception):
    """The client closes the connection. payload: of its close frame; a server answers with the same."""

    def __init__(self, payload: bytes) -> None:
        super().__init__("the client closed the connection")
        self.payload = payload


def accept_token(key: bytes) -> bytes:
    """Return `Sec-WebSocket-Accept` for a client's `Sec-WebSocket-Key`."""
    return base64.b64encode(hashlib.sha1(key + _GUID, usedforsecurity=False).digest())


def binary_header(size: int) -> bytes:
    """Return the header of a binary message of `size` bytes from a server."""
    return _header(_FIN | _BINARY, size)


def client_message(payload: bytes) -> bytes:
    """Return a binary message from a client. Its mask is zero, because it need not hide anything here."""
    header = _header(_FIN | _BINARY, len(payload))
    return bytes((header[0], header[1] | _MASKED)) + header[2:] + bytes(4) + payload


def pong_frame(payload: bytes) -> bytes:
    """Return the answer to a ping frame."""
    return _header(_FIN | _PONG, len(payload)) + payload


def close_frame(code: CloseCode, reason: str = "") -> bytes:
    """Return the frame that closes a connection. reason: cut to 123 bytes of UTF-8."""
    text = reason.encode()[: _MAX_CONTROL - 2].decode(errors="ignore").encode()
    return close_answer(int(code).to_bytes(2, "big") + text)


def close_answer(payload: bytes) -> bytes:
    """Return the frame that answers a client's close frame."""
    return _header(_FIN | _CLOSE, len(payload)) + payload


def _header(first: int, size: int) -> bytes:
    if size < 126:
        return bytes((first, size))
    if size < 65536:
        return bytes((first, 126, size >> 8, size & 255))
    return bytes((first, 127)) + size.to_bytes(8, "big")


def unmasked(payload: bytes | memoryview, mask: bytes) -> bytes:
    """Return the payload XOR the repeated mask. As one large integer it takes 4 ns a byte; a loop over bytes takes 50."""
    size = len(payload)
    pattern = mask * (size // 4) + mask[: size % 4]
    return (int.from_bytes(payload, "little") ^ int.from_bytes(pattern, "little")).to_bytes(size, "little")


class FrameReader:
    """Splits what arrives from one client into binary messages.

    max_message: most bytes of a message. Bytes of an incomplete frame are kept, and never more than one frame and its header.
    pongs: answers to the client's WebSocket pings, to be sent by the caller, who clears the list; at most `MAX_PONGS`.
    """

    __slots__ = ("_fragments", "_max_message", "_rest", "_text", "_wanted", "pongs")

    MAX_PONGS = 8

    def __init__(self, *, max_message: int) -> None:
        self._max_message = max_message
        self._rest: bytearray | None = None
        self._wanted = 0
        self._fragments: list[bytes] | None = None
        self._text = False
        self.pongs: list[bytes] = []

    def feed(self, data: memoryview) -> list[bytes]:
        """Return the binary messages that `data` completes. Raises WebSocketError, and Closed; call it no more after either.

        Messages before the wrong frame are lost with it. `data` is not kept.
        """
        messages: list[bytes] = []
        if self._rest is not None:
            # A frame that arrives in many pieces is joined once it is complete; otherwise every piece would copy all before it.
            self._rest += data
            if len(self._rest) < self._wanted:
                return messages
            data, self._rest = memoryview(self._rest), None

        at, end = 0, len(data)
        while end - at >= 2:
            first, second = data[at], data[at + 1]
            size, start = second & 127, at + 6
            if size > 125:
                start += 2 if size == 126 else 8
                if end < start:
                    self._wanted = start - at
                    break
                size = int.from_bytes(data[at + 2 : start - 4], "big")
            if first != _FIN | _BINARY or not second & _MASKED or size > self._max_message:
                self._check_header(first, second, size)
            if end - start < size:
                self._wanted = start - at + size
                break
            payload = unmasked(data[start : start + size], bytes(data[start - 4 : start])) if size else b""
            at = start + size
            if first == _FIN | _BINARY and self._fragments is None:
                messages.append(payload)
            else:
                self._other_frame(first, payload, messages)
        else:
            self._wanted = 2

        if at < end:
            self._rest = bytearray(data[at:])
        return messages

    def _check_header(self, first: int, second: int, size: int) -> None:
        """Raise WebSocketError for a header that a client must not send."""
        opcode = first & 15
        if first & 0x70:
            problem = "a reserved bit is set"
        elif not second & _MASKED:
            problem = "a client's frame is not masked"
        elif opcode in {_CLOSE, _PING, _PONG}:
            problem = "" if first & _FIN and second & 127 <= _MAX_CONTROL else "a control frame is fragmented or too long"
        elif opcode not in {_CONTINUATION, _TEXT, _BINARY}:
            problem = f"unknown opcode {opcode}"
        elif size > self._max_message:
            message = f"a message of {size} bytes is over the limit of {self._max_message}"
            raise WebSocketError(message, CloseCode.TOO_BIG)
        else:
            problem = ""
        if problem:
            raise WebSocketError(problem, CloseCode.PROTOCOL_ERROR)

    def _other_frame(self, first: int, payload: bytes, messages: list[bytes]) -> None:
        """Handle control frames, text, and parts of messages."""
        opcode = first & 15
        if opcode == _CLOSE:
            raise Closed(payload)
        if opcode == _PING:
            if len(self.pongs) < self.MAX_PONGS:
                self.pongs.append(pong_frame(payload))
            return
        if opcode == _PONG:
            return

        if (opcode == _CONTINUATION) != (self._fragments is not None):
            message = "a part of a message came without its beginning, or another message within it"
            raise WebSocketError(message, CloseCode.PROTOCOL_ERROR)

        if self._fragments is None:
            self._text = opcode == _TEXT
            self._fragments = []
        # The overhead of a part counts too, so that a message of a million empty parts exceeds the limit.
        if sum(map(len, self._fragments)) + len(payload) > self._max_message or len(self._fragments) >= 64:
            message = f"a message in parts is over the limit of {self._max_message} bytes or 64 parts"
            raise WebSocketError(message, CloseCode.TOO_BIG)

        self._fragments.append(payload)
        if first & _FIN:
            if not self._text:
                messages.append(b"".join(self._fragments))
            self._fragments = None
