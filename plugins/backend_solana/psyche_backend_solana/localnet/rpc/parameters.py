"""Parses a request's positional parameters, with a sentence for each mistake."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from solders.pubkey import Pubkey

from psyche_backend_solana.localnet import base58
from psyche_backend_solana.localnet.rpc.encoding import ENCODINGS, Encoding
from psyche_backend_solana.localnet.rpc_error import invalid
from psyche_backend_solana.localnet.settings import U64_MAX

_COMMITMENTS = frozenset({"processed", "confirmed", "finalized", "recent", "single", "singleGossip", "root", "max"})
_TEXT = re.compile(r"[1-9A-HJ-NP-Za-km-z]{1,90}")


def shown(value: object) -> str:
    """A client's value for a message, shortened."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def read_base58(value: object, size: int, name: str) -> str:
    """Return a base58 text of `size` bytes after checking that its spelling is the canonical one. Raises RpcError."""
    if not isinstance(value, str) or _TEXT.fullmatch(value) is None:
        message = f"{name} is base58 of {size} bytes, got {shown(value)}"
        raise invalid(message)

    data = base58.decode(value)
    if len(data) != size:
        message = f"{name} is base58 of {size} bytes, got {len(data)} bytes"
        raise invalid(message)

    return value


def read_pubkey(value: object, name: str) -> Pubkey:
    """An address. Raises RpcError."""
    return Pubkey.from_bytes(base58.decode(read_base58(value, 32, name)))


def read_integer(value: object, name: str, *, low: int = 0, high: int = U64_MAX) -> int:
    """A whole number. Raises RpcError."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        message = f"{name} is a whole number from {low} to {high}, got {shown(value)}"
        raise invalid(message)

    return value


class Params:
    """The positional parameters of one request."""

    def __init__(self, values: Sequence[Any], *, most: int) -> None:
        """most: maximum number of parameters of the method. Raises RpcError if there are more."""
        if len(values) > most:
            message = f"expected at most {most} parameters, got {len(values)}"
            raise invalid(message)

        self._values = values

    def get(self, index: int) -> Any:
        """A parameter; None if it is left out."""
        return self._values[index] if index < len(self._values) else None

    def required(self, index: int, name: str) -> Any:
        """A parameter. Raises RpcError if it is left out."""
        if self.get(index) is None:
            message = f"parameter {index + 1}, {name}, is missing"
            raise invalid(message)

        return self._values[index]

    def pubkey(self, index: int, name: str = "address") -> Pubkey:
        """An address."""
        return read_pubkey(self.required(index, name), name)

    def signature(self, index: int) -> str:
        """A signature in base58."""
        return read_base58(self.required(index, "signature"), 64, "signature")

    def integer(self, index: int, name: str, *, low: int = 0, high: int = U64_MAX) -> int:
        """A whole number."""
        return read_integer(self.required(index, name), name, low=low, high=high)

    def text(self, index: int, name: str) -> str:
        """A text."""
        value = self.required(index, name)
        if not isinstance(value, str):
            message = f"{name} is a text, got {shown(value)}"
            raise invalid(message)

        return value

    def items(self, index: int, name: str, *, most: int) -> list[Any]:
        """A list."""
        value = self.required(index, name)
        if not isinstance(value, list):
            message = f"{name} is a list, got {shown(value)}"
            raise invalid(message)

        if len(value) > most:
            message = f"too many inputs provided; max {most}"
            raise invalid(message)

        return value

    def options(self, index: int) -> Options:
        """The configuration object; empty if it is left out."""
        return Options(self.get(index))


class Options:
    """A configuration object. Unknown keys are ignored, as by real validators."""

    def __init__(self, value: object) -> None:
        """Raises RpcError if it is not an object, or its commitment is unknown."""
        if value is not None and not isinstance(value, dict):
            message = f"the configuration is an object, got {shown(value)}"
            raise invalid(message)

        self._values: Mapping[str, Any] = value or {}
        for name in ("commitment", "preflightCommitment"):
            commitment = self._values.get(name)
            if commitment is not None and (not isinstance(commitment, str) or commitment not in _COMMITMENTS):
                message = f"{name} is one of processed, confirmed, finalized, got {shown(commitment)}"
                raise invalid(message)

    def get(self, name: str) -> Any:
        """An unchecked value; None if it is left out."""
        return self._values.get(name)

    def flag(self, name: str, *, default: bool = False) -> bool:
        """True or false."""
        value = self._values.get(name)
        if value is None:
            return default

        if not isinstance(value, bool):
            message = f"{name} is true or false, got {shown(value)}"
            raise invalid(message)

        return value

    def integer(self, name: str, *, low: int = 0, high: int = U64_MAX) -> int | None:
        """A whole number; None if it is left out."""
        value = self._values.get(name)
        return None if value is None else read_integer(value, name, low=low, high=high)

    def choice(self, name: str, known: Sequence[str], *, default: str) -> str:
        """Return one of the known texts."""
        value = self._values.get(name)
        if value is None:
            return default

        if not isinstance(value, str) or value not in known:
            message = f"{name} is one of {', '.join(known)}, got {shown(value)}"
            raise invalid(message)

        return value

    def encoding(self, *, default: str = "binary") -> Encoding:
        """Encoding and slice of account data."""
        name = self.choice("encoding", ENCODINGS, default=default)
        part = self._values.get("dataSlice")
        if part is None:
            return Encoding(name=name)

        if not isinstance(part, dict):
            message = f"dataSlice is an object of offset and length, got {shown(part)}"
            raise invalid(message)

        offset, length = (read_integer(part.get(key), f"dataSlice.{key}") for key in ("offset", "length"))
        return Encoding(name=name, offset=offset, length=length)
