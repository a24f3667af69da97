"""The built on-chain programs in this wheel. Each is checked against its SHA-256 before it is used.

`programs/toolchain/build.py` of the repository makes these files and SHA256SUMS; continuous integration builds them again and
compares.
"""

from __future__ import annotations

import hashlib
from importlib.resources import files

from psyche_backend_solana.programs.addresses import PROGRAMS
from psyche_core.errors import UserError

__all__ = ["PROGRAMS", "load", "sums"]

_FOLDER = files("psyche_backend_solana.programs")
_SUMS = "SHA256SUMS"


def load(name: str) -> bytes:
    """The ELF file of one program, ready to deploy.

    name: one of PROGRAMS.
    Raises UserError if there is no such program, or the file is missing or differs from the shipped one.
    """
    if name not in PROGRAMS:
        message = f"there is no program {name!r}; there are {', '.join(PROGRAMS)}"
        raise UserError(message)
    expected = sums().get(f"{name}.so")
    if expected is None:
        message = f"{_SUMS} of psyche_backend_solana names no {name}.so; reinstall psyche-backend-solana"
        raise UserError(message)
    content = _read(f"{name}.so")
    found = hashlib.sha256(content).hexdigest()
    if found != expected:
        message = f"{name}.so is damaged: its SHA-256 is {found}, expected {expected}; reinstall psyche-backend-solana"
        raise UserError(message)
    return content


def sums() -> dict[str, str]:
    """SHA-256 in hexadecimal by file name, from SHA256SUMS. Raises UserError if that file is missing or malformed."""
    lines = _read(_SUMS).decode("utf-8", errors="replace").splitlines()
    pairs = [line.split("  ", 1) for line in lines if line]
    if any(len(pair) != 2 or len(pair[0]) != 64 for pair in pairs):
        message = f"{_SUMS} of psyche_backend_solana is damaged; reinstall psyche-backend-solana"
        raise UserError(message)
    return {name: digest for digest, name in pairs}


def _read(name: str) -> bytes:
    try:
        return (_FOLDER / name).read_bytes()
    except FileNotFoundError as error:
        message = f"{name} of psyche_backend_solana is missing; reinstall psyche-backend-solana"
        raise UserError(message) from error
