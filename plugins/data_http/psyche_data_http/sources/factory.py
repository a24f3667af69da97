"""Makes the source for a location in a run configuration.

Buckets are tried first without credentials, then with those of this machine; `access` may require one of the two ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from psyche_data_http.fetch.client import RangeClient
from psyche_data_http.file_source import AccessRefused, FileSource, RemoteFile
from psyche_data_http.locations import GoogleBucketTable, HttpLocation, S3BucketTable
from psyche_data_http.retries import LastFailure
from psyche_data_http.sources.google_bucket import GoogleBucket
from psyche_data_http.sources.obstore_bucket import google_credentials, has_aws_credentials, private_google_bucket, s3_bucket
from psyche_data_http.sources.web_files import WebFiles

GOOGLE_HINT = (
    "make the bucket public, or set GOOGLE_APPLICATION_CREDENTIALS to the key file of an account that may read it "
    "(with: pip install 'psyche-core[gcs]')"
)
AWS_HINT = "make the bucket public, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY of an account that may read it"


class FallbackSource(FileSource):
    """Uses the first of several sources that grants access. hint: how to get access, for the message when none does."""

    def __init__(self, sources: Sequence[FileSource], *, hint: str) -> None:
        self._sources = sources
        self._hint = hint
        self._chosen = sources[0]

    async def files(self, last_failure: LastFailure) -> list[RemoteFile]:
        """Return the files of the first source that lists them."""
        for source in self._sources:
            self._chosen = source
            try:
                return await source.files(last_failure)
            except AccessRefused as error:
                refused = error

        message = f"{str(refused).partition(';')[0]}; {self._hint}"
        raise AccessRefused(message) from refused

    async def receive(self, file: RemoteFile, start: int, wanted: int, received: bytearray) -> None:
        """See FileSource."""
        await self._chosen.receive(file, start, wanted, received)

    def serves_ranges(self, file: RemoteFile) -> bool:
        """See FileSource."""
        return self._chosen.serves_ranges(file)


def make_source(location: HttpLocation, client: RangeClient, *, base: Path) -> FileSource:
    """Return the source that a location names. client: opened and closed by the caller. base: where relative paths start."""
    if location.Gcp is not None:
        return FallbackSource(_google_sources(location.Gcp, client, base), hint=GOOGLE_HINT)

    if location.S3 is not None:
        return FallbackSource(_s3_sources(location.S3), hint=AWS_HINT)

    return WebFiles(location.urls, client)


def _google_sources(table: GoogleBucketTable, client: RangeClient, base: Path) -> list[FileSource]:
    credentials = google_credentials(base, table.credentials_file)
    sources: list[FileSource] = []
    if table.access != "credentials":
        sources.append(GoogleBucket(table.bucket_name, table.filter_directory, client, endpoint=table.endpoint))
    if table.access == "credentials" or (table.access == "auto" and credentials is not None):
        sources.append(private_google_bucket(table.bucket_name, table.filter_directory, credentials))

    return sources


def _s3_sources(table: S3BucketTable) -> list[FileSource]:
    ways = {"anonymous": [True], "credentials": [False], "auto": [True, False] if has_aws_credentials() else [True]}
    return [
        s3_bucket(table.bucket_name, table.filter_directory, endpoint=table.endpoint, region=table.region, anonymous=anonymous)
        for anonymous in ways[table.access]
    ]
