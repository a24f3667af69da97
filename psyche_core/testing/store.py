"""Conformance of stores for models: what `psyche_core.interfaces.store` promises and asks for. A plugin's whole test is:

    class TestMyStore(StoreConformance):
        registration = MY_REGISTRATION  # as its hook returns it
        hooks = "my_plugin.hooks"
        heavy = ("my_client",)

        def url(self, folder: Path) -> str:
            ...  # an empty place of its own for each folder, on a real server on this machine

        def settings(self, folder: Path) -> MySettings:
            return MySettings(my_password="…")

A store of each test is made anew for each call where the contract speaks of others that use the same place.
"""

# ruff: noqa: D102  # the tests' names describe them

from __future__ import annotations

import contextlib
import hashlib
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

from psyche_core.errors import StoreError
from psyche_core.hookspecs import ModelStoreContext, ModelStoreRegistration
from psyche_core.interfaces.store import PART_BYTES, ModelStore, Proceed, go_on
from psyche_core.testing.conformance import Conformance
from psyche_core.testing.contracts import CONTRACTS, Contract
from psyche_core.testing.needs_pytest import pytest
from psyche_core.testing.sentences import raises, shown

TIMEOUT = 120.0
MOST = 2**40
"""A limit that nothing here reaches."""

ODD_NAMES = ("-a", ".a", "..a", "a.", "_", "0", "a" * 200, "model-00001-of-00002.safetensors")


class Ended(BaseException):  # no Exception, as what ends a task is none
    """What `proceed` raises in these tests."""


