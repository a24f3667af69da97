"""Makes the store for a location in a run configuration.

Buckets are tried first without credentials, then with those of this machine; `access` may require one of the two ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from psyche_data_http.fetch.client import RangeClient
from psyche_data_http.file_source import AccessRefused, RemoteFile, Store
from psyche_data_http.locations import GoogleBucketTable, HttpLocation, S3BucketTable
from psyche_data_http.retries import LastFailure
from psyche_data_http.stores.google_bucket import GoogleBucket
from psyche_data_http.stores.object_store import google_credentials, has_aws_credentials, private_google_bucket, s3_bucket
from psyche_data_http.stores.web_files import WebFiles

GOOGLE_HINT = (
    "make the bucket public, or set GOOGLE_APPLICATION_CREDENTIALS to the key file of an account that may read it "
    "(with: pip install 'psyche-core[gcs]')"
)
AWS_HINT = "make the bucket public, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY of an account that may read it"


class FallbackStore(Store):
    """The first of several stores that grants access. hint: how to get access, for the message when none does."""

    def __init__(self, stores: Sequence[Store], *, hint: str) -> None:
        self._stores = stores
        self._hint = hint
        self._chosen = stores[0]

    async def files(self, last_failure: LastFailure) -> list[RemoteFile]:
        """The files of the first store that lists them."""
        for store in self._stores:
            self._chosen = store
            try:
                return await store.files(last_failure)
            except AccessRefused as error:
                refused = error

        message = f"{str(refused).partition(';')[0]}; {self._hint}"
        raise AccessRefused(message) from refused

    async def receive(self, file: RemoteFile, start: int, wanted: int, received: bytearray) -> None:
        """See Store."""
        await self._chosen.receive(file, start, wanted, received)

    def serves_ranges(self, file: RemoteFile) -> bool:
        """See Store."""
        return self._chosen.serves_ranges(file)


def make_store(location: HttpLocation, client: RangeClient, *, base: Path) -> Store:
    """The store that a location names. client: the caller opens and closes it. base: folder that relative paths start from."""
    if location.Gcp is not None:
        return FallbackStore(_google_stores(location.Gcp, client, base), hint=GOOGLE_HINT)

    if location.S3 is not None:
        return FallbackStore(_s3_stores(location.S3), hint=AWS_HINT)

    return WebFiles(location.urls, client)


def _google_stores(table: GoogleBucketTable, client: RangeClient, base: Path) -> list[Store]:
    credentials = google_credentials(base, table.credentials_file)
    stores: list[Store] = []
    if table.access != "credentials":
        stores.append(GoogleBucket(table.bucket_name, table.filter_directory, client, endpoint=table.endpoint))
    if table.access == "credentials" or (table.access == "auto" and credentials is not None):
        stores.append(private_google_bucket(table.bucket_name, table.filter_directory, credentials))

    return stores


def _s3_stores(table: S3BucketTable) -> list[Store]:
    ways = {"anonymous": [True], "credentials": [False], "auto": [True, False] if has_aws_credentials() else [True]}
    return [
        s3_bucket(table.bucket_name, table.filter_directory, endpoint=table.endpoint, region=table.region, anonymous=anonymous)
        for anonymous in ways[table.access]
    ]
