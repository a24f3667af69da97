"""Checkpoints into stores and out of them again, byte for byte: folders, buckets (real files, a real S3 server), a Hub."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import random
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import save_file

from psyche_core.config.run_config import Choice
from psyche_core.errors import ModelError, NoSuchModel, StoreError
from psyche_core.storage.checkpoint_names import MANIFEST_FILE
from psyche_core.storage.model_stores.interface import RetentionPolicy
from psyche_core.storage.model_stores.stores import BucketStore, FolderStore, HubStore
from psyche_core.storage.object_store import ObjectStore, open_bucket
from psyche_core.training.checkpoints import sources
from psyche_core.training.checkpoints.manifest import STATE_FILE, CheckpointFacts, read_manifest, verify, write_manifest

pytestmark = pytest.mark.anyio


def make_checkpoint(folder: Path, step: int, *, state: bool = True) -> Path:
    folder.mkdir(parents=True)
    save_file({"w": torch.full((64, 8), float(step))}, folder / "model.safetensors")
    if state:
        save_file({"public_state/v": torch.full((64, 8), step + 0.5)}, folder / STATE_FILE)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "tokenizer.json").write_text("{}")
    write_manifest(folder, CheckpointFacts(run_id="a run", step=step, epoch=1, data_index=8 * step))
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# --------------------------------------------------------------------------------------------------------------- folders


async def test_a_folder_store_gives_a_location_that_is_read_back(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "mine", 3)
    location = await FolderStore("models/shared", base=tmp_path).put(checkpoint, run_id="a run", step=3)
    assert location == Choice("Hub", {"repo_id": "models/shared/a_run-step3"})
    found = sources.find(location, base=tmp_path, cache=tmp_path / "cache")
    assert contents(found) == contents(checkpoint)


async def test_old_steps_go_only_when_asked_for(tmp_path: Path) -> None:
    for keep, left in ((RetentionPolicy(steps=2), {1, 2, 3, 4}), (RetentionPolicy(steps=2, delete=True), {3, 4})):
        where = f"kept-{keep.delete}"
        for step in (1, 2, 3, 4):
            checkpoint = make_checkpoint(tmp_path / f"{where}-{step}", step)
            await FolderStore(where, base=tmp_path, keep=keep).put(checkpoint, run_id="r", step=step)
        assert {int(path.name.removeprefix("r-step")) for path in (tmp_path / where).iterdir()} == left


async def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "mine", 3)
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot copy it to"):
        await FolderStore("file", base=tmp_path).put(checkpoint, run_id="r", step=3)
    with pytest.raises(StoreError, match="at most 64"):
        await FolderStore("x" * 60, base=tmp_path).put(checkpoint, run_id="r", step=3)


# --------------------------------------------------------------------------------------------------------------- buckets


@pytest.fixture
def bucket_folder() -> Iterator[Path]:
    """A folder with a name short enough for a run configuration."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A real S3 server in this process, with one bucket."""
    server_module = pytest.importorskip("moto.server")
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "somebody",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    assert httpx.put(f"http://{host}:{port}/models").status_code == 200
    yield "s3://models"
    server.stop()


async def round_trip(bucket: str, tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "mine", 7)
    location = await BucketStore(bucket, prefix="runs/x").put(checkpoint, run_id="a run", step=7)
    assert location == Choice("Gcs", {"bucket": bucket, "prefix": "runs/x/a_run-step7"})
    cache = tmp_path / "cache"
    whole = sources.find(location, base=tmp_path, cache=cache)
    assert contents(whole) == contents(checkpoint)
    manifest = read_manifest(whole)
    assert manifest is not None
    verify(whole, manifest)
    described = sources.find(location, base=tmp_path, cache=cache, weights=False)
    assert sorted(path.name for path in described.iterdir()) == ["config.json", MANIFEST_FILE, "tokenizer.json"]


