"""The table `data_location.Http`."""

import subprocess
import sys
from typing import Any

import pytest
from pydantic import ValidationError

from psyche_data_http.settings import HttpSettings

URL = "https://host.example/data/file.bin"


def urls(location: Any) -> tuple[str, ...]:
    return HttpSettings.model_validate({"location": location}).location.urls


def test_the_references_spelling_is_read() -> None:
    settings = HttpSettings.model_validate(
        {"location": {"SingleUrl": URL}, "token_size_in_bytes": "FourBytes", "shuffle": {"Seeded": [1] * 32}}
    )

    assert settings.location.urls == (URL,)
    assert settings.token_size_in_bytes == "FourBytes"


def test_an_address_alone_is_a_single_url() -> None:
    assert urls(URL) == (URL,)


def test_b58_numbers_are_filled_up_to_a_width() -> None:
    table = {"url_template": "https://h/{}.npy", "start_index": 9, "n_left_pad_zeros": 3, "num_files": 3}

    assert urls({"NumberedFiles": table}) == ("https://h/009.npy", "https://h/010.npy", "https://h/011.npy")


def test_files_by_name_keep_their_order() -> None:
    assert urls({"Urls": ["https://h/b", "https://h/a"]}) == ("https://h/b", "https://h/a")


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ({}, "exactly one of SingleUrl, NumberedFiles, Urls, Gcp and S3, got none"),
        ({"SingleUrl": URL, "Urls": [URL]}, "got SingleUrl and Urls"),
        ({"SingleUrl": "file:///etc/passwd"}, "must be an address like https://"),
        ({"SingleUrl": "https://"}, "must be an address like https://"),
        ({"SingleUrl": "http://[broken"}, "must be an address like https://"),
        ({"Urls": []}, "at least 1 item"),
        ({"NumberedFiles": {"url_template": "https://h/x", "num_files": 2}}, "exactly once.*got 0 times"),
        ({"NumberedFiles": {"url_template": "https://h/{}{}", "num_files": 2}}, "exactly once.*got 2 times"),
        ({"NumberedFiles": {"url_template": "https://h/{}", "num_files": 0}}, "greater than or equal to 1"),
        ({"Gcp": {"bucket_name": "a/b"}}, "should match pattern"),
        ({"Gcp": {"bucket_name": "tokens", "region": "x"}}, "Extra inputs are not permitted"),
        ({"Gcp": {"bucket_name": "tokens", "endpoint": "unix:/x"}}, "must be an address like https://"),
        ({"S3": {"bucket_name": "tokens", "region": "us east"}}, "should match pattern"),
        ({"S3": {"bucket_name": "tokens", "access": "public"}}, "'auto', 'anonymous' or 'credentials'"),
        ({"Azure": {"bucket_name": "tokens"}}, "Extra inputs are not permitted"),
    ],
)
def test_wrong_locations_are_refused(location: Any, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        urls(location)


def test_what_was_refused_is_not_repeated() -> None:
    """An address may hold secrets; a run's configuration is shown with what is wrong in it."""
    with pytest.raises(ValidationError) as caught:
        urls({"SingleUrl": "ftp://user:verysecret@host/"})

    assert "verysecret" not in str(caught.value)


def test_the_references_bucket_is_read() -> None:
    location = HttpSettings.model_validate({"location": {"Gcp": {"bucket_name": "tokens", "filter_directory": "a/b"}}}).location

    assert location.Gcp is not None
    assert location.Gcp.filter_directory == "a/b"
    assert location.Gcp.access == "auto"
    assert location.urls == ()


def test_registering_imports_no_http_library() -> None:
    code = (
        "import psyche_data_http.hooks as hooks, sys; hooks.psyche_register_data(); "
        "sys.exit(not {'httpx', 'obstore'}.isdisjoint(sys.modules))"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
