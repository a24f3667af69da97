"""`WeightedHttp`: the mixture's JSON, where it may come from, and what is read by it."""

import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from plugins.data_http.tests.conftest import WebServer
from psyche_core.client.setup.data_source import data_source
from psyche_core.config.run_config import Choice
from psyche_core.data.ordering.mixture import MixtureIndex
from psyche_core.errors import DataError
from psyche_core.hookspecs import DataContext
from psyche_core.interfaces.data import DataProvider
from psyche_core.plugins import PluginRegistry
from psyche_core.testing.data import DataConformance
from psyche_core.types import BatchId
from psyche_core.wire.signing import SecretKey
from psyche_data_http import weighted
from psyche_data_http.hooks import psyche_register_data
from psyche_data_http.settings import TokenSource, WeightedHttpSettings
from psyche_data_http.weighted import WeightedHttpData, mixture_table

ROWS = [bytes([number]) * 8 for number in range(40)]

WriteMixture = Callable[[object], Path]


def data_of(
    location: Path | str, base: Path, *, cache: Path | None = None, sequence_length: int = 4, **settings: Any
) -> DataProvider:
    registration = psyche_register_data()[1]
    assert registration.settings is not None
    checked = registration.settings.model_validate({"location": str(location), **settings})
    return registration.create(DataContext(settings=checked, sequence_length=sequence_length, base=base, cache=cache))


def source(url: str, **keys: Any) -> dict[str, Any]:
    return {"location": {"SingleUrl": url}, "token_size_in_bytes": "TwoBytes", "shuffle": "DontShuffle", **keys}


@pytest.fixture
def urls(web: WebServer) -> list[str]:
    """Two files: 30 sequences, and 10."""
    (web.folder / "long.bin").write_bytes(b"".join(ROWS[:30]))
    (web.folder / "short.bin").write_bytes(b"".join(ROWS[30:]))
    return [web.url("long.bin"), web.url("short.bin")]


@pytest.fixture
def mixture(tmp_path: Path) -> WriteMixture:
    """Writes a mixture's JSON; returns its path."""

    def write(content: object) -> Path:
        path = tmp_path / "mixture.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write


async def read(data: DataProvider, first: int, last: int) -> bytes:
    return (await data.read([BatchId(first, last)], timeout=10.0)).tokens


class TestWeightedHttp(DataConformance):
    """Several files as the sources, without weights, which makes the order that of the index."""

    def expected(self) -> list[bytes]:
        rows = super().expected()
        ends = [5, 6, 13]
        index = MixtureIndex(self.file_sequences)
        places = [index.locate(number) for number in range(len(rows))]
        return [rows[ends[file] - self.file_sequences[file] + sequence] for file, sequence in places]

    @pytest.fixture
    def source(self, web: WebServer, mixture: WriteMixture) -> Path:
        return mixture({"providers": [source(url) for url in web.urls()]})

    def provider(self, source: Path) -> DataProvider:
        return data_of(source, source.parent, sequence_length=self.sequence_length)


async def test_weights_decide_how_often_a_source_is_drawn(urls: list[str], mixture: WriteMixture, tmp_path: Path) -> None:
    mixture({"shuffle": "DontShuffle", "providers": [[source(urls[0]), 1.0], [source(urls[1]), 3.0]]})
    async with data_of("mixture.json", tmp_path) as data:
        assert data.num_sequences == 40
        tokens = await read(data, 0, 39)

    index = MixtureIndex([30, 10], [1.0, 3.0])
    files = [ROWS[:30], ROWS[30:]]
    assert tokens == b"".join(files[file][sequence] for file, sequence in map(index.locate, range(40)))
    assert sum(row >= 30 for row in tokens[::8]) == 30


async def test_sources_and_mixture_may_be_shuffled(urls: list[str], mixture: WriteMixture, tmp_path: Path) -> None:
    seed = {"Seeded": list(range(1, 33))}
    mixture({"shuffle": seed, "providers": [source(urls[0]), source(urls[1], shuffle=seed)]})
    async with data_of("mixture.json", tmp_path) as data:
        tokens = await read(data, 0, 39)

    assert tokens != b"".join(ROWS)
    assert sorted(tokens) == sorted(b"".join(ROWS))


async def test_sources_of_another_token_size_are_widened(
    web: WebServer, urls: list[str], mixture: WriteMixture, tmp_path: Path
) -> None:
    (web.folder / "wide.bin").write_bytes(b"".join(number.to_bytes(4, "little") for number in range(4)))
    mixture({"providers": [source(urls[0]), source(web.url("wide.bin"), token_size_in_bytes="FourBytes")]})
    async with data_of("mixture.json", tmp_path) as data:
        samples = await data.read([BatchId(0, 30)], timeout=10.0)

    assert samples.token_size == 4
    assert bytes(range(4)) == samples.tokens[-16::4] or bytes(range(4)) in {
        samples.tokens[at : at + 16 : 4] for at in range(0, len(samples.tokens), 16)
    }


