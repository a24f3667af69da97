"""Places of plugins: looked up by scheme, opened with their settings, and what a plugin's store gives is checked once, here."""

from __future__ import annotations

import asyncio
import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from psyche_core.client.setup.model_store import open_store
from psyche_core.config.options.client import ClientSettings
from psyche_core.config.run_config import Choice
from psyche_core.errors import ConfigError, ModelError, NoSuchBucket, NoSuchModel, PluginFailed, PluginMissing, StoreError
from psyche_core.hookspecs import GROUP
from psyche_core.interfaces.store import go_on, is_name
from psyche_core.plugins import PluginRegistry
from psyche_core.plugins.model_stores import StoreOpener, store_schemes
from psyche_core.plugins.waited_calls import Patience
from psyche_core.storage.model_stores.stores import BucketStore
from psyche_core.storage.model_stores.url import ModelUrl, parse_model_url
from psyche_core.storage.object_store import ObjectStore
from psyche_core.training.checkpoints import sources

CODE = """
import threading
from pydantic import BaseModel
from psyche_core.errors import StoreError, UserError
from psyche_core.hookspecs import ModelStoreRegistration, hookimpl

PSYCHE_PLUGIN_API = "1.0"
made = []

class Settings(BaseModel):
    odd_place: str = "nowhere"
    odd_level: int = 0

class Store:
    def __init__(self, context):
        self.context, self.answers, self.closed = context, {}, 0
        if context.url.endswith("/forgetful"):
            self.answers["names"] = ["r-step1/config.json"]
        if context.url.endswith("/unlisted"):
            self.answers["names"] = StoreError("listing is not allowed")

    def _answer(self, name, *words):
        answer = self.answers.get(name)
        if isinstance(answer, BaseException):
            raise answer
        return answer(*words) if callable(answer) else answer

    def names(self, prefix): return self._answer("names")
    def put_file(self, name, path, *, proceed): return self._answer("put_file", proceed)
    def get_file(self, name, path, *, max_bytes, proceed): return self._answer("get_file", path, proceed)
    def get(self, name, *, max_bytes): return self._answer("get")
    def delete(self, names): return self._answer("delete")
    def close(self):
        self.closed += 1
        return self._answer("close")

def create(context):
    if context.settings.odd_place == "hangs":
        threading.Event().wait()
    if context.url.endswith("/none"):
        return None
    made.append(Store(context))
    return made[-1]

class Later(Store):
    async def put_file(self, name, path, *, proceed): pass

def check(context):
    if context.settings.odd_place == "hangs in check":
        threading.Event().wait()
    if context.settings.odd_place == "forbidden":
        raise UserError("odd_place must not be forbidden")

@hookimpl
def psyche_register_model_stores():
    return [
        ModelStoreRegistration(name="odd", summary="odd", create=create, settings=Settings, check=check),
        ModelStoreRegistration(name="later", summary="async", create=Later),
        ModelStoreRegistration(name="gs", summary="not allowed", create=create),
        ModelStoreRegistration(name="Odd_one", summary="no scheme", create=create),
    ]
"""
CALLED = r"the store plugin odd \(odd-store 0\.3\)"


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[PluginRegistry]:
    """An environment with one more distribution, `odd-store 0.3`."""
    site = tmp_path / "site"
    info = site / "odd_store-0.3.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: odd-store\nVersion: 0.3\n")
    points = "".join(f"store.{name} = odd_store_hooks\n" for name in ("odd", "later", "gs", "Odd_one"))
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{points}")
    (site / "odd_store_hooks.py").write_text(CODE)
    sys.path.insert(0, str(site))
    importlib.invalidate_caches()
    yield PluginRegistry.discover()
    sys.path.remove(str(site))
    sys.modules.pop("odd_store_hooks", None)


def behind(checked: Any) -> Any:
    """The plugin's own object."""
    return sys.modules["odd_store_hooks"].made[-1]


# ------------------------------------------------------------------------------------------------------------ opening


def test_a_url_is_opened_by_the_plugin_of_its_scheme_and_others_as_before(registry: PluginRegistry, tmp_path: Path) -> None:
    opener = StoreOpener(registry)
    opener("odd://host/models")
    assert behind(None).context.url == "odd://host/models"
    assert isinstance(opener(f"file://{tmp_path}/place"), ObjectStore)
    assert {"odd", "later", "dav", "davs"} <= {*store_schemes(registry)}, "installed, and known to the directory"
    assert "gs" not in store_schemes(registry)


