"""Opens the store for models that a client's options name: `--model-store`, `--hub-repo` or `--gcs-bucket`.

The stores themselves are in `storage.model_stores`, which knows neither options nor plugins.
"""

from __future__ import annotations

from psyche_core.config.options.client import ClientSettings
from psyche_core.errors import ConfigError
from psyche_core.plugins import PluginRegistry
from psyche_core.plugins.model_stores import StoreOpener, store_schemes
from psyche_core.storage.model_stores.interface import CheckpointStore, RetentionPolicy
from psyche_core.storage.model_stores.stores import MAX_NAME_BYTES, BucketStore, FolderStore, HubStore
from psyche_core.storage.model_stores.url import is_hub_name, parse_model_url


def open_store(settings: ClientSettings, registry: PluginRegistry, stores: StoreOpener) -> CheckpointStore | None:
    """Return the user's store, in which we store a model when it is our turn after an epoch; None without one.

    Blocks, because it may import a plugin. Raises ConfigError; for a plugin's URL also PluginError and what its `check` and
    `create` raise.
    """
    places = [place for place in (settings.model_store, settings.hub_repo, settings.gcs_bucket) if place is not None]
    if not places:
        return None
    if len(places) > 1:
        message = "say one place for models: --model-store, --hub-repo or --gcs-bucket"
        raise ConfigError(message)
    if settings.checkpoint_dir is None:
        message = "storing models needs --checkpoint-dir: a model is saved there, then stored"
        raise ConfigError(message)

    keep = RetentionPolicy(steps=settings.keep_steps, delete=settings.delete_old_steps)
    if settings.gcs_bucket is not None:
        return BucketStore(settings.gcs_bucket, prefix=settings.gcs_prefix, keep=keep)
    if settings.hub_repo is not None:
        return _hub_or_folder(settings.hub_repo, settings, keep=keep)

    url = parse_model_url(places[0], schemes=store_schemes(registry))
    if url.is_plugins:
        if len(url.bucket.encode()) > MAX_NAME_BYTES:
            message = (
                f"--model-store {url.bucket}: has {len(url.bucket.encode())} bytes, and a run's configuration carries at most "
                f"{MAX_NAME_BYTES}; use a shorter URL"
            )
            raise ConfigError(message)
        stores.check(url.bucket)
        return BucketStore(url.bucket, keep=keep, open_store=stores)
    if url.scheme in ("gs", "s3"):
        return BucketStore(url.bucket, prefix=url.prefix, keep=keep)
    if url.revision is not None:
        message = f"--model-store {places[0]}: leave out @{url.revision}; each stored model becomes a commit of its own"
        raise ConfigError(message)
    return HubStore(url.name) if url.scheme == "hf" else FolderStore(url.name, base=settings.base, keep=keep)


def _hub_or_folder(place: str, settings: ClientSettings, *, keep: RetentionPolicy) -> CheckpointStore:
    """Return a store for `--hub-repo`, which may name an existing folder, as a run configuration's `repo_id` may."""
    if (settings.base / place).is_dir():
        return FolderStore(place, base=settings.base, keep=keep)
    if not is_hub_name(place):
        message = (
            f"--hub-repo: there is no folder {settings.base / place}, where {place!r} would be (relative ones start at --base); "
            "a repository of the Hub is written owner/name"
        )
        raise ConfigError(message)
    return HubStore(place)
