"""The files below a collection of a WebDAV server.

A file is written under a name of its own and then moved to its name, so that nobody sees a part of it. Collections are made when
something is stored in them.
"""

from __future__ import annotations

import contextlib
import ssl
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn
from urllib.parse import quote, unquote, urlsplit

import httpx

from psyche_core.errors import StoreError
from psyche_core.interfaces.store import PART_BYTES, UNFINISHED, ModelStore, Proceed
from psyche_store_webdav.listing import MAX_ANSWER_BYTES, QUESTION, members
from psyche_store_webdav.settings import DavSettings
from psyche_store_webdav.tls import own_context, refusal

MOST_FOLDERS = 10_000
"""Collections that are looked into for one list."""

_HINTS = {
    401: "give --dav-host, --dav-user and PSYCHE_DAV_PASSWORD",
    403: "ask who runs it for the right to do that",
    423: "somebody has locked it; try again later",
    502: "if a proxy is before it, tell the server that it is asked over https: it compares that with where MOVE goes",
    507: "it has no space left; delete old models, or use another server",
}


class WebDav(ModelStore):
    """See the module. url: of the collection, dav:// or davs://; it need not be there yet. Raises UserError for a CA file."""

    def __init__(self, url: str, settings: DavSettings) -> None:
        parts = urlsplit(url)
        self._origin = f"{'https' if parts.scheme == 'davs' else 'http'}://{parts.netloc}"
        self._path = unquote(parts.path).rstrip("/")
        self._made: set[str] = set()
        password = settings.dav_password
        auth = None if settings.dav_user is None or password is None else (settings.dav_user, password.get_secret_value())
        # Nothing of dav:// is encrypted: it trusts nobody, and need not read all CAs for that.
        trusted = own_context(settings) or True if parts.scheme == "davs" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._client = httpx.Client(
            auth=auth,
            timeout=settings.dav_timeout,
            headers={"Accept-Encoding": "identity"},
            verify=trusted,
        )

    def names(self, prefix: str) -> list[str]:
        """Collection by collection: many servers refuse to list a whole tree."""
        begin = prefix.rpartition("/")[0]
        waiting, found, looked = [begin], [], 0
        while waiting:
            folder = waiting.pop()
            looked += 1
            if looked > MOST_FOLDERS:
                message = f"{self._origin}{self._path} has more than {MOST_FOLDERS} folders; use an emptier one"
                raise StoreError(message)
            for name, is_folder in self._members(folder):
                whole = f"{folder}/{name}".removeprefix("/")
                if is_folder and (f"{whole}/".startswith(prefix) or prefix.startswith(f"{whole}/")):
                    waiting.append(whole)
                elif not is_folder and whole.startswith(prefix) and not name.endswith(UNFINISHED):
                    found.append(whole)
        return sorted(found)

    def put_file(self, name: str, path: Path, *, proceed: Proceed) -> None:
        """PUT under another name, then MOVE."""
        folder, _, last = name.rpartition("/")
        self._make(f"{self._path}/{folder}".rstrip("/"))
        unfinished = f"{folder}/.{last[:100]}.{uuid.uuid4().hex}{UNFINISHED}".removeprefix("/")
        what = f"write {name}"
        try:
            size = path.stat().st_size
            length = {"Content-Length": str(size)}
            self._ask("PUT", self._url(unfinished), what, headers=length, content=_parts(path, size, proceed))
            target = {"Destination": self._url(name), "Overwrite": "T"}
            self._ask_again("MOVE", self._url(unfinished), what, headers=target)
        except BaseException as error:
            with contextlib.suppress(StoreError):
                self._ask("DELETE", self._url(unfinished), what, also=(404,))
            if isinstance(error, OSError):
                message = f"cannot {what}: {path} cannot be read: {error.strerror or error}"
                raise StoreError(message) from error
            raise

    def get_file(self, name: str, path: Path, *, max_bytes: int, proceed: Proceed) -> None:
        """GET from the end of what is there."""
        what = f"read {name}"
        size = _length(self._ask("HEAD", self._url(name), what), what)
        there = path.stat().st_size if path.exists() else 0
        if size > max_bytes:
            message = f"{name} at {self._url()} has {size} bytes, over the limit of {max_bytes}"
            raise StoreError(message)
        if there > size:
            path.unlink()
            message = f"{name} at {self._url()} has {size} bytes, fewer than an earlier attempt downloaded; try again"
            raise StoreError(message)

        headers = {"Range": f"bytes={there}-{size - 1}"} if there else {}
        try:
            with path.open("ab") as file:
                if there == size:
                    return
                with self._client.stream("GET", self._url(name), headers=headers) as answer:
                    if answer.status_code not in (200, 206):
                        self._refused(answer, what)
                    skip = there if answer.status_code == 200 else 0  # it does not know ranges
                    proceed()
                    for received in answer.iter_raw(PART_BYTES):
                        part = received[skip:][: size - there]
                        skip -= len(received) - len(received[skip:])
                        file.write(part)
                        there += len(part)
                        proceed()
        except httpx.HTTPError as error:
            self._failed(error, what)
        except OSError as error:
            message = f"cannot {what}: {path} cannot be written: {error.strerror or error}"
            raise StoreError(message) from error

        if there < size:
            message = f"cannot {what} from {self._url()}: it ended after {there} of {size} bytes; try again"
            raise StoreError(message)

    def get(self, name: str, *, max_bytes: int) -> bytes | None:
        """GET, and no more than the limit of it."""
        what, found = f"read {name}", bytearray()
        try:
            with self._client.stream("GET", self._url(name)) as answer:
                if answer.status_code == 404:
                    return None
                if answer.status_code != 200:
                    self._refused(answer, what)
                for part in answer.iter_raw(2**16):
                    found += part
                    if len(found) > max_bytes:
                        message = f"{name} at {self._url()} has more bytes than the limit of {max_bytes}"
                        raise StoreError(message)
        except httpx.HTTPError as error:
            self._failed(error, what)
        return bytes(found)

    def delete(self, names: Sequence[str]) -> None:
        """DELETE each; empty collections stay, since somebody may be about to store something there."""
        for name in names:
            self._ask("DELETE", self._url(name), f"delete {name}", also=(404,))

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _url(self, name: str = "") -> str:
        return f"{self._origin}{quote(f'{self._path}/{name}'.rstrip('/') or '/')}"

    def _members(self, folder: str) -> Iterator[tuple[str, bool]]:
        path = f"{self._path}/{folder}".rstrip("/")
        what, found = f"list {folder or 'it'}", bytearray()
        headers = {"Depth": "1", "Content-Type": "application/xml"}
        try:
            with self._client.stream("PROPFIND", f"{self._origin}{quote(path)}/", headers=headers, content=QUESTION) as answer:
                if answer.status_code == 404:
                    return
                if answer.status_code != 207:
                    self._refused(answer, what)
                for part in answer.iter_raw(2**16):
                    found += part
                    if len(found) > MAX_ANSWER_BYTES:
                        message = f"cannot {what} at {self._url()}: the list is longer than {MAX_ANSWER_BYTES} bytes"
                        raise StoreError(message)
            yield from members(bytes(found), path)
        except httpx.HTTPError as error:
            self._failed(error, what)
        except ValueError as error:
            message = f"cannot {what} at {self._url()}: the answer is no list of WebDAV, {error}; is the URL right?"
            raise StoreError(message) from error

    def _make(self, path: str) -> None:
        """Make a collection, and what is above it where that is missing."""
        if not path or path in self._made:
            return
        url, what = f"{self._origin}{quote(path)}/", f"make the folder {path}"
        answer = self._ask_again("MKCOL", url, what, also=(405, 409))  # it is there; there is nothing above it
        if answer.status_code == 409:
            self._make(path.rpartition("/")[0])
            self._ask_again("MKCOL", url, what, also=(405,))
        self._made.add(path)

    def _ask_again(
        self, method: str, url: str, what: str, *, headers: dict[str, str] | None = None, also: Sequence[int] = ()
    ) -> httpx.Response:
        """Ask up to three times: some servers answer 500 if somebody else makes or moves the same name at the same moment."""
        for _ in range(2):
            answer = self._ask(method, url, what, headers=headers, also=(*also, 500))
            if answer.status_code != 500:
                return answer
        return self._ask(method, url, what, headers=headers, also=also)

    def _ask(
        self,
        method: str,
        url: str,
        what: str,
        *,
        headers: dict[str, str] | None = None,
        content: Iterator[bytes] | None = None,
        also: Sequence[int] = (),
    ) -> httpx.Response:
        try:
            with self._client.stream(method, url, headers=headers, content=content) as answer:
                if not (answer.is_success and answer.status_code != 207) and answer.status_code not in also:
                    self._refused(answer, what)
                return answer
        except httpx.HTTPError as error:
            self._failed(error, what)

    def _refused(self, answer: httpx.Response, what: str) -> NoReturn:
        status = answer.status_code
        hint = _HINTS.get(status, "is the URL right?")
        if answer.has_redirect_location:
            hint = f"it sends us to {answer.headers['Location'][:200]!r}, and no redirect is followed; use the right URL"
        message = f"cannot {what} at {self._url()}: the server answered {status} {answer.reason_phrase}; {hint}"
        raise StoreError(message)

    def _failed(self, error: httpx.HTTPError, what: str) -> NoReturn:
        refused = refusal(error)
        reason = f"{str(error) or type(error).__name__}; does the server run, and can it be reached from here?"
        message = f"cannot {what} at {self._url()}: {refused or reason}"
        raise StoreError(message) from error


def _parts(path: Path, size: int, proceed: Proceed) -> Iterator[bytes]:
    """Exactly `size` bytes of a file."""
    with path.open("rb") as file:
        while size > 0:
            proceed()
            part = file.read(min(size, PART_BYTES))
            if not part:
                message = f"{path} became shorter while it was sent"
                raise StoreError(message)
            size -= len(part)
            yield part


def _length(answer: httpx.Response, what: str) -> int:
    text = answer.headers.get("Content-Length", "")
    if not text.isdecimal():
        message = f"cannot {what}: the server does not say how long it is, its Content-Length is {text[:40]!r}"
        raise StoreError(message)
    return int(text)