def test_settings_come_from_options_then_from_the_environment(registry: PluginRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PSYCHE_ODD_PLACE", "environment")
    monkeypatch.setenv("PSYCHE_ODD_LEVEL", "3")
    StoreOpener(registry)("odd://host/models")
    assert behind(None).context.settings.model_dump() == {"odd_place": "environment", "odd_level": 3}
    StoreOpener(registry, {"odd_place": "option", "odd_level": None, "other": 1})("odd://host/models")
    assert behind(None).context.settings.model_dump() == {"odd_place": "option", "odd_level": 3}
    monkeypatch.setenv("PSYCHE_ODD_LEVEL", "many")
    with pytest.raises(ConfigError, match="got 'many'"):
        StoreOpener(registry)("odd://host/models")


def test_what_is_no_store_is_refused_when_it_is_made(registry: PluginRegistry) -> None:
    opener = StoreOpener(registry)
    with pytest.raises(PluginFailed, match=rf"{CALLED} returned None from its create, expected an object of .*ModelStore"):
        opener("odd://host/none")
    with pytest.raises(PluginFailed, match=r"the store plugin later \(odd-store 0\.3\) returned .* whose put_file is async"):
        opener("later://host/models")


@pytest.mark.parametrize(
    ("name", "sentence"), [("gs", "another scheme than hf, gs, s3, file"), ("Odd_one", "must be the scheme")]
)
def test_a_name_that_is_no_scheme_of_a_plugin_is_refused(registry: PluginRegistry, name: str, sentence: str) -> None:
    (record,) = [each for each in registry.inspect_all() if (each.kind, each.name) == ("store", name)]
    assert record.status == "failed"
    assert sentence in record.cause


# -------------------------------------------------------------------------------------------------------- what it gives


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (None, "in names: expected a list of texts, got None"),
        (["a", 1], "in names: expected a list of texts, got list"),
        (["run/a", "other"], "in names: expected names that begin with 'run/', got 'other'"),
        (KeyError("x"), r"failed in its names with KeyError: 'x'"),
    ],
)
def test_a_wrong_list_names_plugin_distribution_and_call(registry: PluginRegistry, answer: object, sentence: str) -> None:
    store = StoreOpener(registry)("odd://host/models")
    behind(store).answers["names"] = answer
    with pytest.raises(StoreError, match=f"{CALLED} (broke its contract )?{sentence}"):
        store.names("run/")


def test_a_list_is_sorted_and_names_that_cannot_be_ours_are_left_out(registry: PluginRegistry) -> None:
    store = StoreOpener(registry)("odd://host/models")
    behind(store).answers["names"] = ["run/b", "run/a", "run/a", "run/a.partial", "run/a b", "run/../c"]
    assert store.names("run/") == ["run/a", "run/b"]


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [("text", "expected bytes or None, got str"), (b"12345", "expected at most 4 bytes of run/psyche.json, got 5")],
)
def test_a_wrong_content_is_refused(registry: PluginRegistry, answer: object, sentence: str) -> None:
    store = StoreOpener(registry)("odd://host/models")
    behind(store).answers["get"] = answer
    with pytest.raises(StoreError, match=f"{CALLED} broke its contract in get: {sentence}"):
        store.get("run/psyche.json", max_bytes=4)


def test_a_download_must_be_a_file_within_the_limit(registry: PluginRegistry, tmp_path: Path) -> None:
    store = StoreOpener(registry)("odd://host/models")
    target = tmp_path / "target"
    with pytest.raises(StoreError, match=rf"{CALLED} broke its contract in get_file: expected run/w at .*, got no file"):
        store.get_file("run/w", target, max_bytes=4, proceed=go_on)
    behind(store).answers["get_file"] = lambda path, _: path.write_bytes(b"12345")
    with pytest.raises(StoreError, match=r"in get_file: expected at most 4 bytes of run/w, got 5"):
        store.get_file("run/w", target, max_bytes=4, proceed=go_on)
    target.unlink()
    (tmp_path / "secret").write_bytes(b"1")
    behind(store).answers["get_file"] = lambda path, _: path.symlink_to(tmp_path / "secret")
    with pytest.raises(StoreError, match="got no file"):
        store.get_file("run/w", target, max_bytes=4, proceed=go_on)