async def test_a_bucket_of_files_is_read_back(bucket_folder: Path, tmp_path: Path) -> None:
    await round_trip(f"file://{bucket_folder}/b", tmp_path)


async def test_bytes_that_differ_from_the_manifest_name_the_place_they_came_from(bucket_folder: Path, tmp_path: Path) -> None:
    """Nobody knows the folder in which a download is put together; the place, or its store, is to blame."""
    bucket = f"file://{bucket_folder}"
    location = await BucketStore(bucket).put(make_checkpoint(tmp_path / "mine", 7), run_id="r", step=7)
    tokenizer = bucket_folder / "r-step7" / "tokenizer.json"
    tokenizer.write_bytes(tokenizer.read_bytes()[:-1])
    sentence = rf"^what was downloaded from {bucket}/r-step7 is not what its psyche.json lists: .*tokenizer.json differs from"
    with pytest.raises(ModelError, match=sentence):
        sources.find(location, base=tmp_path, cache=tmp_path / "cache")


async def test_an_s3_bucket_is_read_back(s3: str, tmp_path: Path) -> None:
    await round_trip(s3, tmp_path)


async def test_a_bucket_deletes_old_steps_of_its_run_only(s3: str, tmp_path: Path) -> None:
    store = BucketStore(s3, prefix="p", keep=RetentionPolicy(steps=1, delete=True))
    await BucketStore(s3, prefix="p").put(make_checkpoint(tmp_path / "other", 1), run_id="other", step=1)
    for step in (1, 2):
        await store.put(make_checkpoint(tmp_path / str(step), step), run_id="r", step=step)
    with pytest.raises(ModelError, match="contains no checkpoint"):
        sources.find(Choice("Gcs", {"bucket": s3, "prefix": "p/r-step1"}), base=tmp_path, cache=tmp_path / "cache")
    for folder in ("r-step2", "other-step1"):
        sources.find(Choice("Gcs", {"bucket": s3, "prefix": f"p/{folder}"}), base=tmp_path, cache=tmp_path / "cache")


async def test_old_steps_that_cannot_be_deleted_do_not_undo_what_was_stored(
    bucket_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuses(*_: object, **__: object) -> None:
        raise StoreError("no right to delete")

    def refused(path: Path, *, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(ObjectStore, "delete", refuses)
    keep = RetentionPolicy(steps=1, delete=True)
    for store in (BucketStore(f"file://{bucket_folder}/b", keep=keep), FolderStore("shared", base=tmp_path, keep=keep)):
        with monkeypatch.context() as patch:
            for step in (1, 2):
                folder = make_checkpoint(tmp_path / f"{type(store).__name__}-{step}", step)
                patch.setattr(shutil, "rmtree", refused)
                location = await store.put(folder, run_id="r", step=step)
        assert "r-step2" in str(location.settings)
    assert [record.message for record in caplog.records] == [
        "old models of run r were not deleted: no right to delete",
        f"old models of run r were not deleted: [Errno 13] Permission denied: '{tmp_path}/shared/r-step1'",
    ]


async def test_what_was_downloaded_is_not_downloaded_again(bucket_folder: Path, tmp_path: Path) -> None:
    bucket = f"file://{bucket_folder}/b"
    location = await BucketStore(bucket).put(make_checkpoint(tmp_path / "mine", 7), run_id="r", step=7)
    first = sources.find(location, base=tmp_path, cache=tmp_path / "cache")
    (bucket_folder / "b/r-step7/model.safetensors").unlink()
    assert sources.find(location, base=tmp_path, cache=tmp_path / "cache") == first


async def test_a_checkpoint_that_was_damaged_in_the_bucket_is_refused_and_not_kept(bucket_folder: Path, tmp_path: Path) -> None:
    """The reference neither checked sizes nor hashes, and a part of a file counted as cached."""
    bucket = f"file://{bucket_folder}/b"
    location = await BucketStore(bucket).put(make_checkpoint(tmp_path / "mine", 7), run_id="r", step=7)
    shard = bucket_folder / "b/r-step7/model.safetensors"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-5] + b"wrong")
    with pytest.raises(ModelError, match="tensor w"):
        sources.find(location, base=tmp_path, cache=tmp_path / "cache")
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    shard.write_bytes(whole)
    sources.find(location, base=tmp_path, cache=tmp_path / "cache")


