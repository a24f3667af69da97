"""Decides which client a run asks for, from the text in its account: this installation, another version, or a container image.

Anybody can write this text, and following it runs code that its author chose. So it is parsed by a strict grammar, in which no
text can be an option or reach a shell, and it is followed only as far as the member allows:

- empty, `test`, or our own version: this installation;
- a version (`0.2.0`, `v0.2.0rc1`): psyche-core of that version from the member's package index, if the member allows it
  (`--allow-install`) and has installed psyche-core from an index. A member that installed it from a repository has never trusted
  the index, where somebody else may own the name;
- an image with a tag or a digest, or a digest alone: a container, of repositories that the member names (`--allow-image`). None
  is allowed by default.

Everything else is an error with one sentence; so is an image without a tag or a digest, which would be whatever is newest.

The reference implementation uses the whole text as tag or digest of one repository, `nousresearch/psyche-client`. Those images
hold another program with another protocol. Here a version means the same program everywhere, and an image names its repository.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from psyche_backend_solana.client_version import UNVERSIONED, canonical_version, is_later
from psyche_core.errors import ConfigError, UserError

HUB = "docker.io"
"""The host of images whose name has none. docker adds it and podman may search elsewhere, so it is always written out."""

_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_HOST = rf"{_LABEL}(?:\.{_LABEL})*(?::[0-9]{{1,5}})?"
_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"(?:(?P<host>{_HOST})/)?(?P<path>{_PART}(?:/{_PART})*)")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class ThisInstallation:
    """The client that is installed here."""

    def __str__(self) -> str:
        return "this installation's client"


@dataclass(frozen=True, slots=True)
class PipEnvironment:
    """psyche-core of a version, in a separate environment. version: in PEP 440's form."""

    version: str

    def __str__(self) -> str:
        return f"psyche-core {self.version}"


@dataclass(frozen=True, slots=True)
class Image:
    """A container image. reference: with the host, and with a tag or a digest."""

    reference: str

    def __str__(self) -> str:
        return f"the image {self.reference}"


Plan = ThisInstallation | PipEnvironment | Image


@dataclass(frozen=True, slots=True)
class Trust:
    """The choices that a member leaves to a run's owner.

    images: repositories with their host, or prefixes of them that end with `/`. install: whether versions of psyche-core may be
    installed from the package index. anything: this installation takes part, whatever version the run asks for.
    """

    images: tuple[str, ...] = ()
    install: bool = False
    anything: bool = False


def plan(text: str, *, ours: str, trust: Trust) -> Plan:
    """The client to start for a run that asks for `text`. ours: the version installed here.

    Raises UserError with one sentence.
    """
    if text in (*UNVERSIONED, ours) or trust.anything:
        return ThisInstallation()

    version = canonical_version(text)
    if version is not None:
        return _version(version, text, ours=ours, trust=trust)
    if _DIGEST.fullmatch(text):
        return Image(f"{_only_repository(text, trust)}@{text}")

    reference = read_image(text)
    if reference is None:
        message = (
            f"the run asks for client version {text!r:.120}, which is neither a version such as 0.2.0 nor an image such as "
            "ghcr.io/owner/name:tag or name@sha256:…; tell its owner, or join with this installation: --any-version"
        )
        raise UserError(message)

    repository = reference.partition("@")[0]
    repository = repository.rpartition(":")[0] if _tagged(repository) else repository
    if not any(repository == one or (one.endswith("/") and repository.startswith(one)) for one in trust.images):
        message = (
            f"the run asks for the image {reference}; this runs code of the owner of {repository}: "
            f"if you trust them, allow it with --allow-image {repository}"
        )
        raise UserError(message)

    return Image(reference)


def check_asked(text: str, *, ours: str, later: bool) -> None:
    """Check that a client could match the version an owner asks for. Raises ConfigError with one sentence if none could.

    ours: the version installed here. later: whether a later version of psyche-core is allowed, whose existence cannot be checked
    here.
    """
    if text in (*UNVERSIONED, ours) or _DIGEST.fullmatch(text) or read_image(text) is not None:
        return

    version, known = canonical_version(text), canonical_version(ours)
    if version is None:
        message = (
            f"--client-version: got {text!r:.120}, which no client can match; expected a version of psyche-core such as {ours} "
            "(what `psyche --version` prints), an image such as ghcr.io/owner/name:tag, or nothing for any client"
        )
        raise ConfigError(message)
    if known is not None and is_later(version, than=known) and not later:
        message = (
            f"--client-version: got {text!r:.120}, that is psyche-core {version}, later than {ours} which is installed here, so "
            "perhaps nobody can join; give an existing version, or --allow-later-version"
        )
        raise ConfigError(message)


def read_image(text: str) -> str | None:
    """An image's reference with its host written out; None for a text that is not an image, or has neither tag nor digest."""
    name, at, digest = text.partition("@")
    if (at and not _DIGEST.fullmatch(digest)) or text.startswith("sha256:"):
        return None  # the second is a malformed digest, not an image name

    tag = ""
    if _tagged(name):
        name, _, tag = name.rpartition(":")
        if not _TAG.fullmatch(tag):
            return None
    repository = read_repository(name)
    if repository is None or not (tag or digest):
        return None

    return repository + (f":{tag}" if tag else "") + at + digest


def read_repository(text: str) -> str | None:
    """A repository's name with its host written out; None if it is not one."""
    found = _REPOSITORY.fullmatch(text)
    if found is None:
        return None

    host, path = found["host"], found["path"]
    if host is not None and "." not in host and ":" not in host and host != "localhost":
        host, path = None, text  # a word without a dot is an owner on the hub
    if host in (None, HUB, f"index.{HUB}"):
        host, path = HUB, path if "/" in path else f"library/{path}"
    known = _REPOSITORY.fullmatch(f"{host}/{path}")
    return None if known is None or not re.fullmatch(rf"{_PART}(?:/{_PART})*", path) else f"{host}/{path}"


def read_trust(images: tuple[str, ...], *, install: bool, anything: bool) -> Trust:
    """The member's choices from --allow-image, --allow-install and --any-version. Raises ConfigError."""
    read = []
    for image in images:
        prefix = image.endswith("/")
        # a host or an owner alone is not a repository: parse it with a name after it
        repository = read_repository(f"{image}name") if prefix else read_repository(image)
        if repository is None:
            message = (
                f"--allow-image: got {image!r:.120}, expected a repository without a tag, such as ghcr.io/owner/name, "
                "or ghcr.io/owner/ for all of an owner's"
            )
            raise ConfigError(message)

        read.append(repository.removesuffix("name") if prefix else repository)
    return Trust(tuple(read), install=install, anything=anything)


def _version(version: str, text: str, *, ours: str, trust: Trust) -> Plan:
    if version == canonical_version(ours):
        return ThisInstallation()
    if trust.install:
        return PipEnvironment(version)

    message = (
        f"the run asks for client version {text!r}, this is {ours}: allow psyche-core {version} from your package index with "
        "--allow-install, or join with this installation: --any-version"
    )
    raise UserError(message)


def _only_repository(digest: str, trust: Trust) -> str:
    named = [image for image in trust.images if not image.endswith("/")]
    if len(named) == 1:
        return named[0]

    message = (
        f"the run asks for the image {digest}, which names no repository; name it with one --allow-image "
        f"OWNER/NAME, if you trust it; {len(named)} are named now"
    )
    raise UserError(message)


def _tagged(name: str) -> bool:
    """Whether a colon in an image's name starts a tag, and not the port of a host."""
    return ":" in name.rpartition("/")[2]