async def test_sources_share_connections_and_cache(
    web: WebServer, urls: list[str], mixture: WriteMixture, tmp_path: Path
) -> None:
    mixture({"providers": [source(url) for url in urls]})
    async with data_of("mixture.json", tmp_path, cache=tmp_path / "cache") as data:
        assert len(await read(data, 0, 39)) == 320
    before = len(web.gets())
    async with data_of("mixture.json", tmp_path, cache=tmp_path / "cache") as data:
        assert len(await read(data, 0, 39)) == 320

    assert len(web.gets()) == before
    assert len(web.connections) <= 16


async def test_the_json_may_be_on_a_web_server(web: WebServer, urls: list[str], tmp_path: Path) -> None:
    (web.folder / "mixture.json").write_text(json.dumps({"providers": [source(url) for url in urls]}))
    async with data_of(web.url("mixture.json"), tmp_path) as data:
        assert data.num_sequences == 40


async def test_over_plain_http_from_elsewhere_only_what_the_run_pins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    address = "http://host.example/mixture.json?token=secret"
    with pytest.raises(DataError, match=r"^the mixture http://host\.example/mixture\.json would come over plain http"):
        async with data_of(address, tmp_path):
            pass

    monkeypatch.setattr(weighted, "OPEN_SECONDS", 0.05)
    with pytest.raises(TimeoutError):
        async with data_of(address, tmp_path, sha256="0" * 64):
            pass


@pytest.mark.parametrize("on_web", [True, False])
async def test_another_file_than_the_run_pins_is_refused(
    web: WebServer, urls: list[str], mixture: WriteMixture, tmp_path: Path, on_web: bool
) -> None:
    path = mixture({"providers": [source(url) for url in urls]})
    digest = sha256(path.read_bytes()).hexdigest()
    (web.folder / "mixture.json").write_bytes(path.read_bytes())
    location = web.url("mixture.json") if on_web else "mixture.json"

    async with data_of(location, tmp_path, sha256=digest) as data:
        assert data.num_sequences == 40

    for changed in (path, web.folder / "mixture.json"):
        changed.write_text(changed.read_text() + "\n")
    with pytest.raises(DataError, match=rf"has SHA-256 [0-9a-f]+, the run expects {digest}; get the right file"):
        async with data_of(location, tmp_path, sha256=digest):
            pass


@pytest.mark.parametrize("on_web", [True, False])
async def test_a_json_too_large_is_refused(
    web: WebServer, mixture: WriteMixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_web: bool
) -> None:
    monkeypatch.setattr(weighted, "MAX_JSON_BYTES", 100)
    mixture(" " * 101)
    (web.folder / "mixture.json").write_text(" " * 101)
    with pytest.raises(DataError, match="is longer than 100 bytes"):
        async with data_of(web.url("mixture.json") if on_web else "mixture.json", tmp_path):
            pass


@pytest.mark.parametrize(
    ("location", "sentence"),
    [
        ("nothing.json", r"cannot read the mixture .*nothing\.json: No such file"),
        (".", r"cannot read the mixture .*: it is a folder, expected a regular file"),
        ("a\0b", "it is not a path"),
        ("ftp://host/mixture.json", r"ftp://host/mixture\.json must be an address like https://host/path, or the path of a file"),
    ],
)
async def test_a_json_that_is_not_there_is_a_clear_error(tmp_path: Path, location: str, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        async with data_of(location, tmp_path):
            pass


SECRET = "https://user:verysecret@host/x.bin?verysecret"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", "Invalid JSON"),
        ("[" * 100_000, "Invalid JSON"),
        ("[]", "should be an object"),
        ({}, "providers"),
        ({"providers": []}, "at least 1 item"),
        ({"providers": [source(SECRET) | {"other": 1}]}, "Extra inputs are not permitted"),
        ({"providers": [[source(SECRET), 0]]}, "greater than 0"),
        ({"providers": [[source(SECRET), -1.5]]}, "greater than 0"),
        ('{"providers": [[{"location": "https://h/x"}, NaN]]}', "finite number"),
        ({"providers": [[source(SECRET), 1, 2]]}, "should be an object|valid dictionary"),
        ({"providers": [[source(SECRET), 1], source(SECRET)]}, "must all have weights or none, got 1 without"),
        ({"providers": [source("file:///verysecret")]}, "must be an address"),
        ({"providers": [source(SECRET)], "shuffle": {"Seeded": [1]}}, "shuffle"),
        ({"providers": [source(SECRET)] * 1001}, "at most 1000 items"),
    ],
)
def test_a_wrong_json_is_one_sentence_that_repeats_no_address(content: Any, sentence: str) -> None:
    content = content if isinstance(content, str) else json.dumps(content)
    with pytest.raises(DataError, match=sentence) as caught:
        mixture_table(content.encode(), name="mixture.json")

    message = str(caught.value)
    assert message.startswith("the mixture mixture.json is not valid: ")
    assert "verysecret" not in message
    assert "\n" not in message


