"""Where models are stored, written as one URL: `hf://owner/name`, `gs://bucket/prefix`, `s3://bucket/prefix`, `file:///folder`.

Only the text is judged here. Who stores is in `stores`, who reads in `training.checkpoints.sources`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal
from urllib.parse import unquote, urlsplit

from psyche_core.config.run_config import Choice
from psyche_core.errors import ConfigError

FORMS = "hf://OWNER/NAME, gs://BUCKET/PREFIX, s3://BUCKET/PREFIX or file:///FOLDER"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,221}[a-z0-9]")
_HUB_URL = re.compile(r"[\w.-]+(/[\w.-]+)?")
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ModelUrl:
    """A place for models. name: the Hub's `owner/name`, a bucket, or a folder from the root (`/net/models`).

    prefix: folder in a bucket, "" for none. revision: commit, branch or tag of a Hub repository (`hf://owner/name@main`), None
    for its newest.
    """

    scheme: Literal["hf", "gs", "s3", "file"]
    name: str
    prefix: str = ""
    revision: str | None = None

    @property
    def bucket(self) -> str:
        """The bucket as run configurations name it: one of Google's by its name alone, one of S3 as `s3://name`."""
        return f"s3://{self.name}" if self.scheme == "s3" else self.name

    def checkpoint(self) -> Choice:
        """The model at exactly this place, as a run configuration names it (`model.LLM.checkpoint`)."""
        if self.scheme in ("gs", "s3"):
            return Choice("Gcs", {"bucket": self.bucket, **({"prefix": self.prefix} if self.prefix else {})})

        return Choice("Hub", {"repo_id": self.name, **({"revision": self.revision} if self.revision else {})})


def parse_model_url(text: str) -> ModelUrl:
    """Read a URL. Raises ConfigError, with a sentence that says what was expected."""
    try:
        parts = urlsplit(text)
    except ValueError:
        raise _unreadable(text) from None

    if parts.query or parts.fragment:
        raise _unreadable(text)
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
    raise _unreadable(text)


def is_hub_name(text: str) -> bool:
    """Whether a checkpoint's `repo_id` has the form of a repository of the Hub, `owner/name`. Otherwise it is a path."""
    return _HUB_NAME.fullmatch(text) is not None


def _unreadable(text: str) -> ConfigError:
    message = f"{text!r:.200} is not the URL of a model store; expected {FORMS}"
    return ConfigError(message)
