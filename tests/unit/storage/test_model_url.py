"""URLs of places for models: what each names, and what is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche_core.config.run_config import Choice
from psyche_core.errors import ConfigError
from psyche_core.storage.model_stores.url import ModelUrl, parse_model_url


@pytest.mark.parametrize(
    ("text", "url", "checkpoint"),
    [
        ("hf://owner/name", ModelUrl("hf", "owner/name"), Choice("Hub", {"repo_id": "owner/name"})),
        ("hf://gpt2/", ModelUrl("hf", "gpt2"), Choice("Hub", {"repo_id": "gpt2"})),
        (
            "hf://Owner/Name@v1.0",
            ModelUrl("hf", "Owner/Name", revision="v1.0"),
            Choice("Hub", {"repo_id": "Owner/Name", "revision": "v1.0"}),
        ),
        ("gs://bucket", ModelUrl("gs", "bucket"), Choice("Gcs", {"bucket": "bucket"})),
        ("gs://bucket/a/b/", ModelUrl("gs", "bucket", "a/b"), Choice("Gcs", {"bucket": "bucket", "prefix": "a/b"})),
        ("s3://bucket/a", ModelUrl("s3", "bucket", "a"), Choice("Gcs", {"bucket": "s3://bucket", "prefix": "a"})),
        ("file:///net/our%20models/", ModelUrl("file", "/net/our models"), Choice("Hub", {"repo_id": "/net/our models"})),
    ],
)
def test_each_form(text: str, url: ModelUrl, checkpoint: Choice) -> None:
    assert parse_model_url(text) == url
    assert url.checkpoint() == checkpoint


@pytest.mark.parametrize(
    "text",
    [
        "",
        "owner/name",
        "hf://",
        "hf://a/b/c",
        "hf://a/b@",
        "hf://a b/c",
        "gs://",
        "gs://UPPER",
        "gs://bucket/../other",
        "gs://bucket?x=1",
        "s3://bucket#part",
        "file://host/folder",
        "file:///",
        "file://",
        "http://[half",
        "https://huggingface.co/owner/name",
    ],
)
def test_anything_else_is_one_sentence(text: str) -> None:
    with pytest.raises(ConfigError, match="is not the URL of a model store; expected hf://OWNER/NAME"):
        parse_model_url(text)


@given(st.text(max_size=80) | st.builds("{}://{}".format, st.sampled_from(["hf", "gs", "s3", "file"]), st.text(max_size=60)))
def test_any_text_is_a_place_or_a_sentence(text: str) -> None:
    try:
        url = parse_model_url(text)
    except ConfigError as error:
        told = str(error)
    else:
        told = url.checkpoint().name
        assert url.name
    assert told in ("Hub", "Gcs") or "\n" not in told