def test_the_references_json_is_read() -> None:
    table = mixture_table(
        b'{"shuffle": {"Seeded": [%s]}, "providers": [[{"location": {"NumberedFiles": {"url_template": "https://h/{}.ds", '
        b'"start_index": 0, "n_left_pad_zeros": 3, "num_files": 2}}, "token_size_in_bytes": "TwoBytes", "shuffle": '
        b'"DontShuffle"}, 0.7], [{"location": {"Gcp": {"bucket_name": "bucket", "filter_directory": "dir"}}, '
        b'"token_size_in_bytes": "FourBytes", "shuffle": "DontShuffle"}, 0.3]]}' % b",".join([b"1"] * 32),
        name="x",
    )

    assert table.weights == (0.7, 0.3)
    numbered, bucket = (entry.source for entry in table.providers)
    assert isinstance(numbered, TokenSource)
    assert isinstance(bucket, TokenSource)
    assert numbered.location.urls == ("https://h/000.ds", "https://h/001.ds")
    assert bucket.location.Gcp is not None
    assert bucket.location.Gcp.bucket_name == "bucket"


async def mixed(folder: Path, *providers: Any) -> AbstractAsyncContextManager[DataProvider]:
    """A run's provider for a mixture of these, as a client opens it."""
    (folder / "mixture.json").write_text(json.dumps({"providers": providers}))
    place = Choice("WeightedHttp", {"location": "mixture.json"})
    key, cache = SecretKey.generate(), folder / "cache"
    return await data_source(PluginRegistry.discover(), place, sequence_length=4, key=key, base=folder, cache=cache)


async def test_any_other_data_location_may_be_a_source(urls: list[str], tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "own.bin").write_bytes(b"".join(bytes([200 + number]) * 8 for number in range(10)))
    own = {"Local": {"location": "own", "shuffle": {"Seeded": [1] * 32}}}
    async with await mixed(tmp_path, [own, 0.5], [source(urls[0]), 0.5]) as data:
        assert data.num_sequences == 40
        rows = await read(data, 0, 19)
    drawn = [rows[8 * place] for place in range(20)]
    assert sum(row >= 200 for row in drawn) == 10
    assert sorted(row for row in drawn if row >= 200) == list(range(200, 210))
    assert drawn[1::2] == list(range(10)) or drawn[::2] == list(range(10))


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        ("Papyrus", "no data plugin is named Papyrus"),
        ({"Local": {"place": "tokens"}}, "data_location.Local"),
        ({"WeightedHttp": "mixture.json"}, "mixtures and a run's server are not allowed"),
        ({"Server": "127.0.0.1:1"}, "mixtures and a run's server are not allowed"),
        ({"Local": "a", "Http": "b"}, "or another data location"),
    ],
)
async def test_a_source_that_cannot_be_one_is_refused(tmp_path: Path, other: Any, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        async with await mixed(tmp_path, other):
            pass


async def test_a_source_that_fails_is_named_and_everything_is_closed(
    web: WebServer, urls: list[str], mixture: WriteMixture, tmp_path: Path
) -> None:
    mixture({"providers": [source(urls[0]), source(web.url("nothing.bin"))]})
    data = data_of("mixture.json", tmp_path)
    with pytest.raises(DataError, match=r"nothing\.bin does not exist"):
        async with data:
            pass
    assert isinstance(data, WeightedHttpData)
    assert data._resources._users == 0


async def test_the_deadline_of_a_mixture_names_the_trouble(
    web: WebServer, urls: list[str], mixture: WriteMixture, tmp_path: Path
) -> None:
    mixture({"providers": [source(url) for url in urls]})
    async with data_of("mixture.json", tmp_path) as data:
        web.always = "503"
        with pytest.raises(TimeoutError, match="503"):
            await data.read([BatchId(0, 39)], timeout=0.2)


@pytest.mark.parametrize("table", [{"location": ""}, {"location": "x", "sha256": "X"}, {"location": "x", "other": 1}, {}])
def test_wrong_settings_are_refused(table: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        WeightedHttpSettings.model_validate(table)


async def test_reading_after_closing_is_a_programming_error(urls: list[str], mixture: WriteMixture, tmp_path: Path) -> None:
    mixture({"providers": [source(urls[0])]})
    async with data_of("mixture.json", tmp_path) as data:
        pass
    with pytest.raises(RuntimeError, match="enter the provider"):
        await read(data, 0, 0)
    assert isinstance(data, WeightedHttpData)