async def test_51_an_interrupted_download_goes_on_where_it_was(bucket_folder: Path, tmp_path: Path) -> None:
    """Reference client 9.2-51: transfers without resume or check."""
    bucket = f"file://{bucket_folder}/b"
    location = await BucketStore(bucket).put(make_checkpoint(tmp_path / "mine", 7), run_id="r", step=7)
    first, *_, last = sorted((bucket_folder / "b/r-step7").iterdir(), key=lambda path: path.name != "config.json")
    missing, kept = last.read_bytes(), first.read_bytes()
    last.unlink()
    with pytest.raises(ModelError, match=last.name):
        sources.find(location, base=tmp_path, cache=tmp_path / "cache")

    last.write_bytes(missing)
    first.write_bytes(b"?" * len(kept))  # whoever reads it again is found out
    found = sources.find(location, base=tmp_path, cache=tmp_path / "cache")
    assert contents(found) == contents(tmp_path / "mine")
    assert [path.name for path in found.parent.iterdir()] == [found.name]


async def test_51_a_file_is_only_asked_for_what_it_lacks(s3: str, tmp_path: Path) -> None:
    whole = bytes(range(256)) * 100
    (tmp_path / "whole").write_bytes(whole)
    store = open_bucket(s3)
    store.put_file("a/file", tmp_path / "whole")
    (tmp_path / "part").write_bytes(b"x" * 1000)  # not the object's: what is there is not read again
    store.get_file("a/file", tmp_path / "part", max_bytes=600_000)
    assert (tmp_path / "part").read_bytes() == b"x" * 1000 + whole[1000:]

    (tmp_path / "part").write_bytes(bytes(len(whole) + 1))
    with pytest.raises(StoreError, match="fewer than an earlier attempt downloaded"):
        store.get_file("a/file", tmp_path / "part", max_bytes=600_000)
    store.get_file("a/file", tmp_path / "part", max_bytes=600_000)
    assert (tmp_path / "part").read_bytes() == whole


