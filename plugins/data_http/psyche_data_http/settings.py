"""The tables `data_location.Http` and `data_location.WeightedHttp` of a run configuration. Names are the reference's."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Discriminator, Field, Tag, model_validator

from psyche_core.data.ordering.data_shuffle import Shuffle
from psyche_core.data.token_files import TokenSizeName
from psyche_data_http.fetch.cache import DEFAULT_LIMIT
from psyche_data_http.locations import HttpLocation, Table

MAX_SOURCES = 1000

CacheBytes = Annotated[int, Field(ge=0, le=1 << 50)]


class TokenSource(Table):
    """Token files and how to read them."""

    location: HttpLocation
    """Where the files are, see HttpLocation; a plain address is a SingleUrl."""

    token_size_in_bytes: TokenSizeName = "TwoBytes"  # noqa: S105  # a token of text, not a secret
    """Bytes of a token in the files."""

    shuffle: Shuffle = "DontShuffle"
    """In which order the samples come."""


class HttpSettings(TokenSource):
    """`data_location.Http`."""

    cache_bytes: CacheBytes = DEFAULT_LIMIT
    """Most bytes cached on disk, if the client has a folder for it; 0 caches nothing."""


class WeightedHttpSettings(Table):
    """`data_location.WeightedHttp`; a plain string is the location."""

    location: Annotated[str, Field(min_length=1, max_length=8192)]
    """https address of the mixture's JSON, or a path."""

    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """SHA-256 of the JSON's bytes, in hexadecimal digits. With it, nobody who can change the file can make members read different
    mixtures."""

    cache_bytes: CacheBytes = DEFAULT_LIMIT
    """Most bytes cached on disk, if the client has a folder for it; 0 caches nothing."""


class OtherSource(Table):
    """Any other data location as a source: `{"Local": {"location": "tokens"}}`, as in a run file."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,63}$")]
    settings: Any = None

    @model_validator(mode="before")
    @classmethod
    def _tagged(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"name": value}
        if isinstance(value, dict) and len(value) == 1:
            [(name, settings)] = value.items()
            return {"name": name, "settings": settings}

        message = "a source is a table with a location, or another data location, written as in a run file"
        raise ValueError(message)


def _kind(value: Any) -> str:
    """Return the kind of a source: a source with a location is of this plugin, the only kind that the reference has."""
    return "other" if isinstance(value, str | OtherSource) or (isinstance(value, dict) and "location" not in value) else "http"


class MixtureEntry(Table):
    """A source of a mixture; in JSON the source alone, or a pair [source, weight]."""

    source: Annotated[Annotated[TokenSource, Tag("http")] | Annotated[OtherSource, Tag("other")], Discriminator(_kind)]
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _source_or_pair(cls, value: Any) -> Any:
        if isinstance(value, list | tuple) and len(value) == 2:
            return {"source": value[0], "weight": value[1]}

        return {"source": value}


class MixtureTable(Table):
    """The mixture's JSON. providers: all with weights, or all without; without, the lengths are the weights."""

    shuffle: Shuffle = "DontShuffle"
    providers: Annotated[tuple[MixtureEntry, ...], Field(min_length=1, max_length=MAX_SOURCES)]

    @model_validator(mode="after")
    def _weights_of_all_or_none(self) -> Self:
        without = sum(entry.weight is None for entry in self.providers)
        if 0 < without < len(self.providers):
            message = f"providers must all have weights or none, got {without} without"
            raise ValueError(message)

        return self

    @property
    def weights(self) -> tuple[float, ...] | None:
        """The weights, None if there are none."""
        return tuple(entry.weight for entry in self.providers if entry.weight is not None) or None
