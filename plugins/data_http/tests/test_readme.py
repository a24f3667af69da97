"""The README's examples are read and run."""

import re
import textwrap
import tomllib
from pathlib import Path
from typing import Any

from plugins.data_http.tests.conftest import WebServer
from psyche_data_http.hooks import psyche_register_data
from psyche_data_http.locations import GoogleBucketTable, HttpLocation, S3BucketTable
from psyche_data_http.settings import HttpSettings
from psyche_data_http.weighted import mixture_table

README = (Path(__file__).parents[1] / "README.md").read_text()


def snippets(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_the_tables_of_the_readme_are_valid() -> None:
    registrations = {registration.name: registration for registration in psyche_register_data()}
    shown = [tomllib.loads(snippet)["model"]["LLM"]["data_location"] for snippet in snippets("toml")]

    assert [list(table) for table in shown] == [["Http"], ["WeightedHttp"]]
    for table in shown:
        for name, keys in table.items():
            schema = registrations[name].settings
            assert schema is not None
            settings = schema.model_validate(keys)
            assert set(keys) == set(type(settings).model_fields), f"all keys of {name} are shown"
    assert shown[0]["Http"]["cache_bytes"] == HttpSettings.model_fields["cache_bytes"].default


def test_every_location_and_key_of_a_bucket_is_in_the_readme() -> None:
    for name in HttpLocation.model_fields:
        assert f"{{ {name} = " in README
    for name in {*GoogleBucketTable.model_fields, *S3BucketTable.model_fields} - {"bucket_name"}:
        assert f"\n| `{name}` |" in README


def test_the_mixtures_of_the_readme_are_valid() -> None:
    over_http, of_all_kinds = (mixture_table(snippet.encode(), name="README.md") for snippet in snippets("json"))
    assert over_http.weights == (0.3, 0.7)
    assert of_all_kinds.weights == (0.5, 0.3, 0.2)
    assert [getattr(entry.source, "name", "Http") for entry in of_all_kinds.providers] == ["Local", "Http", "Preprocessed"]


async def test_the_program_of_the_readme_runs(web: WebServer) -> None:
    tokens = bytes(range(256)) * 16 * 8
    (web.folder / "tokens.bin").write_bytes(tokens)
    (snippet,) = snippets("python")
    program = snippet.replace("https://host.example/tokens.bin", web.url("tokens.bin"))
    namespace: dict[str, Any] = {}
    exec(f"async def program():\n{textwrap.indent(program, '    ')}\n    return samples", namespace)

    assert (await namespace["program"]()).tokens == tokens
