"""Opens the files of a place where models are stored: psyche-core's own kinds of bucket, and those of plugins, by URL scheme.

What a plugin's store gives is checked here, once: its methods when it is made, its values and exceptions when it is called. Then
the rest of the program can trust it, and what goes wrong names the plugin, its distribution and the call.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from psyche_core.config.options.loading import load_settings
from psyche_core.errors import PluginFailed, StoreError
from psyche_core.hookspecs import ModelStoreContext, ModelStoreRegistration
from psyche_core.interfaces.store import ModelStore, Proceed, go_on, is_name
from psyche_core.plugin_errors import summary_of
from psyche_core.plugins.waited_calls import Hangs, Patience, waited_for
from psyche_core.storage.model_stores.url import OWN_SCHEMES, parse_model_url, scheme_of
from psyche_core.storage.object_store import open_bucket

if TYPE_CHECKING:
    from psyche_core.plugins.registry import PluginRegistry

MAX_NAMES = 100_000
"""Most names that a place may have below a prefix; a checkpoint has some hundred."""

_METHODS = sorted(ModelStore.__abstractmethods__)
_Given = TypeVar("_Given")
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_PATIENCE = Patience()


def store_schemes(registry: PluginRegistry) -> tuple[str, ...]:
    """The schemes of the plugins that are installed and of those that the plugin directory knows. Imports no plugin."""
    known = {record.name for record in (*registry.list(), *registry.not_installed()) if record.kind == "store"}
    return tuple(sorted(known - {*OWN_SCHEMES}))


class StoreOpener:
    """Opens places for a program. Calling it with the name or URL of a bucket gives its files.

    given: options of plugins, by field name, as from a command line; what is not given comes from the environment
    (`PSYCHE_<NAME>`), which never beats an option. patience: how long a plugin's call may say nothing. Everything blocks: call it
    in a worker thread.
    """

    def __init__(self, registry: PluginRegistry, given: Mapping[str, Any] = _NOTHING, *, patience: Patience = _PATIENCE) -> None:
        self._registry = registry
        self._given = given
        self._patience = patience

    def __call__(self, place: str) -> ModelStore:
        """The files of a place. Raises StoreError, PluginError for a plugin that cannot be used, ConfigError for its settings."""
        if not self.is_plugins(place):
            return open_bucket(place)

        registration, context, called = self._context(place)
        store = self._waited(lambda: registration.create(context), f"create of {called}")
        problem = _problem_of(store)
        if problem:
            message = f"{called} returned {problem} from its create, expected an object of psyche_core.interfaces.ModelStore"
            raise PluginFailed(message)
        return CheckedStore(store, called=called, patience=self._patience)

    def is_plugins(self, place: str) -> bool:
        """Whether a place is one of a plugin, installed or only known."""
        return scheme_of(place) in store_schemes(self._registry)

    def check(self, place: str) -> None:
        """Look for what would prevent storing at a plugin's place, and ask nobody. Raises UserError, and as opening does."""
        registration, context, called = self._context(place)
        check = registration.check
        if check is not None:
            self._waited(lambda: check(context), f"check of {called}")
        self(place).close()

    def _waited(self, call: Callable[[], _Given], called: str) -> _Given:
        return waited_for(lambda _: call(), called=called, patience=self._patience)

    def _context(self, place: str) -> tuple[ModelStoreRegistration, ModelStoreContext, str]:
        scheme = scheme_of(place)
        registration = self._registry.load("store", scheme)
        called = self._registry.label("store", scheme)
        url = parse_model_url(place, schemes=(scheme,))
        context = ModelStoreContext(url=url.bucket, settings=self._settings(registration))
        return registration, context, called

    def _settings(self, registration: ModelStoreRegistration) -> Any:
        cls = registration.settings
        if cls is None:
            return None
        explicit = {name: self._given[name] for name in cls.model_fields if self._given.get(name) is not None}
        return load_settings(cls, explicit)


def _problem_of(store: ModelStore) -> str:
    """What is wrong with an object that has all methods of a store; empty if nothing is."""
    for name in _METHODS:
        if inspect.iscoroutinefunction(getattr(store, name)):
            return f"an object of {type(store).__name__}, whose {name} is async,"
    return ""


