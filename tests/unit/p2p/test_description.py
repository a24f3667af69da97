"""Descriptions of models: what goes in comes out, and nothing that is not plain data files goes through."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche_core.errors import WireError
from psyche_core.p2p import description
from psyche_core.wire.codec import encode as encode_cbor

NAMES = ["config.json", "tokenizer.json", "tokenizer.model", "merges.txt", "chat_template.jinja", "special_tokens_map.json"]


@given(st.dictionaries(st.sampled_from(NAMES), st.binary(max_size=200)))
def test_a_description_is_read_back_whatever_the_order(files: dict[str, bytes]) -> None:
    encoded = description.encode(files)
    assert dict(description.decode(encoded)) == files
    assert description.encode(dict(reversed(files.items()))) == encoded


@pytest.mark.parametrize(
    "name",
    [
        "../config.json",
        "/etc/x.json",
        "a/b.json",
        "model.py",
        "x.bin",
        "config.json\0",
        ".json",
        "",
        "a" * 200 + ".json",
        "con\n.json",
    ],
)
def test_names_that_could_do_harm_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be part"):
        description.encode({name: b""})
    with pytest.raises(WireError):
        description.decode(encode_cbor([1, [[name, b""]]]))


@pytest.mark.parametrize(
    "fields",
    [
        [],
        [1],
        [2, []],
        [True, []],
        [1.0, []],
        [1, [["config.json"]]],
        [1, [["config.json", "text"]]],
        [1, [["b.json", b""], ["a.json", b""]]],
        [1, [["a.json", b""], ["a.json", b""]]],
        [1, [[f"{number:03}.json", b""] for number in range(65)]],
        "no list",
    ],
)
def test_other_values_are_refused(fields: Any) -> None:
    with pytest.raises(WireError):
        description.decode(encode_cbor(fields))


def test_limits_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="at most 64 files"):
        description.encode({f"{number:03}.json": b"" for number in range(65)})
    monkeypatch.setattr(description, "MAX_DESCRIPTION_BYTES", 100)
    with pytest.raises(ValueError, match="at most 100 bytes"):
        description.encode({"config.json": b"x" * 100})
    with pytest.raises(WireError, match="over the limit"):
        description.decode(encode_cbor([1, [["config.json", b"x" * 100]]]))


@given(st.binary(max_size=300))
def test_bytes_are_a_description_or_refused(data: bytes) -> None:
    try:
        files = description.decode(data)
    except WireError:
        return
    assert description.encode(files) == data
