"""Decides who may see which run, by tokens from a file. Pure, except for reading that file.

A line of the file is `TOKEN` (all runs) or `RUN TOKEN` (only that run, by its name in the list of runs). If there is a line of
the first kind, all runs are private. Otherwise only the named runs are private, and visitors without a token do not see that they
exist. A browser that has sent a token stores a proof of it as a cookie, not the token; a proof is useless once its token is
removed.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path

from psyche_core.errors import ConfigError, UserError
from psyche_core.regular_files import regular
from psyche_core.text_safety import printable

MIN_TOKEN = 16
MAX_TOKEN = 256
MAX_PROOFS = 16
COOKIE = "psyche_web"
_MAX_FILE_BYTES = 1 << 20


class Access:
    """The tokens. for_all: tokens for every run; by_run: tokens for one run."""

    def __init__(self, *, for_all: Iterable[str] = (), by_run: Iterable[tuple[str, str]] = ()) -> None:
        self._for_all = [token.encode() for token in for_all]
        self._by_run = [(run, token.encode()) for run, token in by_run]

    @classmethod
    def load(cls, path: Path | None) -> Access:
        """Read the tokens of a file; without a file everything is public. Raises UserError and ConfigError with one sentence."""
        if path is None:
            return cls()
        try:
            with open(path, "rb", opener=regular) as stream:  # Path.open has no opener
                text = stream.read(_MAX_FILE_BYTES).decode()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no text"
            message = (
                f"cannot read the tokens in {path}: {why}; make one with `openssl rand -hex 24 > {path} && chmod 600 {path}`"
            )
            raise UserError(message) from error

        for_all, by_run = [], []
        for number, line in enumerate(text.splitlines(), start=1):
            words = line.partition("#")[0].split()
            if not words:
                continue
            token = words[-1]
            if not MIN_TOKEN <= len(token) <= MAX_TOKEN or not token.isascii():
                rule = f"a token has {MIN_TOKEN} to {MAX_TOKEN} ASCII characters"
                message = f"{path}, line {number}: {rule}; `openssl rand -hex 24` makes one"
                raise ConfigError(message)
            if len(words) == 1:
                for_all.append(token)
            else:
                by_run.append((printable(" ".join(words[:-1])), token))
        if not for_all and not by_run:
            message = f"{path} has no token; make one with `openssl rand -hex 24 > {path} && chmod 600 {path}`"
            raise ConfigError(message)

        return cls(for_all=for_all, by_run=by_run)

    @property
    def restricted(self) -> bool:
        """Whether anything is private."""
        return bool(self._for_all or self._by_run)

    def allowed(self, run: str, *, token: str | None, cookie: str | None) -> bool:
        """Return whether a visitor with this token or cookie may see a run."""
        if not self._for_all and run not in {name for name, _ in self._by_run}:
            return True

        opening = [*self._for_all, *(secret for name, secret in self._by_run if name == run)]
        return self._shown(opening, token, cookie)

    def grants(self, token: str) -> bool:
        """Return whether a token gives access to any run."""
        return self._shown([*self._for_all, *(secret for _, secret in self._by_run)], token, None)

    def cookie_with(self, cookie: str | None, token: str) -> str:
        """Return the cookie of a browser that has sent a token; it also keeps the access that the browser had before."""
        proof = self._proof(token.encode())
        before = [each for each in (cookie or "").split(".") if each and each != proof]
        return ".".join([proof, *before][:MAX_PROOFS])

    def _shown(self, opening: list[bytes], token: str | None, cookie: str | None) -> bool:
        """Compare with every token, each in constant time, so that the response time reveals nothing."""
        given = b"" if token is None else token.encode()
        proofs = [each.encode() for each in (cookie or "").split(".", MAX_PROOFS)[:MAX_PROOFS]]
        found = False
        for secret in opening:
            found |= hmac.compare_digest(given, secret)
            proof = self._proof(secret).encode()
            for shown in proofs:
                found |= hmac.compare_digest(shown, proof)
        return found

    def _proof(self, token: bytes) -> str:
        return hmac.new(token, b"psyche web: this browser has shown the token", hashlib.sha256).hexdigest()