class CheckedStore(ModelStore):
    """A plugin's store whose values are what they should be, and whose exceptions are StoreErrors that name it.

    called: the plugin's label. patience: how long a call may say nothing; a store that hangs is not called again. A name that
    a run's configuration makes up is refused here, before the plugin sees it.
    """

    def __init__(self, store: ModelStore, *, called: str, patience: Patience = _PATIENCE) -> None:
        self._store = store
        self._called = called
        self._patience = patience
        self._left = False

    def names(self, prefix: str) -> list[str]:
        """As the contract; names of other programs' files that cannot be ours are left out."""
        if prefix:
            self._expect_name(prefix.rstrip("/"))
        found: Any = self._call("names", lambda _: self._store.names(prefix))
        if not isinstance(found, list | tuple) or not all(isinstance(name, str) for name in found):
            raise self._wrong("names", f"a list of texts, got {_told(found)}")
        if len(found) > MAX_NAMES:
            raise self._wrong("names", f"at most {MAX_NAMES} names, got {len(found)}")
        foreign = next((name for name in found if not name.startswith(prefix)), None)
        if foreign is not None:
            raise self._wrong("names", f"names that begin with {prefix!r}, got {foreign!r:.200}")
        return sorted({name for name in found if is_name(name)})

    def put_file(self, name: str, path: Path, *, proceed: Proceed) -> None:
        """As the contract."""
        self._expect_name(name)
        self._call("put_file", lambda asked: self._store.put_file(name, path, proceed=asked), proceed)

    def get_file(self, name: str, path: Path, *, max_bytes: int, proceed: Proceed) -> None:
        """As the contract; what is there afterwards must be a file within the limit."""
        self._expect_name(name)
        self._call("get_file", lambda asked: self._store.get_file(name, path, max_bytes=max_bytes, proceed=asked), proceed)
        if path.is_symlink() or not path.is_file():
            raise self._wrong("get_file", f"{name} at {path}, got no file")
        if path.stat().st_size > max_bytes:
            raise self._wrong("get_file", f"at most {max_bytes} bytes of {name}, got {path.stat().st_size}")

    def get(self, name: str, *, max_bytes: int) -> bytes | None:
        """As the contract."""
        self._expect_name(name)
        found: Any = self._call("get", lambda _: self._store.get(name, max_bytes=max_bytes))
        if found is None:
            return None
        if not isinstance(found, bytes):
            raise self._wrong("get", f"bytes or None, got {_told(found)}")
        if len(found) > max_bytes:
            raise self._wrong("get", f"at most {max_bytes} bytes of {name}, got {len(found)}")
        return found

    def delete(self, names: Sequence[str]) -> None:
        """As the contract."""
        for name in names:
            self._expect_name(name)
        self._call("delete", lambda _: self._store.delete(names))

    def close(self) -> None:
        """As the contract."""
        if not self._left:
            self._call("close", lambda _: self._store.close())

    def _call(self, method: str, function: Callable[[Proceed], _Given], proceed: Proceed = go_on) -> _Given:
        """Call the plugin. What `proceed` raises comes out unchanged, whatever the plugin does with it."""
        if self._left:
            message = f"{self._called} still hangs in an earlier call; open the place again"
            raise StoreError(message)
        ended: list[BaseException] = []

        def asked() -> None:
            try:
                proceed()
            except BaseException as error:
                ended.append(error)
                raise

        def work(ask: Proceed) -> _Given:
            try:
                return function(ask)
            finally:
                self._left = False

        self._left = True  # until the call has ended, whoever stops waiting for it
        try:
            made = waited_for(work, called=f"{method} of {self._called}", patience=self._patience, proceed=asked)
        except Hangs:
            raise
        except (Exception, SystemExit) as error:  # foreign code may raise anything
            if ended:
                raise ended[0] from None
            if isinstance(error, StoreError):
                message = f"{error.sentence} ({method} of {self._called})"
                raise type(error)(message) from error
            message = f"{self._called} failed in its {method} with {summary_of(error)}; tell its author, or use another place"
            raise StoreError(message) from error
        if ended:
            raise ended[0]
        return made

    def _wrong(self, method: str, expected: str) -> StoreError:
        return StoreError(f"{self._called} broke its contract in {method}: expected {expected}")

    def _expect_name(self, name: str) -> None:
        if not is_name(name):
            message = f"{name!r:.200} cannot be the name of a stored file; expected letters, digits, . _ - and /, and no part .."
            raise StoreError(message)


def _told(value: object) -> str:
    return "None" if value is None else f"{type(value).__name__}"
