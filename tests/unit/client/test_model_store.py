"""Which store the settings of a client name, and what is said of settings that name none."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import pytest

from psyche_core.client.setup import model_store
from psyche_core.config.options.client import ClientSettings
from psyche_core.config.options.loading import load_settings
from psyche_core.config.run_config import Choice
from psyche_core.errors import ConfigError
from psyche_core.plugins import PluginRegistry
from psyche_core.plugins.model_stores import StoreOpener
from psyche_core.storage.model_stores.interface import CheckpointStore
from psyche_core.storage.model_stores.stores import BucketStore, FolderStore, HubStore


def open_store(settings: ClientSettings, registry: PluginRegistry | None = None) -> CheckpointStore | None:
    registry = registry or PluginRegistry.discover(entry_points=())
    return model_store.open_store(settings, registry, StoreOpener(registry))


def settings(base: Path, **given: object) -> ClientSettings:
    return load_settings(
        ClientSettings, {"run_id": "r", "server_addr": "memory:1", "base": base, "checkpoint_dir": base / "saved", **given}
    )


def test_a_folder_for_models_that_is_not_there_is_no_repository_of_ours(tmp_path: Path) -> None:
    """Else a mistyped folder would be made as a repository under whoever is logged in."""
    with pytest.raises(ConfigError, match=f"--hub-repo: there is no folder {tmp_path}/models, .* is written owner/name"):
        open_store(settings(tmp_path, hub_repo="models"))
    (tmp_path / "models").mkdir()
    assert isinstance(open_store(settings(tmp_path, hub_repo="models")), FolderStore)
    assert isinstance(open_store(settings(tmp_path, hub_repo="owner/name")), HubStore)


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("hf://owner/name", HubStore),
        ("gs://models/runs/a", BucketStore),
        ("s3://models", BucketStore),
        ("file:///net/models", FolderStore),
    ],
)
def test_one_option_names_every_store(tmp_path: Path, url: str, kind: type) -> None:
    assert type(open_store(settings(tmp_path, model_store=url))) is kind


def test_without_a_place_nothing_is_stored(tmp_path: Path) -> None:
    assert open_store(settings(tmp_path)) is None


def test_a_folder_by_its_url_gets_the_model_and_the_run_names_it(tmp_path: Path) -> None:
    saved = tmp_path / "r-step3"
    saved.mkdir()
    (saved / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with TemporaryDirectory() as folder:  # a run configuration takes names of 64 bytes at most
        place = Path(folder) / "our models"
        store = open_store(settings(tmp_path, model_store=place.as_uri()))
        assert store is not None
        assert anyio.run(partial(store.put, saved, run_id="r", step=3)) == Choice("Hub", {"repo_id": f"{place}/r-step3"})
        assert (place / "r-step3" / "config.json").is_file()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"model_store": "hf://a/b", "hub_repo": "a/b"}, "say one place for models"),
        ({"model_store": "gs://abc", "gcs_bucket": "b"}, "say one place for models"),
        (
            {"model_store": "ftp://host/folder"},
            r"'ftp://host/folder' is not the URL of a model store; expected hf://OWNER/NAME, gs://",
        ),
        ({"model_store": "hf://a/b@main"}, "leave out @main"),
        ({"model_store": "hf://a/b", "checkpoint_dir": None}, "storing models needs --checkpoint-dir"),
    ],
)
def test_settings_that_name_no_store_are_a_sentence(tmp_path: Path, given: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        open_store(settings(tmp_path, **given))
