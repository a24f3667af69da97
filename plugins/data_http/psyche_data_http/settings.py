"""The table `data_location.Http` of a run configuration. Names are the reference's; the rules are ours.

`Urls` is an addition: files by name where they are not numbered. Refuses URLs that are not http or https before anything is
fetched.
"""

from __future__ import annotations

from typing import Annotated, Any, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from psyche_core.formats.data_shuffle import Shuffle
from psyche_core.formats.token_files import TokenSizeName

MAX_FILES = 100_000


def _web_address(url: str) -> str:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        usable = False
    if not usable:
        message = "must be an address like https://host/path"
        raise ValueError(message)

    return url


def _numbered_address(template: str) -> str:
    if template.count("{}") != 1:
        message = f"must contain {{}} exactly once, where the number goes; got {template.count('{}')} times"
        raise ValueError(message)

    return _web_address(template)


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FileNumbers(_Table):
    """Files whose addresses differ in a number.

    url_template: the address with `{}` for the number. start_index: first number. num_files: how many. n_left_pad_zeros: width
    the number is filled up to with zeros (the reference's name says zeros, but it is the whole width; 0 = no filling).
    """

    url_template: Annotated[str, AfterValidator(_numbered_address)]
    start_index: Annotated[int, Field(ge=0)] = 0
    n_left_pad_zeros: Annotated[int, Field(ge=0, le=32)] = 0
    num_files: Annotated[int, Field(ge=1, le=MAX_FILES)]

    @property
    def urls(self) -> tuple[str, ...]:
        """The addresses, by number."""
        numbers = range(self.start_index, self.start_index + self.num_files)
        return tuple(self.url_template.replace("{}", str(number).zfill(self.n_left_pad_zeros)) for number in numbers)


class HttpLocation(_Table):
    """Where the files are: exactly one of the keys. Files count in the order given."""

    SingleUrl: Annotated[str, AfterValidator(_web_address)] | None = None
    NumberedFiles: FileNumbers | None = None
    Urls: Annotated[
        tuple[Annotated[str, AfterValidator(_web_address)], ...] | None, Field(min_length=1, max_length=MAX_FILES)
    ] = None

    @model_validator(mode="before")
    @classmethod
    def _bare_address(cls, value: Any) -> Any:
        return {"SingleUrl": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        given = sorted(self.model_fields_set)
        if len(given) != 1:
            message = f"must have exactly one of SingleUrl, NumberedFiles and Urls, got {' and '.join(given) or 'none'}"
            raise ValueError(message)

        return self

    @property
    def urls(self) -> tuple[str, ...]:
        """All addresses, in order."""
        if self.SingleUrl is not None:
            return (self.SingleUrl,)

        return self.NumberedFiles.urls if self.NumberedFiles is not None else (self.Urls or ())


class HttpSettings(_Table):
    """`data_location.Http`. location: see HttpLocation; an address alone is a SingleUrl."""

    location: HttpLocation
    token_size_in_bytes: TokenSizeName = "TwoBytes"  # noqa: S105  # a token of text, not a secret
    shuffle: Shuffle = "DontShuffle"