def content(number: int, size: int) -> bytes:
    """Bytes that differ by number, and in each place."""
    seed = hashlib.sha256(str(number).encode()).digest()
    return (seed * (size // len(seed) + 1))[:size]


LARGE = PART_BYTES + PART_BYTES // 8 + 17
"""Bytes of a file of two parts."""


class StoreConformance(Conformance):
    """Inherit, set `registration`, `hooks` and `heavy`, and override `url` and, if there are any, `settings`."""

    contract: ClassVar[Contract] = CONTRACTS["store"]
    registration: ClassVar[ModelStoreRegistration]
    hooks: ClassVar[str]
    heavy: ClassVar[tuple[str, ...]] = ()

    def url(self, folder: Path) -> str:
        """The URL of an empty place that no other folder has; what is stored there may stay."""
        raise NotImplementedError

    def settings(self, folder: Path) -> Any:  # noqa: ARG002  # for those who override it
        """Settings with which the store can read and write at `url`."""
        return None

    @contextlib.contextmanager
    def opened(self, folder: Path) -> Iterator[ModelStore]:
        """A new store of the folder's place."""
        context = ModelStoreContext(url=self.url(folder), settings=self.settings(folder))
        store = self.registration.create(context)
        assert isinstance(store, ModelStore), (
            f"create must give a psyche_core.interfaces.ModelStore, got a {type(store).__name__}"
        )
        with contextlib.closing(store):
            yield store

    def put(self, folder: Path, name: str, data: bytes, *, proceed: Proceed = go_on) -> None:
        """Store bytes with a new store."""
        source = folder / f"{threading.get_ident()}.source"
        source.write_bytes(data)
        with self.opened(folder) as store:
            store.put_file(name, source, proceed=proceed)

    def read(self, folder: Path, name: str) -> bytes | None:
        """What a new store reads; None if there is none."""
        target = folder / f"{threading.get_ident()}.target"
        target.unlink(missing_ok=True)
        with self.opened(folder) as store:
            if name not in store.names(name):
                return None
            store.get_file(name, target, max_bytes=MOST, proceed=go_on)
        return target.read_bytes()

    def listed(self, folder: Path, prefix: str = "") -> list[str]:
        with self.opened(folder) as store:
            return store.names(prefix)

    # ---- what is there, and what is not

    def test_a_new_place_is_empty(self, tmp_path: Path) -> None:
        target = tmp_path / "target"
        with self.opened(tmp_path) as store:
            names = store.names("")
            assert names == [], f"names of a place where nothing was stored must be [], got {shown(names)}"
            below = store.names("run/a-step1/")
            assert below == [], f"names of a prefix that nothing has must be [], got {shown(below)}"
            found = store.get("run/psyche.json", max_bytes=100)
            assert found is None, f"get of a file that is not there must be None, got {shown(found)}"
            with raises(StoreError, "get_file of a file that is not there must raise StoreError"):
                store.get_file("run/model.safetensors", target, max_bytes=MOST, proceed=go_on)
            assert not target.exists() or target.stat().st_size == 0, (
                f"get_file of a file that is not there must write nothing, got {target.stat().st_size} bytes"
            )
            store.delete(["run/psyche.json", "other"])  # no error

    @pytest.mark.parametrize("size", [0, 1, PART_BYTES, LARGE])
    def test_what_was_stored_is_read(self, tmp_path: Path, size: int) -> None:
        data = content(1, size)
        self.put(tmp_path, "run/a-step1/model.safetensors", data)
        found = self.read(tmp_path, "run/a-step1/model.safetensors")
        same = found == data  # pytest would spend minutes to show how millions of bytes differ
        assert same, f"get_file must give the {size} bytes that were stored, got {shown(found)}"
        with self.opened(tmp_path) as store:
            small = store.get("run/a-step1/model.safetensors", max_bytes=size)
        same = small == data
        assert same, f"get with max_bytes={size} must give the {size} bytes that were stored, got {shown(small)}"

    def test_names_are_those_that_begin_with_the_prefix(self, tmp_path: Path) -> None:
        every = ["a-step1/config.json", "a-step1/psyche.json", "a-step10/psyche.json", "b/c/d/e.json", "top.json"]
        for name in reversed(every):
            self.put(tmp_path, name, name.encode())
        for prefix in ("", "a-step1/", "a-step1", "a-", "b/", "b/c/d/e.json", "t", "x", "a-step1/x"):
            wanted, came = [name for name in every if name.startswith(prefix)], self.listed(tmp_path, prefix)
            assert came == wanted, f"names({prefix!r}) must be {shown(wanted)}, ascending, got {shown(came)}"

    @pytest.mark.parametrize("odd", ODD_NAMES)
    def test_a_name_may_be_unusual(self, tmp_path: Path, odd: str) -> None:
        name = f"{odd}/{odd}"
        self.put(tmp_path, name, b"odd")
        names, found = self.listed(tmp_path), self.read(tmp_path, name)
        assert names == [name], f"names must give {name!r} as it was stored, got {shown(names)}"
        assert found == b"odd", f"the file {name!r} must be read as it was stored, got {shown(found)}"

    def test_two_places_do_not_mix(self, tmp_path: Path) -> None:
        first, second = tmp_path / "first", tmp_path / "second"
        for number, folder in enumerate((first, second)):
            folder.mkdir()
            self.put(folder, "name", content(number, 10))
        found = [self.read(folder, "name") for folder in (first, second)]
        assert found == [content(0, 10), content(1, 10)], f"two URLs must be two places, read back was {shown(found)}"

    def test_only_what_is_named_is_deleted(self, tmp_path: Path) -> None:
        every = ["a-step1/config.json", "a-step1/psyche.json", "a-step10/psyche.json", "a-step2"]
        for name in every:
            self.put(tmp_path, name, b"x")
        with self.opened(tmp_path) as store:
            store.delete(["a-step1/config.json", "a-step1/absent", "a-step1/psyche.json"])
        left = self.listed(tmp_path)
        assert left == every[2:], f"delete must leave what it was not given, {shown(every[2:])}, got {shown(left)}"
        self.put(tmp_path, "a-step1/psyche.json", b"again")
        found = self.read(tmp_path, "a-step1/psyche.json")
        assert found == b"again", f"a name that was deleted can be stored again, read back was {shown(found)}"

    def test_a_file_of_ours_that_cannot_be_read_is_a_store_error(self, tmp_path: Path) -> None:
        self.put(tmp_path, "name", b"old")
        with self.opened(tmp_path) as store, raises(StoreError, "put_file must raise StoreError for a path that is not there"):
            store.put_file("name", tmp_path / "absent", proceed=go_on)
        found = self.read(tmp_path, "name")
        assert found == b"old", f"a put_file that fails must leave what was there, read back was {shown(found)}"

    # ---- whole or not at all

    def test_a_file_is_replaced(self, tmp_path: Path) -> None:
        for number, size in enumerate((LARGE, 10, 0, 1000)):
            data = content(number, size)
            self.put(tmp_path, "name", data)
            names, found = self.listed(tmp_path), self.read(tmp_path, "name")
            assert names == ["name"], f"after replacing a file names must be ['name'], got {shown(names)}"
            same = found == data
            assert same, f"after storing {size} bytes in its place the file must have these, got {shown(found)}"

    @pytest.mark.parametrize("before", [None, b"old"])
    def test_nobody_sees_a_file_before_it_is_whole(self, tmp_path: Path, before: bytes | None) -> None:
        if before is not None:
            self.put(tmp_path, "run/name", before)
        seen: list[tuple[list[str], bytes | None]] = []

        def look() -> None:
            """From another thread, as others would: what moves the file may be busy with this one."""
            thread = threading.Thread(
                target=lambda: seen.append((self.listed(tmp_path), self.read(tmp_path, "run/name"))), daemon=True
            )
            thread.start()
            thread.join(TIMEOUT)
            assert not thread.is_alive(), f"while a file is being written others must be able to read, not after {TIMEOUT:g} s"

        self.put(tmp_path, "run/name", content(1, LARGE), proceed=look)
        assert len(seen) >= 2, (
            f"put_file must call proceed before each part of at most {PART_BYTES} bytes, got {len(seen)} calls for {LARGE} bytes"
        )
        wanted = ([] if before is None else ["run/name"], before)
        too_late = seen[-1][1] == content(1, LARGE) and all(came == wanted for came in seen[:-1])
        assert not too_late, (
            "put_file must call proceed before each part, and no more once the file has its name; "
            f"call {len(seen)} came when the new file was there already"
        )
        for number, came in enumerate(seen, start=1):
            same = came == wanted
            assert same, (
                f"while a file is being written others must see what was there before, {shown(wanted)}; before part {number} "
                f"they see {shown(came)}"
            )
        found = self.read(tmp_path, "run/name")
        same = found == content(1, LARGE)
        assert same, f"a file must be there when put_file returns, read back was {shown(found)}"

    @pytest.mark.parametrize("before", [None, b"old"])
    def test_writing_that_is_ended_leaves_what_was_there(self, tmp_path: Path, before: bytes | None) -> None:
        if before is not None:
            self.put(tmp_path, "run/name", before)
        error = self._ended(lambda proceed: self.put(tmp_path, "run/name", content(1, LARGE), proceed=proceed), "put_file")
        names, found = self.listed(tmp_path), self.read(tmp_path, "run/name")
        wanted = [] if before is None else ["run/name"]
        assert names == wanted, f"after put_file was ended by {error!r} names must be {shown(wanted)}, got {shown(names)}"
        same = found == before
        assert same, f"after put_file was ended the file must be as before, {shown(before)}, got {shown(found)}"
        self.put(tmp_path, "run/name", b"again")
        assert self.read(tmp_path, "run/name") == b"again", "a file whose writing was ended must be written by the next put_file"

    def test_of_two_writers_one_wins(self, tmp_path: Path) -> None:
        """Both are in the middle of the same name at the same time."""
        both, failures = threading.Barrier(2, timeout=TIMEOUT), []

        def write(number: int) -> None:
            calls = 0

            def meet() -> None:
                nonlocal calls
                calls += 1
                if calls == 2:
                    both.wait()

            folder = tmp_path / str(number)
            folder.mkdir()
            source = folder / "source"
            source.write_bytes(content(number, LARGE + number))
            try:
                with self.opened(tmp_path) as store:
                    store.put_file("run/name", source, proceed=meet)
            except BaseException as error:
                failures.append(error)
                both.abort()

        threads = [threading.Thread(target=write, args=(number,), daemon=True) for number in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT)
        if failures:
            raise failures[0]
        assert not any(thread.is_alive() for thread in threads), f"put_file must end; it still runs after {TIMEOUT:g} s"
        names, found = self.listed(tmp_path), self.read(tmp_path, "run/name")
        assert names == ["run/name"], f"after two wrote one name names must be ['run/name'], got {shown(names)}"
        whole = found in (content(1, LARGE + 1), content(2, LARGE + 2))
        assert whole, f"of two that write a name at once one must win whole, read back was {shown(found)}"

    # ---- reading in parts

    def test_reading_continues_at_the_end_of_what_is_there(self, tmp_path: Path) -> None:
        data, target = content(1, 5000), tmp_path / "target"
        self.put(tmp_path, "name", data)
        for there in (0, 1000, 5000):
            target.write_bytes(b"x" * there)
            with self.opened(tmp_path) as store:
                store.get_file("name", target, max_bytes=5000, proceed=go_on)
            came = target.read_bytes()
            assert came == b"x" * there + data[there:], (
                f"get_file must leave the {there} bytes that are there and add the other {5000 - there}, got {shown(came)}"
            )
        target.write_bytes(bytes(5001))
        with self.opened(tmp_path) as store, raises(StoreError, "get_file must raise StoreError where more is there already"):
            store.get_file("name", target, max_bytes=6000, proceed=go_on)
        assert not target.exists(), "get_file must delete a file that is longer than the stored one, it is still there"

    def test_reading_that_is_ended_continues(self, tmp_path: Path) -> None:
        data, target = content(1, LARGE), tmp_path / "target"
        self.put(tmp_path, "name", data)

        def read(proceed: Proceed) -> None:
            with self.opened(tmp_path) as store:
                store.get_file("name", target, max_bytes=MOST, proceed=proceed)

        self._ended(read, "get_file")
        written = target.read_bytes() if target.exists() else b""
        assert 0 < len(written) < len(data), (
            f"what get_file wrote before it was ended must stay, a part of {len(data)} bytes, got {len(written)} bytes"
        )
        beginning = data.startswith(written)
        assert beginning, "what get_file wrote before it was ended must be the file's beginning, and it is not"
        read(go_on)
        came = target.read_bytes()
        same = came == data
        assert same, f"get_file must continue what was ended, got {shown(came)}"

    # ---- limits

    def test_nothing_longer_than_the_limit_is_read(self, tmp_path: Path) -> None:
        target = tmp_path / "target"
        self.put(tmp_path, "name", content(1, 5000))
        self.put(tmp_path, "large", content(2, LARGE))
        with self.opened(tmp_path) as store:
            for name, limit in (("name", 4999), ("name", 0), ("large", 5000)):
                with raises(StoreError, f"get must raise StoreError for a file that is longer than max_bytes={limit}"):
                    store.get(name, max_bytes=limit)
                with raises(StoreError, f"get_file must raise StoreError for a file that is longer than max_bytes={limit}"):
                    store.get_file(name, target, max_bytes=limit, proceed=go_on)
                written = target.stat().st_size if target.exists() else 0
                assert written <= limit, f"get_file must never write more than max_bytes={limit}, got {written} bytes"
                target.unlink(missing_ok=True)
            found = store.get("name", max_bytes=5000)
            assert found == content(1, 5000), f"a file as long as max_bytes must be read, got {shown(found)}"

    # ---- the object, and its registration

    def test_it_can_be_closed_twice(self, tmp_path: Path) -> None:
        with self.opened(tmp_path) as store:
            store.names("")
            store.close()

    def test_other_threads_may_call_it(self, tmp_path: Path) -> None:
        """One at a time."""
        (tmp_path / "source").write_bytes(b"data")
        found: list[object] = []
        with self.opened(tmp_path) as store:
            for call in (
                lambda: store.put_file("name", tmp_path / "source", proceed=go_on),
                lambda: store.names(""),
                lambda: store.get("name", max_bytes=10),
            ):
                thread = threading.Thread(target=lambda call=call: found.append(call()), daemon=True)
                thread.start()
                thread.join(TIMEOUT)
        assert found == [None, ["name"], b"data"], f"each call may come from another thread, got {shown(found)}"

    def test_its_options_begin_with_its_scheme_and_are_explained(self) -> None:
        scheme, settings = self.registration.name, self.registration.settings
        beginning = re.sub("[^a-z0-9]", "", scheme.removesuffix("s"))
        for name, known in {} if settings is None else settings.model_fields.items():
            assert name.replace("_", "").startswith(beginning), (
                f"the names of a store's settings must begin with {beginning}, for the scheme {scheme}, got {name}: they are "
                "options of commands"
            )
            assert known.description, f"the setting {name} must say what it means; give Field(description=…)"

    def test_working_settings_pass_its_check(self, tmp_path: Path) -> None:
        if self.registration.check is not None:
            self.registration.check(ModelStoreContext(url=self.url(tmp_path), settings=self.settings(tmp_path)))

    def test_registering_imports_nothing_heavy(self) -> None:
        script = (
            f"import sys, {self.hooks} as hooks\nhooks.psyche_register_model_stores()\n"
            f"print([name for name in {(*self.heavy, 'torch', 'numpy')!r} if name in sys.modules])"
        )
        done = subprocess.run(  # noqa: S603  # our own interpreter
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, f"another process cannot register from {self.hooks}: {done.stderr.strip()[-500:]}"
        assert done.stdout.strip() == "[]", (
            f"registering must import nothing heavy, got {done.stdout.strip()}; import it in the factory"
        )

    def _ended(self, call: Callable[[Proceed], None], what: str) -> Ended:
        """Call something whose `proceed` ends it before the second part; what that raised must come out."""
        error, calls = Ended("enough"), 0

        def proceed() -> None:
            nonlocal calls
            calls += 1
            if calls == 2:
                raise error

        came: BaseException | None = None
        try:
            call(proceed)
        except (Ended, Exception) as raised:  # a store may raise anything
            came = raised
        assert calls >= 2 or came is not None, (
            f"{what} must call proceed before each part of at most {PART_BYTES} bytes, got {calls} calls for {LARGE} bytes"
        )
        assert came is error, (
            f"{what} must end when proceed raises, and let that through, got "
            f"{'no exception' if came is None else type(came).__name__}: {shown(str(came or ''))}"
        )
        return error
