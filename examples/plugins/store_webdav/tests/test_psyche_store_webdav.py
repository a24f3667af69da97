"""What is particular to dav and davs."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from dav_server import PASSWORD, USER, DavServer, dav_server
from psyche_store_webdav.hooks import check, create
from psyche_store_webdav.listing import members
from psyche_store_webdav.settings import DavSettings
from psyche_store_webdav.store import WebDav
from pydantic import SecretStr

from psyche_core.config.run_config import Choice
from psyche_core.errors import ModelError, NoSuchModel, StoreError, UserError
from psyche_core.hookspecs import ModelStoreContext
from psyche_core.interfaces.store import go_on
from psyche_core.plugins import PluginRegistry
from psyche_core.plugins.model_stores import StoreOpener
from psyche_core.storage.model_stores.stores import BucketStore
from psyche_core.training.checkpoints import sources
from psyche_core.training.checkpoints.manifest import CheckpointFacts, write_manifest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[DavServer]:
    (tmp_path / "served").mkdir()
    with dav_server(tmp_path / "served") as running:
        yield running


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A folder as members store it, without tensors."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"}')
    write_manifest(folder, CheckpointFacts(run_id="a run", step=7, epoch=1, data_index=8))
    return folder


def find(location: Choice, folder: Path, opener: StoreOpener) -> Path:
    return sources.find(location, base=folder, cache=folder / "cache", open_store=opener)


@pytest.mark.anyio
async def test_a_checkpoint_goes_there_and_comes_back_by_its_url(server: DavServer, checkpoint: Path, tmp_path: Path) -> None:
    """As a member stores it after an epoch, and a later member finds it."""
    opener = StoreOpener(PluginRegistry.discover())
    url = f"dav://{server.host}/models/first%20light"
    location = await BucketStore(url, open_store=opener).put(checkpoint, run_id="a run", step=7)
    assert location == Choice("Gcs", {"bucket": url, "prefix": "a_run-step7"})
    assert sorted(path.name for path in (server.folder / "models/first light/a_run-step7").iterdir()) == [
        "config.json",
        "psyche.json",
    ]
    moved = [path for method, path in server.asked if method == "MOVE"]
    assert [path.rpartition("/")[2].split(".")[1] for path in moved] == ["config", "psyche"], "the manifest comes last"

    found = find(location, tmp_path, opener)
    assert {path.name: path.read_bytes() for path in found.iterdir()} == {
        path.name: path.read_bytes() for path in checkpoint.iterdir()
    }
    asked = len(server.asked)
    assert find(location, tmp_path, opener) == found
    assert len(server.asked) == asked + 1, "only the manifest is asked for again"


@pytest.mark.anyio
async def test_a_changed_byte_on_the_server_is_noticed(server: DavServer, checkpoint: Path, tmp_path: Path) -> None:
    opener = StoreOpener(PluginRegistry.discover())
    location = await BucketStore(f"dav://{server.host}/models", open_store=opener).put(checkpoint, run_id="a run", step=7)
    (server.folder / "models/a_run-step7/config.json").write_text('{"model_type": "llamb"}')
    with pytest.raises(ModelError, match=r"config\.json"):
        find(location, tmp_path, opener)


def test_the_environment_gives_the_password_and_an_option_beats_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "served").mkdir()
    with dav_server(tmp_path / "served", needs_password=True) as server:
        url = f"dav://{server.host}/models"
        opener = StoreOpener(PluginRegistry.discover())
        with pytest.raises(StoreError, match=r"answered 401 .*PSYCHE_DAV_PASSWORD \(names of the store plugin dav \(psyche-"):
            opener(url).names("")
        for name, value in (("HOST", server.host), ("USER", USER), ("PASSWORD", PASSWORD)):
            monkeypatch.setenv(f"PSYCHE_DAV_{name}", value)
        assert opener(url).names("") == []
        with pytest.raises(UserError, match=r"is not on other\.example, the only server"):
            StoreOpener(PluginRegistry.discover(), {"dav_host": "other.example"})(url)


def test_another_server_is_never_told_the_password() -> None:
    """A run's URL may be anybody's."""
    settings = DavSettings(dav_host="dav.example", dav_user=USER, dav_password=SecretStr(PASSWORD))
    check(ModelStoreContext(url="davs://dav.example/models", settings=settings))
    for url, sentence in (
        ("davs://evil.example/models", "is not on dav.example, the only server"),
        ("davs://dav.example:8443/models", "is not on dav.example, the only server"),
        ("dav://dav.example/models", "would send the password unencrypted; use davs://"),
    ):
        with pytest.raises(UserError, match=sentence):
            create(ModelStoreContext(url=url, settings=settings))
    with pytest.raises(UserError, match="--dav-user needs --dav-host"):
        check(ModelStoreContext(url="davs://dav.example/", settings=settings.model_copy(update={"dav_host": None})))
    with pytest.raises(UserError, match="a user needs a password"):
        check(ModelStoreContext(url="davs://dav.example/", settings=settings.model_copy(update={"dav_password": None})))


def test_a_server_that_cannot_be_reached_or_speaks_no_webdav_is_a_sentence(server: DavServer, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"x")
    gone = WebDav("dav://127.0.0.1:9/models", DavSettings())
    secure = WebDav(f"davs://{server.host}/models", DavSettings())  # the server has no TLS
    for store in (gone, secure):
        calls: list[Callable[[WebDav], object]] = [
            lambda store: store.names(""),
            lambda store: store.get("a", max_bytes=9),
            lambda store: store.put_file("a", source, proceed=go_on),
            lambda store: store.get_file("a", tmp_path / "target", max_bytes=9, proceed=go_on),
            lambda store: store.delete(["a"]),
        ]
        for call in calls:
            with pytest.raises(StoreError, match="does the server run, and can it be reached from here"):
                call(store)
    assert not (tmp_path / "target").exists()


def test_a_place_without_a_model_is_a_sentence(server: DavServer, tmp_path: Path) -> None:
    location = Choice("Gcs", {"bucket": f"dav://{server.host}/models", "prefix": "a_run-step7"})
    with pytest.raises(NoSuchModel, match=r"contains no checkpoint: .*got nothing"):
        find(location, tmp_path, StoreOpener(PluginRegistry.discover()))


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (b"<html/>", "it is a html, expected a multistatus"),
        (b"no XML", "it is no XML"),
        (b'<!DOCTYPE x [<!ENTITY a "b">]><multistatus xmlns="DAV:"/>', "it has a document type"),
    ],
)
def test_an_answer_that_is_no_list_is_refused(answer: bytes, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        list(members(answer, "/models"))


def test_members_of_other_collections_are_left_out() -> None:
    def entry(href: str, kind: str = "") -> str:
        return f"<response><href>{href}</href><propstat><prop><resourcetype>{kind}</resourcetype></prop></propstat></response>"

    answer = "".join(
        (
            entry("http://host/our%20models/", "<collection/>"),
            entry("/our%20models/a.json"),
            entry("http://host/our%20models/r-step1/", "<collection/>"),
            entry("/our%20models/r-step1/b.json"),
            entry("/elsewhere/c.json"),
            entry("/our%20models/../d.json"),
        )
    )
    found = list(members(f'<multistatus xmlns="DAV:">{answer}</multistatus>'.encode(), "/our models"))
    assert found == [("a.json", False), ("r-step1", True)]
