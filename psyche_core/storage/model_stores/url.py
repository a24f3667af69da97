"""Locations of models, each written as one URL: `hf://owner/name`, `gs://bucket/prefix`, `s3://bucket/prefix`, `file:///folder`.

A plugin of the kind `store` adds a scheme: `SCHEME://host/folder`. This module only checks the text. `stores` stores models there
and `training.checkpoints.sources` reads them.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

from psyche_core.config.run_config import Choice
from psyche_core.errors import ConfigError

FORMS = "hf://OWNER/NAME, gs://BUCKET/PREFIX, s3://BUCKET/PREFIX or file:///FOLDER"
OWN_SCHEMES = ("hf", "gs", "s3", "file")
"""Schemes of psyche-core itself, which a plugin must not use."""

SCHEME = re.compile(r"[a-z][a-z0-9+-]{1,30}")
"""The form of a URL's scheme, which is also the name of a plugin of the kind `store`."""

_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,221}[a-z0-9]")
_HUB_URL = re.compile(r"[\w.-]+(/[\w.-]+)?")
_PLUGINS_URL = re.compile(r"[a-z][a-z0-9+-]*://[^\s/\\\x00-\x1f\x7f]+(/[^\s\\\x00-\x1f\x7f]*)?")
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ModelUrl:
    """The location of a model.

    name: the Hub's `owner/name`, a bucket, a folder from the root (`/net/models`), or a plugin's whole URL. prefix: folder in a
    bucket, "" for none. revision: commit, branch or tag of a Hub repository (`hf://owner/name@main`), None for its newest.
    """

    scheme: str
    name: str
    prefix: str = ""
    revision: str | None = None

    @property
    def is_plugins(self) -> bool:
        """Whether the scheme is a plugin's."""
        return self.scheme not in OWN_SCHEMES

    @property
    def bucket(self) -> str:
        """The bucket as run configurations write it: a bucket of Google's by its name alone, all others by URL."""
        return f"s3://{self.name}" if self.scheme == "s3" else self.name

    def checkpoint(self) -> Choice:
        """Return the model at exactly this location, as a run configuration names it (`model.LLM.checkpoint`)."""
        if self.scheme not in ("hf", "file"):
            return Choice("Gcs", {"bucket": self.bucket, **({"prefix": self.prefix} if self.prefix else {})})

        return Choice("Hub", {"repo_id": self.name, **({"revision": self.revision} if self.revision else {})})


def scheme_of(place: str) -> str:
    """Return the scheme of a bucket or URL in a run configuration; empty for a bucket that is a plain name."""
    scheme, separator, _ = place.partition("://")
    return scheme if separator else ""


def parse_model_url(text: str, *, schemes: Collection[str] = ()) -> ModelUrl:
    """Read a URL. schemes: those of installed plugins. Raises ConfigError with a sentence that says what is expected."""
    try:
        parts = urlsplit(text)
        _ = parts.port  # urlsplit checks the port only when it is read
    except ValueError:
        raise _unreadable(text, schemes) from None

    if parts.query or parts.fragment or "?" in text or "#" in text:
        raise _unreadable(text, schemes)
    if parts.scheme in schemes and parts.scheme not in OWN_SCHEMES:
        return _of_plugin(text, parts.scheme, host=parts.hostname, user=parts.username is not None)
    if parts.scheme == "hf":
        name, at, revision = f"{parts.netloc}{parts.path}".strip("/").partition("@")
        if _HUB_URL.fullmatch(name) and bool(at) == bool(revision):
            return ModelUrl("hf", name, revision=revision or None)
    elif parts.scheme in ("gs", "s3"):
        prefix = unquote(parts.path).strip("/")
        if _BUCKET.fullmatch(parts.netloc) and ".." not in prefix.split("/"):
            return ModelUrl("gs" if parts.scheme == "gs" else "s3", parts.netloc, prefix=prefix)
    elif parts.scheme == "file" and not parts.netloc and parts.path.strip("/"):
        return ModelUrl("file", str(PurePosixPath(unquote(parts.path))))
    raise _unreadable(text, schemes)


def _of_plugin(text: str, scheme: str, *, host: str | None, user: bool) -> ModelUrl:
    if user:
        message = (
            f"the URL of a model store must have no user and no password, because a run shows it to everybody; leave them out of "
            f"{scheme}://…@{host}, and give them as options of the plugin ({scheme})"
        )
        raise ConfigError(message)
    if not (host and _PLUGINS_URL.fullmatch(text)) or {".", ".."} & {*unquote(text).split("/")}:
        message = f"{text!r:.200} is not the URL of a model store; expected {scheme}://HOST/FOLDER, without blanks and without .."
        raise ConfigError(message)
    return ModelUrl(scheme, text.rstrip("/"))


def is_hub_name(text: str) -> bool:
    """Whether a checkpoint's `repo_id` has the form of a repository of the Hub, `owner/name`. Otherwise it is a path."""
    return _HUB_NAME.fullmatch(text) is not None


def _unreadable(text: str, schemes: Collection[str]) -> ConfigError:
    others = "".join(f", or {scheme}://…" for scheme in sorted({*schemes} - {*OWN_SCHEMES}))
    message = f"{text!r:.200} is not the URL of a model store; expected {FORMS}{others}"
    return ConfigError(message)
