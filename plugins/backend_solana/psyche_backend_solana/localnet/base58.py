"""Base58 in the alphabet of Bitcoin and Solana, for texts longer than an address.

solders reads only 32 and 64 bytes. Decoding is quadratic in the length, so callers limit the length first.
"""

from __future__ import annotations

_ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_VALUES = {letter: value for value, letter in enumerate(_ALPHABET)}


def encode(data: bytes) -> str:
    """Bytes as base58; each leading zero byte is a leading `1`."""
    number = int.from_bytes(data, "big")
    letters = []
    while number:
        number, digit = divmod(number, 58)
        letters.append(_ALPHABET[digit])
    zeros = len(data) - len(data.lstrip(b"\0"))
    return "1" * zeros + "".join(reversed(letters))


def decode(text: str) -> bytes:
    """The bytes of a base58 text. Raises ValueError that names a character outside the alphabet."""
    number = 0
    for letter in text:
        value = _VALUES.get(letter)
        if value is None:
            message = f"{letter!r} is not a base58 character"
            raise ValueError(message)

        number = number * 58 + value
    zeros = len(text) - len(text.lstrip("1"))
    return bytes(zeros) + number.to_bytes((number.bit_length() + 7) // 8, "big")
