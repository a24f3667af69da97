"""The key `location` of `data_location.Http`: where the files are. Names are the reference's; `Urls` and `S3` are additions.

Addresses that are not http or https, and invalid bucket names, are rejected before anything is fetched.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from psyche_data_http.addresses import web_address

MAX_FILES = 100_000

Access = Literal["auto", "anonymous", "credentials"]
"""auto: first without credentials, then with those of this machine. The others: only that way."""

WebAddress = Annotated[str, AfterValidator(web_address)]
BucketName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]$")]
Folder = Annotated[str, Field(max_length=1000)]


def _numbered_address(template: str) -> str:
    if template.count("{}") != 1:
        message = f"must contain {{}} exactly once, where the number goes; got {template.count('{}')} times"
        raise ValueError(message)

    return web_address(template)


class Table(BaseModel):
    """A table of a run configuration: unknown keys are refused."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", frozen=True, hide_input_in_errors=True, use_attribute_docstrings=True
    )


class FileNumbers(Table):
    """Files whose addresses differ in a number.

    url_template: the address with `{}` for the number. start_index: first number. num_files: how many. n_left_pad_zeros: width
    to which the number is padded with zeros, 0 for none (the name is the reference's, but it means the whole width).
    """

    url_template: Annotated[str, AfterValidator(_numbered_address)]
    start_index: Annotated[int, Field(ge=0)] = 0
    n_left_pad_zeros: Annotated[int, Field(ge=0, le=32)] = 0
    num_files: Annotated[int, Field(ge=1, le=MAX_FILES)]

    @property
    def urls(self) -> tuple[str, ...]:
        """The addresses, in order of the numbers."""
        numbers = range(self.start_index, self.start_index + self.num_files)
        return tuple(self.url_template.replace("{}", str(number).zfill(self.n_left_pad_zeros)) for number in numbers)


class GoogleBucketTable(Table):
    """A bucket of Google Cloud Storage.

    filter_directory: use only this folder. endpoint: of the public API, for emulators. credentials_file: a key file on each
    client's machine, instead of GOOGLE_APPLICATION_CREDENTIALS.
    """

    bucket_name: BucketName
    filter_directory: Folder = ""
    endpoint: WebAddress | None = None
    access: Access = "auto"
    credentials_file: Annotated[str, Field(min_length=1, max_length=4096)] | None = None


class S3BucketTable(Table):
    """A bucket of S3 or a compatible service. endpoint and region: where; Amazon's us-east-1 if nothing else is set."""

    bucket_name: BucketName
    filter_directory: Folder = ""
    endpoint: WebAddress | None = None
    region: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,64}$")] | None = None
    access: Access = "auto"


class HttpLocation(Table):
    """Where the files are: exactly one of the keys. Files are used in the order given, those of a bucket sorted by name."""

    SingleUrl: WebAddress | None = None
    NumberedFiles: FileNumbers | None = None
    Urls: Annotated[tuple[WebAddress, ...] | None, Field(min_length=1, max_length=MAX_FILES)] = None
    Gcp: GoogleBucketTable | None = None
    S3: S3BucketTable | None = None

    @model_validator(mode="before")
    @classmethod
    def _bare_address(cls, value: Any) -> Any:
        return {"SingleUrl": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        given = sorted(name for name in self.model_fields_set if getattr(self, name) is not None)
        if len(given) != 1:
            message = f"must have exactly one of SingleUrl, NumberedFiles, Urls, Gcp and S3, got {' and '.join(given) or 'none'}"
            raise ValueError(message)

        return self

    @property
    def urls(self) -> tuple[str, ...]:
        """All addresses, in order; none for a bucket, which must be listed."""
        if self.SingleUrl is not None:
            return (self.SingleUrl,)

        return self.NumberedFiles.urls if self.NumberedFiles is not None else (self.Urls or ())
