"""What a server says is in a collection: the answer to PROPFIND, read with care."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator
from urllib.parse import unquote, urlsplit

MAX_ANSWER_BYTES = 32 * 2**20
QUESTION = b'<?xml version="1.0"?><propfind xmlns="DAV:"><prop><resourcetype/></prop></propfind>'


def members(answer: bytes, path: str) -> Iterator[tuple[str, bool]]:
    """Name of each member of the collection at `path` (not escaped), and whether it is a collection itself.

    Raises ValueError for what is no such answer. Members of other collections are left out.
    """
    if b"<!DOCTYPE" in answer or b"<!ENTITY" in answer:
        message = "it has a document type"
        raise ValueError(message)
    try:
        tree = ET.fromstring(answer)
    except ET.ParseError as error:
        message = f"it is no XML: {error}"
        raise ValueError(message) from error
    if tree.tag != "{DAV:}multistatus":
        message = f"it is a {tree.tag[:60]}, expected a multistatus"
        raise ValueError(message)

    above = f"{path.rstrip('/')}/"
    for response in tree.iter("{DAV:}response"):
        place = unquote(urlsplit(response.findtext("{DAV:}href", "").strip()).path)
        name = place.removeprefix(above).rstrip("/")
        if place.startswith(above) and name and "/" not in name:
            yield name, response.find(".//{DAV:}resourcetype/{DAV:}collection") is not None
