"""The conformance class of stores passes a store in memory that keeps the contract, and fails one with a fault."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from psyche_core.errors import StoreError
from psyche_core.hookspecs import ModelStoreContext, ModelStoreRegistration
from psyche_core.interfaces.store import PART_BYTES, ModelStore, Proceed
from psyche_core.testing import store as kit
from psyche_core.testing.store import StoreConformance

PLACES: dict[str, dict[str, bytes]] = {}


class Memory(ModelStore):
    """fault: what it does wrong; "" keeps the contract."""

    def __init__(self, context: ModelStoreContext, fault: str = "") -> None:
        self.fault = fault
        self.files = PLACES.setdefault("" if fault == "one place" else context.url, {})

    def names(self, prefix: str) -> list[str]:
        if self.fault == "folders only":
            prefix = prefix.rpartition("/")[0]
        found = [name for name in self.files if name.startswith(prefix)]
        return found if self.fault == "unsorted" else sorted(found)

    def put_file(self, name: str, path: Path, *, proceed: Proceed) -> None:
        try:
            data = path.read_bytes()
        except OSError as error:
            if self.fault == "OSError":
                raise
            raise StoreError(str(error)) from error
        if self.fault == "never asks":
            proceed = lambda: None  # noqa: E731
        written = b""
        for at in range(0, len(data), PART_BYTES) or (0,):
            if self.fault == "swallows":
                with contextlib.suppress(BaseException):
                    proceed()
            else:
                proceed()
            written += data[at : at + PART_BYTES]
            if self.fault == "seen early":
                self.files[name] = written
        if self.fault == "keeps the first" and name in self.files:
            return
        if self.fault == "appends" and len(written) < 1000:  # longer ones would grow without an end
            written = self.files.get(name, b"") + written
        self.files[name] = written
        if self.fault == "asks afterwards":
            proceed()

    def get_file(self, name: str, path: Path, *, max_bytes: int, proceed: Proceed) -> None:
        if name not in self.files:
            if self.fault == "empty for missing":
                path.touch()
                return
            raise StoreError(name)
        data = self.files[name]
        if len(data) > max_bytes and self.fault != "no limit":
            raise StoreError(name)
        if self.fault == "begins anew":
            path.unlink(missing_ok=True)
        there = path.stat().st_size if path.exists() else 0
        if there > len(data):
            if self.fault != "longer stays":
                path.unlink()
            raise StoreError(name)
        part = len(data) if self.fault == "one part" else PART_BYTES
        with path.open("ab") as file:
            for at in range(there, len(data), part):
                proceed()
                file.write(data[at : at + part])
                file.flush()
            if self.fault == "one part":
                proceed()

    def get(self, name: str, *, max_bytes: int) -> bytes | None:
        data = self.files.get(name)
        if data is not None and len(data) > max_bytes:
            if self.fault == "cuts":
                return data[:max_bytes]
            raise StoreError(name)
        return data if data is not None or self.fault != "empty for missing" else b""

    def delete(self, names: Sequence[str]) -> None:
        for name in names:
            if self.fault == "needs it":
                del self.files[name]
            self.files.pop(name, None)
            for other in [each for each in self.files if self.fault == "deletes more" and each.startswith(name[:7])]:
                del self.files[other]

    def close(self) -> None:
        """Nothing."""


class _Tests(StoreConformance):
    registration = ModelStoreRegistration(name="memory", summary="a dict", create=Memory)
    hooks = "tests.unit.storage.own_hooks"

    def url(self, folder: Path) -> str:
        return f"memory://host{folder}"


class TestMemory(_Tests):
    """Keeps the contract."""


FAULTS = {
    "one place": "two URLs must be two places",
    "folders only": r"names\('a-step1/?'\) must be",
    "unsorted": "ascending",
    "OSError": "must raise StoreError for a path that is not there",
    "never asks": "put_file must call proceed before each part",
    "swallows": "put_file must end when proceed raises",
    "seen early": "others must see what was there before",
    "asks afterwards": "and no more once the file has its name; call 3 came when the new file was there already",
    "keeps the first": "after storing 10 bytes in its place",
    "appends": "after storing 10 bytes in its place",
    "empty for missing": "must be None",
    "no limit": "get_file must raise StoreError for a file that is longer than max_bytes",
    "begins anew": "get_file must leave the 1000 bytes that are there",
    "longer stays": "it is still there",
    "one part": "a part of .* bytes",
    "cuts": "get must raise StoreError for a file that is longer than max_bytes",
    "needs it": "KeyError",
    "deletes more": "delete must leave what it was not given",
}


def run(conformance: _Tests, folder: Path) -> list[str]:
    """What fails, of all tests that need nothing but a folder."""
    told = []
    for name, test in inspect.getmembers(conformance, inspect.ismethod):
        if not name.startswith("test_") or name == "test_registering_imports_nothing_heavy":
            continue
        (names, values) = next(((mark.args[0], mark.args[1]) for mark in getattr(test, "pytestmark", ())), ("", [None]))
        for number, value in enumerate(values):
            given: dict[str, Any] = {names: value} if names else {}
            place = folder / f"{name}-{number}"
            place.mkdir(parents=True)
            if "tmp_path" in inspect.signature(test).parameters:
                given["tmp_path"] = place
            try:
                test(**given)
            except Exception as error:  # a fault may show as anything
                told.append(f"{type(error).__name__}: {error}")
    return told


@pytest.mark.parametrize("fault", ["", *FAULTS])
def test_a_fault_is_a_sentence(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kit, "TIMEOUT", 3.0)
    conformance = TestMemory()
    registration = ModelStoreRegistration(name="memory", summary="a dict", create=lambda context: Memory(context, fault))
    monkeypatch.setattr(TestMemory, "registration", registration)
    told = run(conformance, tmp_path)
    if not fault:
        assert told == []
        return
    assert any(re.search(FAULTS[fault], each) for each in told), told