def test_its_own_errors_keep_their_kind_and_are_signed(registry: PluginRegistry) -> None:
    store = StoreOpener(registry)("odd://host/models")
    behind(store).answers["names"] = NoSuchBucket("there is no shelf")
    with pytest.raises(NoSuchBucket, match=rf"^there is no shelf \(names of {CALLED}\)$"):
        store.names("")


def swallowed(proceed: Callable[[], None]) -> None:
    try:
        proceed()
    except BaseException:
        return


def converted(proceed: Callable[[], None]) -> None:
    try:
        proceed()
    except BaseException as error:
        raise ValueError("broken") from error


@pytest.mark.parametrize("answer", [lambda proceed: proceed(), swallowed, converted])
def test_what_ends_a_call_comes_out_whatever_the_plugin_does_with_it(
    registry: PluginRegistry, tmp_path: Path, answer: Callable[[Callable[[], None]], None]
) -> None:
    store = StoreOpener(registry)("odd://host/models")
    behind(store).answers["put_file"] = answer

    def leave() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        store.put_file("run/w", tmp_path / "w", proceed=leave)


def test_a_name_that_leads_elsewhere_never_reaches_the_plugin(registry: PluginRegistry, tmp_path: Path) -> None:
    """A run's configuration may be a stranger's."""
    location = Choice("Gcs", {"bucket": "odd://host/models", "prefix": "../../etc"})
    with pytest.raises(ModelError, match=r"'../../etc/psyche.json' cannot be the name of a stored file"):
        sources.find(location, base=tmp_path, cache=tmp_path, open_store=StoreOpener(registry))
    assert [
        name for name in ("a/../b", "/a", "a//b", "a/", "", ".", "a b", "a.partial", "ü", "a\n", "a\\b") if is_name(name)
    ] == []
    assert is_name("a_run-step7/model-00001-of-00002.safetensors")


# ------------------------------------------------------------------------------------------------------ calls that hang


def never(*_: object) -> None:
    threading.Event().wait()


