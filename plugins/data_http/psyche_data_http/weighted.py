"""The `WeightedHttp` data location: several sources of token files, mixed by weights from a JSON file.

The JSON comes from a local path or from the web over https. Plain http is allowed only from this machine or with its sha256 in
the run's configuration, because whoever changes the file changes what all members train on. It is read once, on entering.
`psyche_core.data.ordering.mixture` decides the order of samples. Sources over HTTP share connections and cache. Any other data
location may be a source too, except mixtures and a run's server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

import anyio
import anyio.to_thread
from pydantic import ValidationError

from psyche_core.data.mixture_data import MixtureData
from psyche_core.data.ordering.data_shuffle import shuffle_seed
from psyche_core.data.token_files import token_bytes
from psyche_core.errors import ConfigError, DataError, PluginError
from psyche_core.hookspecs import DataContext
from psyche_core.interfaces.data import DataProvider, Samples
from psyche_core.regular_files import regular
from psyche_core.types import BatchId
from psyche_data_http.addresses import is_private_line, shown, web_address
from psyche_data_http.fetch.client import RangeClient
from psyche_data_http.provider import OPEN_SECONDS, HttpData
from psyche_data_http.retries import deadline, retry_until_success
from psyche_data_http.settings import MixtureTable, OtherSource, TokenSource, WeightedHttpSettings
from psyche_data_http.shared_resources import SharedResources
from psyche_data_http.sources.factory import make_source

NO_SOURCES = ("WeightedHttp", "Server")
"""Not allowed as sources: a mixture might contain itself, and a run's server gives a member only its own samples, by the run's
numbers."""

MAX_JSON_BYTES = 1 << 20


class WeightedHttpData(DataProvider):
    """The mixture that a JSON file describes. Entering raises DataError and TimeoutError.

    location: address or path of the file. digest: SHA-256 of its bytes, in hexadecimal digits. base: folder that relative paths
    start from. resources: entered and left by the provider, may be shared. other: makes the provider of another data location,
    None where there are none.
    """

    def __init__(
        self,
        location: str,
        resources: SharedResources,
        *,
        sequence_length: int,
        base: Path,
        digest: str | None = None,
        other: Callable[[str, Any], DataProvider] | None = None,
    ) -> None:
        self._location = location
        self._resources = resources
        self._sequence_length = sequence_length
        self._base = base
        self._digest = digest
        self._other = other
        self._holds_toolbox = False
        self._mixture: MixtureData | None = None

    @classmethod
    def from_context(cls, context: DataContext) -> Self:
        """Return the provider for a run configuration; context.settings are WeightedHttpSettings."""
        settings: WeightedHttpSettings = context.settings
        return cls(
            settings.location,
            SharedResources(RangeClient(), cache=context.cache, cache_bytes=settings.cache_bytes),
            sequence_length=context.sequence_length,
            base=context.base,
            digest=settings.sha256,
            other=context.provider,
        )

    @property
    def sequence_length(self) -> int:
        """Tokens per sample."""
        return self._sequence_length

    @property
    def num_sequences(self) -> int:
        """Samples of all sources together. Valid while entered."""
        return self._entered.num_sequences

    async def __aenter__(self) -> Self:
        await self._resources.__aenter__()
        self._holds_toolbox = True
        try:
            table = mixture_table(await self._json(), name=self._name)
            sources = [await self._source(entry.source) for entry in table.providers]
            self._mixture = MixtureData(sources, weights=table.weights, seed=shuffle_seed(table.shuffle))
            await self._mixture.__aenter__()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.aclose()
            raise

        return self

    async def read(self, batches: Sequence[BatchId], *, timeout: float) -> Samples:
        """Return the samples of the intervals in order, concatenated. Raises DataError, TimeoutError."""
        return await self._entered.read(batches, timeout=timeout)

    async def aclose(self) -> None:
        """Close every source and all connections; idempotent."""
        mixture, self._mixture = self._mixture, None
        if mixture is not None:
            await mixture.aclose()
        if self._holds_toolbox:
            self._holds_toolbox = False
            await self._resources.__aexit__(None, None, None)

    @property
    def _entered(self) -> MixtureData:
        if self._mixture is None:
            message = "enter the provider (async with) before reading from it"
            raise RuntimeError(message)

        return self._mixture

    @property
    def _name(self) -> str:
        return shown(self._location) if "://" in self._location else self._location

    async def _source(self, source: TokenSource | OtherSource) -> DataProvider:
        if isinstance(source, TokenSource):
            return HttpData(
                make_source(source.location, self._resources.client, base=self._base),
                self._resources,
                sequence_length=self._sequence_length,
                token_size=token_bytes(source.token_size_in_bytes),
                seed=shuffle_seed(source.shuffle),
            )

        if source.name in NO_SOURCES or self._other is None:
            message = f"the mixture {self._name} names {source.name} as a source; mixtures and a run's server are not allowed"
            raise DataError(message)

        other = self._other
        try:
            return await anyio.to_thread.run_sync(lambda: other(source.name, source.settings))
        except (PluginError, ConfigError) as error:
            message = f"a source of the mixture {self._name} cannot be used: {error}"
            raise DataError(message) from error

    async def _json(self) -> bytes:
        if "://" in self._location:
            content = await self._downloaded()
        else:
            content = await anyio.to_thread.run_sync(_local_json, self._base / self._location)

        if self._digest is not None and (got := sha256(content).hexdigest()) != self._digest:
            message = f"the mixture {self._name} has SHA-256 {got}, the run expects {self._digest}; get the right file"
            raise DataError(message)

        return content

    async def _downloaded(self) -> bytes:
        try:
            url = web_address(self._location)
        except ValueError as error:
            message = f"the mixture's location {self._name} {error}, or the path of a file"
            raise DataError(message) from error

        if self._digest is None and not is_private_line(url):
            message = (
                f"the mixture {self._name} would come over plain http, where anybody on the network could change it; "
                "use https, or give its sha256"
            )
            raise DataError(message)

        async with deadline(OPEN_SECONDS) as last_failure:
            return await retry_until_success(partial(self._resources.client.document, url, at_most=MAX_JSON_BYTES), last_failure)


def mixture_table(content: bytes, *, name: str) -> MixtureTable:
    """Return the mixture in a JSON file. Raises DataError; its message omits the content, where addresses may hold secrets."""
    try:
        return MixtureTable.model_validate_json(content)
    except ValidationError as error:
        problems = error.errors(include_input=False, include_url=False, include_context=False)
        first = problems[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        message = f'the mixture {name} is not valid: {where}: {first["msg"]}; expected {{"providers": [[source, weight], …]}}'
        raise DataError(message) from None


def _local_json(path: Path) -> bytes:
    try:
        with open(path, "rb", opener=regular) as stream:
            content = stream.read(MAX_JSON_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a path"
        message = (
            f"cannot read the mixture {path}: {reason}; name the JSON file relative to the run's folder, or its https address"
        )
        raise DataError(message) from error

    if len(content) > MAX_JSON_BYTES:
        message = f"the mixture {path} is longer than {MAX_JSON_BYTES} bytes; check that it is the right file"
        raise DataError(message)

    return content
