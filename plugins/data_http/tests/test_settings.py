"""The table `data_location.Http`."""

import subprocess
import sys

import pytest
from pydantic import ValidationError

from psyche_data_http.settings import HttpSettings

URL = "https://host.example/data/file.bin"


def urls(location) -> tuple[str, ...]:
    return HttpSettings.model_validate({"location": location}).location.urls


def test_the_references_spelling_is_read():
    settings = HttpSettings.model_validate(
        {"location": {"SingleUrl": URL}, "token_size_in_bytes": "FourBytes", "shuffle": {"Seeded": [1] * 32}}
    )

    assert settings.location.urls == (URL,)
    assert settings.token_size_in_bytes == "FourBytes"


def test_an_address_alone_is_a_single_url():
    assert urls(URL) == (URL,)


def test_b58_numbers_are_filled_up_to_a_width():
    table = {"url_template": "https://h/{}.npy", "start_index": 9, "n_left_pad_zeros": 3, "num_files": 3}

    assert urls({"NumberedFiles": table}) == ("https://h/009.npy", "https://h/010.npy", "https://h/011.npy")


def test_files_by_name_keep_their_order():
    assert urls({"Urls": ["https://h/b", "https://h/a"]}) == ("https://h/b", "https://h/a")


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ({}, "exactly one of SingleUrl, NumberedFiles and Urls, got none"),
        ({"SingleUrl": URL, "Urls": [URL]}, "got SingleUrl and Urls"),
        ({"SingleUrl": "file:///etc/passwd"}, "must be an address like https://"),
        ({"SingleUrl": "https://"}, "must be an address like https://"),
        ({"SingleUrl": "http://[broken"}, "must be an address like https://"),
        ({"Urls": []}, "at least 1 item"),
        ({"NumberedFiles": {"url_template": "https://h/x", "num_files": 2}}, "exactly once.*got 0 times"),
        ({"NumberedFiles": {"url_template": "https://h/{}{}", "num_files": 2}}, "exactly once.*got 2 times"),
        ({"NumberedFiles": {"url_template": "https://h/{}", "num_files": 0}}, "greater than or equal to 1"),
        ({"Gcp": {"bucket_name": "b"}}, "Extra inputs are not permitted"),
    ],
)
def test_wrong_locations_are_refused(location, message):
    with pytest.raises(ValidationError, match=message):
        urls(location)


def test_registering_imports_no_http_library():
    code = "import psyche_data_http.hooks as h, sys; h.psyche_register_data(); sys.exit('httpx' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