async def test_51_a_connection_that_breaks_is_resumed(tmp_path: Path, s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server between us and the bucket that ends every answer after a while."""
    whole = random.Random(51).randbytes(600_000)
    (tmp_path / "whole").write_bytes(whole)
    open_bucket(s3).put_file("file", tmp_path / "whole")
    with cutting_proxy(os.environ["AWS_ENDPOINT_URL"], after=250_000) as (address, cuts):
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        open_bucket(s3).get_file("file", tmp_path / "copy", max_bytes=600_000)
    assert (tmp_path / "copy").read_bytes() == whole
    assert len(cuts) >= 2


@contextmanager
def cutting_proxy(target: str, *, after: int) -> Iterator[tuple[str, list[int]]]:
    """Hands requests on to `target` and closes the connection after `after` bytes of an answer; which answers were cut."""
    cuts: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            headers = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
            answer = httpx.request(self.command, target + self.path, headers=headers)
            self.send_response(answer.status_code)
            for name, value in answer.headers.items():
                if name.lower() not in ("connection", "transfer-encoding", "date", "server"):
                    self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.content[:after])
            if len(answer.content) > after:
                cuts.append(len(answer.content))
                self.close_connection = True

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", cuts
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


async def test_a_foreign_checkpoint_without_a_manifest_is_taken_as_it_is(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "b/foreign", 7, state=False)
    (checkpoint / MANIFEST_FILE).unlink()
    (checkpoint / "pytorch_model.bin").write_bytes(b"never")
    location = Choice("Gcs", {"bucket": f"file://{tmp_path}/b", "prefix": "foreign"})
    found = sources.find(location, base=tmp_path, cache=tmp_path / "cache")
    assert sorted(path.name for path in found.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]


def listed_checkpoint(folder: Path) -> tuple[Path, Choice]:
    """A checkpoint as other Psyche clients leave it in a bucket: a list of files, and a shard of an older model."""
    place = folder / "b/theirs"
    place.mkdir(parents=True)
    made = make_checkpoint(folder / "made", 3)
    for name in ("config.json", "model.safetensors"):
        (place / name).write_bytes((made / name).read_bytes())
    (place / "model-00002-of-00002.safetensors").write_bytes(b"an older model's")
    entry = {"filename": "model.safetensors", "generation": 1719, "size_bytes": (place / "model.safetensors").stat().st_size}
    about = {"timestamp": "2025-06-01T00:00:00Z", "epoch": 2, "step": 3, "run_id": "theirs"}
    (place / "manifest.json").write_text(json.dumps({"metadata": about, "files": [entry]}))
    return place, Choice("Gcs", {"bucket": f"file://{folder}/b", "prefix": "theirs"})


async def test_of_another_clients_checkpoint_the_listed_weights_are_fetched_once(tmp_path: Path) -> None:
    place, location = listed_checkpoint(tmp_path)
    found = sources.find(location, base=tmp_path, cache=tmp_path / "cache")
    assert {path.name for path in found.iterdir()} == {"config.json", "manifest.json", "model.safetensors"}
    assert (found / "model.safetensors").read_bytes() == (place / "model.safetensors").read_bytes()
    (place / "model.safetensors").write_bytes(b"cut")
    assert sources.find(location, base=tmp_path, cache=tmp_path / "cache") == found, "the same list, so the same files"
    description = sources.find(location, base=tmp_path, cache=tmp_path / "cache", weights=False)
    assert {path.name for path in description.iterdir()} == {"config.json", "manifest.json"}


@pytest.mark.parametrize(("change", "said"), [("cut", "has not the size that manifest.json names"), ("gone", "has no such file")])
async def test_another_clients_checkpoint_that_is_being_replaced_is_not_taken(tmp_path: Path, change: str, said: str) -> None:
    place, location = listed_checkpoint(tmp_path)
    weights = place / "model.safetensors"
    weights.write_bytes(b"cut") if change == "cut" else weights.unlink()
    with pytest.raises(ModelError, match=said):
        sources.find(location, base=tmp_path, cache=tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("*.safetensors"))


@pytest.mark.parametrize(
    "text",
    ["{}", "[", '{"files": 3}', '{"files": []}', '{"files": [{"filename": "../x.safetensors", "size_bytes": 1}]}',
     '{"files": [{"filename": "x.safetensors", "size_bytes": true}]}'],
)  # fmt: skip
async def test_another_files_named_manifest_list_nothing(tmp_path: Path, text: str) -> None:
    place, location = listed_checkpoint(tmp_path)
    (place / "manifest.json").write_text(text)
    found = sources.find(location, base=tmp_path, cache=tmp_path / "cache")
    assert (found / "model-00002-of-00002.safetensors").is_file(), "without a list all weights are fetched"


async def test_an_unreachable_bucket_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StoreError, match="cannot be used as a bucket"):
        await BucketStore("nowhere://x").put(make_checkpoint(tmp_path / "mine", 7), run_id="r", step=7)
    with pytest.raises(ModelError, match="contains no checkpoint"):
        sources.find(Choice("Gcs", {"bucket": f"file://{tmp_path}/empty"}), base=tmp_path, cache=tmp_path)


def test_kinds_that_name_no_place_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="names no place"):
        sources.find(Choice("Ephemeral"), base=tmp_path, cache=tmp_path)


# ---------------------------------------------------------------------------------------------------------------- the Hub


class Hub(ThreadingHTTPServer):
    """What huggingface_hub needs of a Hub: repositories, commits of small files, downloads by revision."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), HubHandler)
        self.commits: dict[str, list[tuple[str, dict[str, bytes]]]] = {}
        self.requests: list[str] = []
        self.broken = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def files(self, repo: str, revision: str) -> tuple[str, dict[str, bytes]] | None:
        commits = self.commits.get(repo, [])
        found = [commit for commit in commits if revision in ("main", commit[0])]
        return found[-1] if found else None


class HubHandler(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, form: str, *args: Any) -> None:
        self.server.requests.append(form % args)

    def answer(self, status: int, content: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def json(self, value: Any, status: int = 200) -> None:
        self.answer(status, json.dumps(value).encode(), Content_Type="application/json")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = self.path.partition("?")[0].strip("/").split("/")
        if self.server.broken:
            self.json({"error": "the Hub is full"}, 507)
        elif parts == ["api", "repos", "create"]:
            name = json.loads(body)
            repo = "/".join(part for part in (name.get("organization"), name["name"]) if part)
            self.server.commits.setdefault(repo, [("0" * 40, {})])
            self.json({"url": f"{self.server.url}/{repo}", "name": repo})
        elif parts[-2] == "preupload":
            asked = json.loads(body)["files"]
            self.json({"files": [{"path": file["path"], "uploadMode": "regular", "shouldIgnore": False} for file in asked]})
        elif parts[-2] == "commit":
            repo = "/".join(parts[2:4])
            files = dict(self.server.commits[repo][-1][1])
            for line in body.splitlines():
                entry = json.loads(line)
                if entry["key"] == "file":
                    files[entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
                elif entry["key"] == "deletedFile":
                    files.pop(entry["value"]["path"], None)
            identity = hashlib.sha1(repr(sorted(files.items())).encode(), usedforsecurity=False).hexdigest()
            self.server.commits[repo].append((identity, files))
            self.json({"commitUrl": f"{self.server.url}/{repo}/commit/{identity}", "commitOid": identity, "success": True})
        else:
            self.json({"error": "unknown"}, 404)

    def do_GET(self) -> None:
        parts = self.path.partition("?")[0].strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            repo = "/".join(parts[2:4])
            revision = parts[5] if len(parts) > 5 else "main"
            found = self.server.files(repo, revision)
            if found is None:
                self.answer(404, b"{}", X_Error_Code="RepoNotFound")
            elif len(parts) > 4 and parts[4] == "tree":
                self.json([{"type": "file", "path": name, "size": len(data), "oid": "0" * 40} for name, data in found[1].items()])
            else:
                siblings = [{"rfilename": name} for name in found[1]]
                self.json({"id": repo, "modelId": repo, "sha": found[0], "siblings": siblings, "private": False})
        else:
            repo, revision, name = "/".join(parts[:2]), parts[3], "/".join(parts[4:])
            found = self.server.files(repo, revision)
            if found is None or name not in found[1]:
                self.answer(404, X_Error_Code="EntryNotFound")
            else:
                etag = hashlib.sha256(found[1][name]).hexdigest()
                self.answer(200, found[1][name], ETag=f'"{etag}"', X_Repo_Commit=found[0])

    do_HEAD = do_GET


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    import huggingface_hub.constants as constants

    server = Hub()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.url + "/{repo_id}/resolve/{revision}/{filename}")
    yield server
    server.shutdown()
    server.server_close()
    thread.join(timeout=10)


async def test_a_hub_repository_gets_a_commit_a_step_and_gives_each_back(hub: Hub, tmp_path: Path) -> None:
    store = HubStore("owner/model", token="secret", endpoint=hub.url)
    locations = {}
    for step in (1, 2):
        checkpoint = make_checkpoint(tmp_path / str(step), step)
        locations[step] = await store.put(checkpoint, run_id="r", step=step)
    for step, location in locations.items():
        assert location.settings is not None
        assert location.settings["repo_id"] == "owner/model"
        found = sources.find(location, base=tmp_path, cache=tmp_path / "cache")
        manifest = read_manifest(found)
        assert manifest is not None
        assert manifest.step == step
        verify(found, manifest)
    assert locations[1] != locations[2]


async def test_a_public_state_of_an_earlier_step_does_not_stay_on_the_hub(hub: Hub, tmp_path: Path) -> None:
    store = HubStore("owner/model", token="secret", endpoint=hub.url)
    for step in (1, 2):
        checkpoint = make_checkpoint(tmp_path / str(step), step, state=step == 1)
        location = await store.put(checkpoint, run_id="r", step=step)
        found = sources.find(location, base=tmp_path, cache=tmp_path / "cache")
        assert (found / STATE_FILE).is_file() == (step == 1)


async def test_the_description_comes_without_the_weights(hub: Hub, tmp_path: Path) -> None:
    location = await HubStore("owner/model", token="t", endpoint=hub.url).put(
        make_checkpoint(tmp_path / "1", 1), run_id="r", step=1
    )
    found = sources.find(location, base=tmp_path, cache=tmp_path / "cache", weights=False)
    assert (found / "config.json").is_file()
    assert not list(found.glob("*.safetensors"))


async def test_a_hub_that_cannot_be_reached_is_stood_in_for_by_its_cache(hub: Hub, tmp_path: Path) -> None:
    location = await HubStore("owner/model", token="t", endpoint=hub.url).put(
        make_checkpoint(tmp_path / "1", 1), run_id="r", step=1
    )
    first = sources.find(location, base=tmp_path, cache=tmp_path / "cache")
    hub.shutdown()
    hub.server_close()
    told: list[str] = []
    assert sources.find(location, base=tmp_path, cache=tmp_path / "cache", report=told.append) == first
    with pytest.raises(ModelError, match=r"psyche predownload|no repository"):
        sources.find(Choice("Hub", {"repo_id": "owner/other"}), base=tmp_path, cache=tmp_path / "cache")


async def test_what_the_hub_refuses_is_one_sentence(hub: Hub, tmp_path: Path) -> None:
    hub.broken = True
    with pytest.raises(StoreError, match="the Hub did not accept it in owner/model"):
        await HubStore("owner/model", token="t", endpoint=hub.url).put(make_checkpoint(tmp_path / "1", 1), run_id="r", step=1)
    with pytest.raises(
        ModelError, match=rf"no repository owner/unknown that we may read, and there is no folder {tmp_path}/owner/unknown"
    ):
        sources.find(Choice("Hub", {"repo_id": "owner/unknown"}), base=tmp_path, cache=tmp_path / "cache")


@pytest.mark.parametrize("path", ["a/b/c/d", "model", "./owner/name", "../name", "/nowhere/name", "owner/", "~/model", ""])
def test_a_path_without_a_folder_asks_nobody_and_says_where_it_looked(tmp_path: Path, path: str) -> None:
    (tmp_path / "base").write_text("no folder")
    told: list[str] = []
    with pytest.raises(ModelError, match="is a path, which starts at") as refused:
        sources.find(Choice("Hub", {"repo_id": path}), base=tmp_path / "base", cache=tmp_path, report=told.append)
    assert f"there is no folder {tmp_path / 'base' / path}: " in str(refused.value)
    assert told == []


def test_a_name_on_the_hub_that_is_also_a_folder_is_the_folder(tmp_path: Path) -> None:
    (tmp_path / "owner" / "name").mkdir(parents=True)
    found = sources.find(Choice("Hub", {"repo_id": "owner/name"}), base=tmp_path, cache=tmp_path)
    assert found == tmp_path / "owner" / "name"


async def test_a_bucket_that_does_not_exist_is_named(s3: str, tmp_path: Path) -> None:
    with pytest.raises(NoSuchModel, match=r"^there is no bucket s3://elsewhere; check its name$"):
        sources.find(Choice("Gcs", {"bucket": "s3://elsewhere"}), base=tmp_path, cache=tmp_path / "cache")