def test_a_call_that_hangs_is_told_and_ends_in_a_sentence(
    registry: PluginRegistry, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = StoreOpener(registry, patience=Patience(told_after=0.01, most=0.05))("odd://host/models")
    behind(store).answers["put_file"] = never
    with pytest.raises(
        StoreError, match=rf"^put_file of {CALLED} said nothing for 0\.05 s, so it counts as hanging; .*another place$"
    ):
        store.put_file("run/w", tmp_path / "w", proceed=go_on)
    assert [record.getMessage() for record in caplog.records] == [
        "put_file of the store plugin odd (odd-store 0.3) has said nothing for 0.01 s; it is given 0.05 s"
    ]
    with pytest.raises(StoreError, match=rf"^{CALLED} still hangs in an earlier call; open the place again$"):
        store.names("")
    store.close()
    assert behind(store).closed == 0, "nothing is called beside a call that still runs"


def test_a_factory_and_a_check_that_hang_end_in_a_sentence(registry: PluginRegistry) -> None:
    impatient = Patience(told_after=0.01, most=0.05)
    with pytest.raises(StoreError, match=rf"^create of {CALLED} said nothing"):
        StoreOpener(registry, {"odd_place": "hangs"}, patience=impatient)("odd://host/models")
    with pytest.raises(StoreError, match=rf"^check of {CALLED} said nothing"):
        StoreOpener(registry, {"odd_place": "hangs in check"}, patience=impatient).check("odd://host/models")


def test_whoever_leaves_need_not_wait_for_a_call_that_hangs(registry: PluginRegistry, tmp_path: Path) -> None:
    """Whatever patience is left: the test would never end otherwise."""
    store = StoreOpener(registry, patience=Patience(told_after=0.01, most=1e9))("odd://host/models")
    behind(store).answers["put_file"] = never

    def leave() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        store.put_file("run/w", tmp_path / "w", proceed=leave)


def test_a_part_is_a_sign_of_life_and_proceed_runs_where_the_call_was_made(registry: PluginRegistry, tmp_path: Path) -> None:
    """What a task is cancelled with is only known in the thread that anyio made for it."""
    threads: list[int] = []
    store = StoreOpener(registry)("odd://host/models")

    def two_parts(proceed: Callable[[], None]) -> None:
        proceed()
        threads.append(threading.get_ident())
        proceed()

    behind(store).answers["put_file"] = two_parts
    store.put_file("run/w", tmp_path / "w", proceed=lambda: threads.append(threading.get_ident()))
    assert threads[0] == threads[2] == threading.get_ident()
    assert threads[1] != threads[0]


def test_a_store_that_forgets_what_it_took_is_no_place_for_a_model(registry: PluginRegistry, tmp_path: Path) -> None:
    """Else the run would refer to it, and nobody could join."""
    for name in ("config.json", "psyche.json"):
        (tmp_path / name).write_text("{}")
    place, sentence = "odd://host/forgetful", r"^odd://host/forgetful took r-step1/psyche.json and does not list it"
    with pytest.raises(StoreError, match=sentence):
        anyio.run(partial(BucketStore(place, open_store=StoreOpener(registry)).put, tmp_path, run_id="r", step=1))


def test_a_store_that_may_not_list_is_believed(registry: PluginRegistry, tmp_path: Path) -> None:
    """Rights to write and none to list are usual for buckets."""
    (tmp_path / "psyche.json").write_text("{}")
    store = BucketStore("odd://host/unlisted", open_store=StoreOpener(registry))
    stored = anyio.run(partial(store.put, tmp_path, run_id="r", step=1))
    assert stored == Choice("Gcs", {"bucket": "odd://host/unlisted", "prefix": "r-step1"})


# ----------------------------------------------------------------------------------------------- where places are named


def test_a_url_of_a_plugin_is_a_bucket_of_a_run() -> None:
    url = parse_model_url("odd://host:80/a%20b/", schemes=["odd"])
    assert url == ModelUrl("odd", "odd://host:80/a%20b")
    assert url.checkpoint() == Choice("Gcs", {"bucket": "odd://host:80/a%20b"})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("odd://me:secret@host/x", r"must have no user and no password, .* leave them out of odd://…@host"),
        ("odd:///x", "expected odd://HOST/FOLDER"),
        ("odd://host/a b", "expected odd://HOST/FOLDER"),
        ("odd://host/a/%2e%2e/b", "expected odd://HOST/FOLDER"),
        ("odd://host/a?b", "is not the URL of a model store"),
        ("odd://host:port/a", "is not the URL of a model store"),
        ("ftp://host/a", r"expected hf://OWNER/NAME, .* or file:///FOLDER, or odd://…"),
    ],
)
def test_a_url_that_cannot_be_one_is_a_sentence_without_its_password(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as raised:
        parse_model_url(text, schemes=["odd"])
    assert "secret" not in str(raised.value)


def client(folder: Path, url: str) -> ClientSettings:
    return ClientSettings(run_id="r", server_addr="memory:1", base=folder, checkpoint_dir=folder / "saved", model_store=url)


def test_a_client_stores_there_and_is_told_before_it_joins_what_prevents_it(registry: PluginRegistry, tmp_path: Path) -> None:
    opener = StoreOpener(registry)
    assert isinstance(open_store(client(tmp_path, "odd://host/models"), registry, opener), BucketStore)
    with pytest.raises(ConfigError, match=r"has 84 bytes, and a run's configuration carries at most 64"):
        open_store(client(tmp_path, f"odd://host/{'m' * 73}"), registry, opener)
    forbidden = StoreOpener(registry, {"odd_place": "forbidden"})
    with pytest.raises(Exception, match="odd_place must not be forbidden"):
        open_store(client(tmp_path, "odd://host/models"), registry, forbidden)


def test_a_plugin_that_is_known_and_not_installed_is_named(tmp_path: Path) -> None:
    registry = PluginRegistry.discover(entry_points=())
    with pytest.raises(PluginMissing, match=r"the store plugin davs is not installed; .*store_webdav"):
        open_store(client(tmp_path, "davs://host/models"), registry, StoreOpener(registry))
    location = Choice("Gcs", {"bucket": "davs://host/models", "prefix": "r-step1"})
    with pytest.raises(NoSuchModel, match=r"cannot be opened: the store plugin davs is not installed"):
        sources.find(location, base=tmp_path, cache=tmp_path, open_store=StoreOpener(registry))
