"""Versions of psyche-core as given in a run's account.

Anybody can write this text, so it is parsed by a strict grammar. Here it is only compared: a client started by hand reports
that its run asks for another version, and takes part anyway. `run-manager --env-file` starts the version that the run asks for.
"""

from __future__ import annotations

import re

UNVERSIONED = ("", "test")
"""The text of a run that accepts any client."""

_NUMBER = r"[0-9]{1,20}"
_VERSION = re.compile(rf"v?({_NUMBER}(?:\.{_NUMBER})*)(?:(a|b|rc)({_NUMBER}))?(?:\.post({_NUMBER}))?(?:\.dev({_NUMBER}))?")

_RELEASE = re.compile(r"[0-9]+(?:\.[0-9]+)*")


def canonical_version(text: str) -> str | None:
    """A version in PEP 440's form without insignificant zeros; None if the text is not a version.

    Epochs and local parts (`1!2`, `2+cu12`) are not accepted, because no public index has such versions.
    """
    found = _VERSION.fullmatch(text)
    if found is None:
        return None

    release = [int(number) for number in found[1].split(".")]
    while len(release) > 2 and release[-1] == 0:
        release.pop()
    written = ".".join(map(str, release if len(release) > 1 else [*release, 0]))
    written += f"{found[2]}{int(found[3])}" if found[2] else ""
    written += f".post{int(found[4])}" if found[4] else ""
    return written + (f".dev{int(found[5])}" if found[5] else "")


def is_later(version: str, *, than: str) -> bool:
    """Whether a version's release is later than another's. Both from `canonical_version`; suffixes such as rc are ignored."""
    one, other = ([int(part) for part in _RELEASE.match(text)[0].split(".")] for text in (version, than))  # type: ignore[index]
    length = max(len(one), len(other))
    return one + [0] * (length - len(one)) > other + [0] * (length - len(other))


def asks_for_another(text: str, *, ours: str) -> str | None:
    """The version that a run asks for if it differs from ours.

    None if it is ours, if any version is accepted, and for a text that is not a version, such as an image.
    """
    if text in (*UNVERSIONED, ours):
        return None

    version = canonical_version(text)
    return None if version == canonical_version(ours) else version


def warning_about(text: str, *, ours: str) -> str | None:
    """A sentence for a member whose client is another than the run asks for; None as `asks_for_another`."""
    wanted = asks_for_another(text, ours=ours)
    if wanted is None:
        return None

    return (
        f"the run asks for version {wanted} of the client, this is {ours}; a difference may cost you your place. "
        "`psyche run-manager --env-file` runs the version a run asks for"
    )
