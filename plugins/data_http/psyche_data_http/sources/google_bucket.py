"""Reads public buckets of Google Cloud Storage through their JSON API over HTTPS, without an account or a Google library.

Each object is read at the generation that was listed, so what is read is what was found. Addresses of objects are built from
the endpoint, not taken from the listing, so that whoever answers the listing cannot redirect us.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated
from urllib.parse import quote, urlencode

from pydantic import BaseModel, Field, ValidationError

from psyche_core.errors import DataError
from psyche_data_http.fetch.client import RangeClient
from psyche_data_http.file_source import RemoteFile
from psyche_data_http.retries import LastFailure, retry_until_success
from psyche_data_http.sources.bucket_files import MAX_OBJECTS, folder_prefix, is_token_file, place_in_order, refuse_none
from psyche_data_http.sources.web_files import WebSource

ENDPOINT = "https://storage.googleapis.com"
PAGE_OBJECTS = 1000
MAX_PAGE_BYTES = 16 << 20
MAX_PAGES = 10_000


class _Object(BaseModel):
    name: Annotated[str, Field(min_length=1, max_length=1024)]
    size: Annotated[int, Field(ge=0, lt=2**63)]
    generation: Annotated[str, Field(pattern=r"^[0-9]{1,20}$")]


class _Page(BaseModel):
    items: tuple[_Object, ...] = ()
    nextPageToken: str | None = None  # noqa: N815  # Google's name


class GoogleBucket(WebSource):
    """The token files of a public bucket. endpoint: of the API, for emulators."""

    def __init__(self, bucket: str, directory: str, client: RangeClient, *, endpoint: str | None = None) -> None:
        super().__init__(client)
        self._bucket = bucket
        self._directory = directory
        self._endpoint = (endpoint or ENDPOINT).rstrip("/")

    async def files(self, last_failure: LastFailure) -> list[RemoteFile]:
        """List the bucket, page by page. Raises AccessRefused if the bucket is not public."""
        found: dict[str, _Object] = {}
        token: str | None = None
        for _ in range(MAX_PAGES):
            page = await retry_until_success(partial(self._page, token), last_failure)
            found |= {item.name: item for item in page.items if is_token_file(item.name)}
            token = page.nextPageToken
            if not token or len(found) > MAX_OBJECTS:
                break
        else:
            message = f"gs://{self._bucket} lists more than {MAX_PAGES} pages of objects; name a folder in filter_directory"
            raise DataError(message)

        refuse_none(found, where=f"gs://{self._bucket}/{folder_prefix(self._directory)}")
        return [self._file(found[name]) for name in sorted(found, key=place_in_order)]

    async def _page(self, token: str | None) -> _Page:
        query = {
            "prefix": folder_prefix(self._directory),
            "maxResults": str(PAGE_OBJECTS),
            "fields": "items(name,size,generation),nextPageToken",
        }
        if token:
            query["pageToken"] = token
        address = f"{self._endpoint}/storage/v1/b/{quote(self._bucket, safe='')}/o"
        content = await self._client.document(f"{address}?{urlencode(query)}", at_most=MAX_PAGE_BYTES)
        try:
            return _Page.model_validate_json(content)
        except ValidationError as error:
            message = f"{address} did not answer with a list of objects; check bucket_name and endpoint in data_location"
            raise DataError(message) from error

    def _file(self, item: _Object) -> RemoteFile:
        name, bucket = quote(item.name, safe=""), quote(self._bucket, safe="")
        url = f"{self._endpoint}/download/storage/v1/b/{bucket}/o/{name}?generation={item.generation}&alt=media"
        return RemoteFile(url, item.size, version=item.generation)
