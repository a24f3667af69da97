"""What a failed test of the kit says: what the contract wants, then what came, short whatever that is.

Importing this module imports no torch: tensors are opaque, but for `assert_close`.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Generic, TypeVar

import anyio

E = TypeVar("E", bound=Exception)

LONGEST = 160
"""Characters of a value in a message. pytest shows more of it below the sentence."""


class _Short(reprlib.Repr):
    """Values with the middle left out where they are long, and the length of bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.maxother = self.maxstring = LONGEST
        self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = self.maxdict = 8

    def repr_float(self, value: float, level: int) -> str:  # noqa: ARG002  # reprlib's signature
        """Seven digits, more than any tolerance here."""
        return f"{value:.7g}"

    def repr_bytes(self, value: bytes, level: int) -> str:  # noqa: ARG002  # reprlib's signature
        """At most 24 bytes, and how many there are."""
        return repr(value) if len(value) <= 24 else f"{value[:24]!r}… ({len(value)} bytes)"


def shown(value: object) -> str:
    """A value on one line, of at most LONGEST characters."""
    text = " ".join(_Short().repr(value).split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def difference(wanted: Any, came: Any) -> str:
    """In a few words how one tensor differs from another: in shape, in type, or in how many values and by how much."""
    if tuple(wanted.shape) != tuple(came.shape):
        return f"shape {tuple(came.shape)} instead of {tuple(wanted.shape)}"
    if wanted.dtype != came.dtype:
        return f"{came.dtype} instead of {wanted.dtype}"
    apart = wanted != came
    largest = float((came.double() - wanted.double()).abs().max()) if came.numel() else 0.0
    return f"{int(apart.sum())} of {came.numel()} values differ, by up to {largest:.3g}"


def differences(wanted: Mapping[str, Any], came: Mapping[str, Any]) -> str:
    """The same for tensors by name: the first that differs, and how many do."""
    if list(wanted) != list(came):
        return f"names {shown(list(came))} instead of {shown(list(wanted))}"
    found = [name for name, tensor in wanted.items() if not _same(tensor, came[name])]
    if not found:
        return "no difference"
    more = f" (and {len(found) - 1} more tensors)" if len(found) > 1 else ""
    return f"{found[0]}: {difference(wanted[found[0]], came[found[0]])}{more}"


class raises(Generic[E]):  # noqa: N801  # reads as pytest.raises, which says no more than "DID NOT RAISE"
    """A context that must end with an exception, whose failure is a sentence.

        with raises(BlobNotFound, "fetch must raise BlobNotFound for a blob that nobody has"):
            await transport.fetch(…)

    Args:
        error: the class of the exception.
        wanted: the sentence's beginning, what the contract wants.
        match: a regular expression that is searched in the exception's text.

    Attributes:
        value: the exception, afterwards.
    """

    value: E

    def __init__(self, error: type[E], wanted: str, *, match: str = "") -> None:
        self._error, self._wanted, self._match = error, wanted, match

    def __enter__(self) -> raises[E]:
        return self

    def __exit__(self, kind: type[BaseException] | None, came: BaseException | None, trace: TracebackType | None) -> bool:
        __tracebackhide__ = True  # so that pytest shows the test
        if came is None:
            message = f"{self._wanted}, got no exception"
            raise AssertionError(message)
        if not isinstance(came, self._error):
            if not isinstance(came, Exception):
                return False  # a cancelled task, the end of the program, a skipped test
            message = f"{self._wanted}, got {type(came).__name__}: {shown(str(came))}"
            raise AssertionError(message) from came
        if not re.search(self._match, str(came)):
            message = f"{self._wanted}, with {self._match} in its text, got the text {shown(str(came))}"
            raise AssertionError(message) from came
        self.value = came
        return True


def assert_close(came: Any, wanted: Any, sentence: str, *, rtol: float, atol: float) -> None:
    """As torch.testing.assert_close, with a sentence before what torch says. came, wanted: tensors."""
    import torch

    __tracebackhide__ = True
    torch.testing.assert_close(came, wanted, rtol=rtol, atol=atol, msg=lambda told: f"{sentence}\n{told}")


@contextmanager
def within(seconds: float, wanted: str) -> Iterator[None]:
    """As anyio.fail_after, with a sentence in its TimeoutError. wanted: the sentence's beginning, what the contract wants."""
    with anyio.move_on_after(seconds) as scope:
        yield
    if scope.cancelled_caught:
        message = f"{wanted}, got nothing within {seconds:g} s"
        raise TimeoutError(message)


def _same(wanted: Any, came: Any) -> bool:
    return wanted.dtype == came.dtype and wanted.shape == came.shape and bool((wanted == came).all())
