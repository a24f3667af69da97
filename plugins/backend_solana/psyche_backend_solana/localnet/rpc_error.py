"""Errors of JSON-RPC with the numbers and messages of a real validator."""

from __future__ import annotations

from typing import Any

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
BLOCK_CLEANED_UP = -32001
PREFLIGHT_FAILURE = -32002
SIGNATURE_FAILURE = -32003
BLOCK_NOT_AVAILABLE = -32004
SLOT_SKIPPED = -32007
UNSUPPORTED_VERSION = -32015
MIN_CONTEXT_SLOT = -32016


class RpcError(Exception):
    """A request is answered with this error object. data: as JSON; None leaves it out."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data

    def as_json(self) -> dict[str, Any]:
        """The error object."""
        plain: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.data is not None:
            plain["data"] = self.data
        return plain


def invalid(sentence: str) -> RpcError:
    """The error for an invalid parameter. sentence: says what was received and what was expected."""
    return RpcError(INVALID_PARAMS, f"Invalid params: {sentence}")
