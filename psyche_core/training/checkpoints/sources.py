"""Finds the folder of a checkpoint on this machine, and downloads it if necessary: from the Hub, a bucket or a local folder.

A local folder with the repository's name comes first, as in transformers. Only `owner/name` is a name on the Hub; everything else
is a path, so that a mistyped path never causes a network request. A finished download is not downloaded again and works without a
network; an interrupted one is resumed. If a bucket's checkpoint has a manifest, it is put in the cache only after every byte was
compared with the manifest. One that another Psyche client stored has a list of its files (`listed_files`). Only safetensors,
JSON, tokenizer and template files are fetched, never code or pickle. The *description* of a model is its checkpoint without the
weights, for a client that gets the weights from other members. Checkpoint kinds without a location raise ModelError. All
functions block: call them in a worker thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psyche_core.config.run_config import Choice, LLMConfig
from psyche_core.errors import ModelError, NoSuchBucket, NoSuchModel, PluginFailed, StoreError, UserError
from psyche_core.interfaces.store import ModelStore, Proceed, go_on
from psyche_core.storage.checkpoint_names import MANIFEST_FILE
from psyche_core.storage.folders import resumed_folder, whole_folder
from psyche_core.storage.model_stores.interface import OpenStore
from psyche_core.storage.model_stores.url import is_hub_name
from psyche_core.storage.object_store import open_bucket
from psyche_core.text_safety import printable
from psyche_core.training.checkpoints.listed_files import LIST_FILE, MAX_LIST_BYTES, parse_list, wrong_size
from psyche_core.training.checkpoints.manifest import MAX_MANIFEST_BYTES, DamagedCheckpoint, parse_manifest, verify

WEIGHT_PATTERNS = ("*.safetensors", "*.safetensors.index.json")
DESCRIPTION_PATTERNS = ("*.json", "tokenizer.model", "*.txt", "*.jinja")
_NO_WEIGHTS = ("*.safetensors.index.json",)
_HUB_EXTRA = "a model on the Hub needs huggingface_hub: pip install 'psyche-core[train]'"

MAX_WEIGHT_BYTES = 2**40
MAX_DESCRIPTION_BYTES = 2**30
"""Longest file of a bucket that is fetched, of weights and of other files; our own files have at most 5 GB."""

_KEEP_ON = (StoreError, OSError, KeyboardInterrupt, asyncio.CancelledError)
"""Exceptions after which a download can be continued later."""

Report = Callable[[str], None]
"""Function that shows a sentence about a long download."""


def find(
    checkpoint: Choice,
    *,
    base: Path,
    cache: Path,
    weights: bool = True,
    report: Report | None = None,
    open_store: OpenStore = open_bucket,
    proceed: Proceed = go_on,
) -> Path:
    """Return the folder of a checkpoint. Downloads it if necessary.

    checkpoint: `model.LLM.checkpoint`. base: folder at which a relative local path starts. cache: folder for downloads from
    buckets; downloads from the Hub go to the Hub's own cache. weights: False for the description only. open_store: opens
    buckets; where a URL may be a plugin's, `plugins.model_stores` has one. proceed: called between the parts of a bucket's files;
    what it raises ends the download. Raises NoSuchModel if there is no such checkpoint, and ModelError with a message that says
    what to do.
    """
    settings = checkpoint.settings or {}
    report = report or _silence
    match checkpoint.name:
        case "Hub" | "P2P":
            return _hub(settings, base=base, weights=weights, report=report)
        case "Gcs" | "P2PGcs":
            opened = _Opened(open_store, report, proceed)
            return _bucket(settings, cache=cache, weights=weights, opened=opened)
        case _:
            message = (
                f"a checkpoint of kind {checkpoint.name} names no place to load the model from; "
                'write for instance checkpoint = { Hub = { repo_id = "owner/name, or a local folder" } }'
            )
            raise ModelError(message)


def _silence(sentence: str) -> None:
    """Ignore the sentence."""


def model_name(llm: LLMConfig) -> str:
    """Return a readable name of the model with which a run begins: its location and its architecture."""
    settings = llm.checkpoint.settings or {}
    place = settings.get("repo_id") or "/".join(filter(None, (settings.get("bucket"), settings.get("prefix"))))
    return f"{place!r} ({llm.architecture})" if place else llm.architecture


def local_folder(checkpoint: Choice, *, base: Path) -> Path | None:
    """Return the local folder of a checkpoint, or None if there is none. Raises NoSuchModel if it also has a revision."""
    settings = checkpoint.settings or {}
    if checkpoint.name not in ("Hub", "P2P"):
        return None

    folder: Path = base / settings["repo_id"]
    if not folder.is_dir():
        return None
    if "revision" in settings:
        message = f"the checkpoint {settings['repo_id']} is a local folder, which has no revision; remove the key revision"
        raise NoSuchModel(message)
    return folder


# ---------------------------------------------------------------------------------------------------------------- the Hub


def _hub(settings: dict[str, Any], *, base: Path, weights: bool, report: Report) -> Path:
    folder = local_folder(Choice("Hub", settings), base=base)
    if folder is not None:
        return folder

    repo, revision = settings["repo_id"], settings.get("revision")
    if not is_hub_name(repo):
        message = (
            f"there is no folder {base / repo}: the checkpoint {printable(repo)!r} is a path, which starts at {base} "
            "(use --base for another folder); a repository of the Hub is written owner/name"
        )
        raise NoSuchModel(message)
    try:
        import huggingface_hub as hub
        from huggingface_hub import errors
    except ModuleNotFoundError as error:
        raise ModelError(_HUB_EXTRA) from error

    patterns = [*DESCRIPTION_PATTERNS, *(WEIGHT_PATTERNS if weights else ())]
    ignored = None if weights else list(_NO_WEIGHTS)
    try:
        report(f"looking for {repo} on the Hub")
        found = hub.snapshot_download(repo, revision=revision, allow_patterns=patterns, ignore_patterns=ignored)
    except errors.HFValidationError as error:
        message = f"there is no folder {base / repo}, and {repo!r} is not the name of a repository: {_first_line(error)}"
        raise NoSuchModel(message) from error
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.GatedRepoError) as error:
        at = f" at revision {revision}" if revision else ""
        message = (
            f"the Hub has no repository {repo}{at} that we may read, and there is no folder {base / repo}; check the "
            "name, or log in (`hf auth login`, or HF_TOKEN) if it is private"
        )
        raise NoSuchModel(message) from error
    except Exception as error:  # no network or no space: many exception types; the cache may have the files
        try:
            found = hub.snapshot_download(
                repo, revision=revision, allow_patterns=patterns, ignore_patterns=ignored, local_files_only=True
            )
        except Exception:  # as above
            message = (
                f"there is no folder {base / repo}, {repo} is not in the Hub's cache, and the Hub cannot be reached: "
                f"{_first_line(error)}; download it with a working network (`psyche predownload`), or name a folder"
            )
            raise ModelError(message) from error

        report(f"the Hub cannot be reached; {repo} is taken from its cache")

    return _with_config(Path(str(found)), f"the repository {repo}")


# --------------------------------------------------------------------------------------------------------------- buckets


@dataclass(frozen=True, slots=True)
class _Opened:
    """Options of downloads: how buckets are opened, how long downloads are reported, and a function that may end a download."""

    open_store: OpenStore
    report: Report
    proceed: Proceed


def _bucket(settings: dict[str, Any], *, cache: Path, weights: bool, opened: _Opened) -> Path:
    bucket, prefix = settings["bucket"], settings.get("prefix", "").strip("/")
    where = f"{bucket}/{prefix}" if prefix else str(bucket)
    try:
        store = opened.open_store(bucket)
    except (PluginFailed, UserError) as error:  # a plugin or its settings are missing
        message = f"the checkpoint in {printable(where)} cannot be opened: {error.sentence}"
        raise (NoSuchModel if isinstance(error, UserError) else ModelError)(message) from error
    except StoreError as error:
        raise _not_downloaded(where, error) from error

    with contextlib.closing(store):
        return _from_store(store, prefix, where=where, cache=cache, weights=weights, opened=opened)


def _from_store(store: ModelStore, prefix: str, *, where: str, cache: Path, weights: bool, opened: _Opened) -> Path:
    start = f"{prefix}/" if prefix else ""
    try:
        text = store.get(f"{start}{MANIFEST_FILE}", max_bytes=MAX_MANIFEST_BYTES)
        if text is None:
            return _without_manifest(store, start, where=where, cache=cache, weights=weights, opened=opened)

        manifest = parse_manifest(text, source=f"{where}/{MANIFEST_FILE}")
        kind = "whole" if weights else "description"
        folder = _place(cache, where, hashlib.sha256(text).hexdigest()[:16], kind)
        if folder.is_dir():
            return folder

        names = manifest.file_names if weights else tuple(sorted(manifest.files))
        with resumed_folder(folder, keep_on=_KEEP_ON) as partial:
            _download(store, start, names, into=partial, where=where, opened=opened)
            (partial / MANIFEST_FILE).write_bytes(text)
            verify(partial, manifest if weights else manifest.model_copy(update={"tensors": {}}))
    except DamagedCheckpoint as error:
        message = f"what was downloaded from {where} is not what its {MANIFEST_FILE} lists: {error.fact}"
        raise DamagedCheckpoint(message) from error
    except NoSuchBucket as error:
        raise NoSuchModel(str(error)) from error
    except StoreError as error:
        raise _not_downloaded(where, error) from error
    except OSError as error:
        message = f"the checkpoint in {where} cannot be saved in {cache}: {error.strerror or error}"
        raise ModelError(message) from error

    return _with_config(folder, where)


def _not_downloaded(where: str, error: StoreError) -> ModelError:
    return ModelError(f"the checkpoint in {where} cannot be downloaded: {error}")


def _without_manifest(store: ModelStore, start: str, *, where: str, cache: Path, weights: bool, opened: _Opened) -> Path:
    """Fetch a checkpoint without our manifest, stored by another tool.

    If it has a list of its files, only the listed weights are fetched, and their sizes are compared. Without a list we cannot
    know whether the checkpoint has changed, so it is downloaded again each time.
    """
    names = [name.removeprefix(start) for name in store.names(start)]
    wanted = [name for name in names if "/" not in name and _is_wanted(name, weights=weights)]
    if "config.json" not in wanted:
        message = (
            f"{where} contains no checkpoint: no {MANIFEST_FILE} and no config.json; got {', '.join(names[:5]) or 'nothing'}"
        )
        raise NoSuchModel(message)

    sizes, version = _listed(store, start) if LIST_FILE in names else ({}, "unlisted")
    absent = sorted(sizes.keys() - set(names))
    if weights and absent:
        message = f"{where} lists {absent[0]} in {LIST_FILE}, and has no such file: its upload did not end; try again later"
        raise StoreError(message)

    folder = _place(cache, where, version, "whole" if weights else "description")
    if sizes and folder.is_dir():
        return folder
    if sizes:
        wanted = [name for name in wanted if name in sizes or not name.endswith(".safetensors")]
    with whole_folder(folder) as partial:
        _download(store, start, wanted, into=partial, where=where, opened=opened)
        other = wrong_size(sizes, {name: (partial / name).stat().st_size for name in wanted}, wanted)
        if other is not None:
            message = f"{other} has not the size that {LIST_FILE} names: it is being replaced; try again later"
            raise StoreError(message)
    return folder


def _listed(store: ModelStore, start: str) -> tuple[Mapping[str, int], str]:
    """Return the sizes of the listed files and a version name for the list; no sizes if the file is not such a list."""
    text = store.get(f"{start}{LIST_FILE}", max_bytes=MAX_LIST_BYTES)
    sizes = None if text is None else parse_list(text, start=start)
    if text is None or sizes is None:
        return {}, "unlisted"

    return sizes, f"listed-{hashlib.sha256(text).hexdigest()[:16]}"


def _download(store: ModelStore, start: str, names: Iterable[str], *, into: Path, where: str, opened: _Opened) -> None:
    names = list(names)
    for number, name in enumerate(names, start=1):
        opened.report(f"downloading {name} of {where}, file {number} of {len(names)}")
        most = MAX_WEIGHT_BYTES if name.endswith(".safetensors") else MAX_DESCRIPTION_BYTES
        store.get_file(f"{start}{name}", into / name, max_bytes=most, proceed=opened.proceed)


def _place(cache: Path, where: str, version: str, kind: str) -> Path:
    """Return the folder for a bucket's checkpoint. It uses a hash, because names of buckets are not valid folder names."""
    return cache / "checkpoints" / f"{hashlib.sha256(where.encode()).hexdigest()[:16]}-{version}-{kind}"


def _is_wanted(name: str, *, weights: bool) -> bool:
    if name.endswith((".safetensors", ".safetensors.index.json")):
        return weights
    return any(Path(name).match(pattern) for pattern in DESCRIPTION_PATTERNS)


def _with_config(folder: Path, what: str) -> Path:
    if not (folder / "config.json").is_file():
        message = f"{what} holds no config.json, so it is no model that transformers could read"
        raise NoSuchModel(message)

    return folder


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
