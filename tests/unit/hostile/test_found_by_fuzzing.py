"""Each test is an input, or a kind of input, that a decoder did not stand when it was first given hostile bytes."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import anyio
import cbor2
import httpx
import pytest

from psyche_core.config.run_config import parse_data_file, parse_run_file
from psyche_core.config.sentences import shown
from psyche_core.data.token_files import MAX_NPY_HEADER, NPY_MAGIC, TokenFiles, npy_data_start
from psyche_core.errors import ConfigError, DataError, ModelError, WireError
from psyche_core.wire.codec import decode, encode
from psyche_core.wire.messages import VERSION, Finished, ModelWanted, seal, unseal
from psyche_core.wire.signing import SecretKey
from psyche_data_http.fetch.client import RangeClient
from psyche_data_http.file_source import RemoteFile
from psyche_p2p_quic.addresses.peer_address import PeerAddress
from psyche_p2p_quic.connections import control_frames

KEY = SecretKey(b"k" * 32)
RUN = b"r" * 32
EXAMPLE = Path(__file__).parents[3] / "examples" / "local_testnet"


def lax(value: Any) -> bytes:
    """What another program may encode."""
    return bytes(cbor2.dumps(value, canonical=True))


# ------------------------------------------------------------------------------------------------------------------ codec


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 2**64, -(2**64) - 1])
def test_a_number_that_nobody_would_decode_is_not_encoded(number: float) -> None:
    for value in (number, [0, [number]], {"a": {1: number}}, (number,)):
        with pytest.raises(ValueError, match=r"finite|from -2\*\*64 to 2\*\*64 - 1"):
            encode(value)


def test_a_key_that_is_a_number_too_large_is_not_encoded() -> None:
    with pytest.raises(ValueError, match="one of 65 bits"):
        encode({2**64: 0})


@pytest.mark.parametrize(
    "value", [{1, 2}, Decimal(1), datetime.date(2026, 1, 1), bytearray(b"x"), object(), cbor2.undefined, cbor2.CBORTag(2, b"x")]
)
def test_a_value_that_nobody_would_decode_is_not_encoded(value: object) -> None:
    with pytest.raises(TypeError, match="only None, bool, int, float, str, bytes, list, tuple and dict go over the wire"):
        encode([value])


@pytest.mark.parametrize("key", [None, True, 1.5, b"x", (1,)])
def test_a_map_key_other_than_text_or_integer_is_neither_encoded_nor_decoded(key: Any) -> None:
    with pytest.raises(TypeError, match="a map key on the wire is a str or an int"):
        encode({key: 0})
    with pytest.raises(WireError, match="map keys other than integers and text"):
        decode(lax({key: 0}), max_bytes=100)
    with pytest.raises(WireError, match="map keys other than integers and text"):
        decode(lax([{"a": 1, key: 0}]), max_bytes=100)


def test_what_is_at_the_limit_is_encoded_and_decoded() -> None:
    value = [2**64 - 1, -(2**64), 1e308, 5e-324, {2**64 - 1: "", -(2**64): b"", "k": None}, True]
    assert decode(encode(value), max_bytes=200) == value


# --------------------------------------------------------------------------------------------------------------- messages


@pytest.mark.parametrize("version", [True, float(VERSION)])
def test_an_envelope_cannot_be_written_anew_around_its_signature(version: object) -> None:
    """The version is outside the signature: `True == 1 == 1.0` gave three envelopes, with three ids, for one message."""
    sealed = seal(KEY, RUN, Finished(1, 2, 0))
    other = lax([version, *decode(sealed, max_bytes=1000)[1:]])
    assert unseal(sealed, run=RUN)[1] == Finished(1, 2, 0)
    with pytest.raises(WireError, match=f"is not {VERSION}"):
        unseal(other, run=RUN)


@pytest.mark.parametrize("fields", [[2.0, 1, 2], [4.0, 1, 2], [True, 0, 0, 0, [[0, 0]], b"h" * 32, 0, b"c" * 32, b"s" * 64]])
def test_the_kind_of_a_message_is_an_integer(fields: list[Any]) -> None:
    body = lax(fields)
    with pytest.raises(WireError, match="kind is an integer"):
        unseal(lax([VERSION, KEY.public, body, KEY.sign("message", RUN, body)]), run=RUN)
    assert unseal(seal(KEY, RUN, ModelWanted(1, 2, 3)), run=RUN)[1] == ModelWanted(1, 2, 3)


@pytest.mark.parametrize(
    "fields",
    [[False, 1, "run", b"12345678"], [0, True, "run", b"12345678"], [1.0, 5, b"x", False], [True, 5, b"x", False], [4.0, 1]],
)
def test_a_control_frame_has_one_encoding(fields: list[Any]) -> None:
    with pytest.raises(WireError, match="begins with integers"):
        control_frames.decode(lax(fields), max_bytes=1000)


# -------------------------------------------------------------------------------------------------------------- addresses


@pytest.mark.parametrize("ip", ["::ffff:0.0.0.0", "::ffff:239.255.255.250", "::FFFF:224.0.0.1"])
def test_an_address_cannot_hide_many_hosts_or_none_behind_a_mapped_one(ip: str) -> None:
    with pytest.raises(WireError, match=r"expected \[ip, port\] of one host"):
        PeerAddress.decode(encode([1, [[ip, 1900]], None]))
    assert PeerAddress.decode(encode([1, [["::ffff:192.0.2.1", 1900]], None])).sockets


@pytest.mark.parametrize("version", [True, float(VERSION)])
def test_an_address_has_one_version(version: object) -> None:
    with pytest.raises(WireError):
        PeerAddress.decode(lax([version, [], None]))


# ------------------------------------------------------------------------------------------------------------------- TOML


def run_file(old: str, new: str) -> str:
    text = (EXAMPLE / "state.toml").read_text()
    assert old in text
    return text.replace(old, new)


@pytest.mark.parametrize("number", ["9" * 4301, "0x" + "f" * 4000, "-" + "9" * 5000], ids=["decimal", "hexadecimal", "negative"])
def test_a_number_of_too_many_digits_is_a_config_error(number: str) -> None:
    with pytest.raises(ConfigError, match=r"state\.toml"):
        parse_run_file(run_file("warmup_time = 60", f"warmup_time = {number}"), source="state.toml")


@pytest.mark.parametrize("levels", [100, 1_100, 5_000])
def test_more_levels_than_python_can_go_down_are_a_config_error(levels: int) -> None:
    deep = run_file('run_id = "local-testnet"', "run_id" + ".a" * levels + " = 1")
    with pytest.raises(ConfigError, match="run_id"):
        parse_run_file(deep, source="state.toml")


def test_what_cannot_be_written_is_shown_by_its_type() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert shown(deep) == "(list)"
    assert shown(10**5000) == "(int)"
    assert shown({"a": datetime.date(2026, 1, 2)}).startswith("{'a': ")
    while deep:  # level by level: Python also frees recursively
        deep = deep.pop()


@pytest.mark.parametrize("key", ["dir", "tokenizer"])
def test_a_path_with_a_nul_character_is_a_config_error(key: str) -> None:
    text = (EXAMPLE / "data.toml").read_text()
    lines = [f'{key} = "a\\u0000b"' if line.startswith(f"{key} = ") else line for line in text.splitlines()]
    with pytest.raises(ConfigError, match="must not contain NUL"):
        parse_data_file("\n".join(lines), source="data.toml")


# ---------------------------------------------------------------------------------------------------------- other files


def test_a_model_configuration_of_too_many_levels_is_a_model_error(tmp_path: Path) -> None:
    configuration = pytest.importorskip("psyche_core.models.hf.configuration")
    (tmp_path / "config.json").write_text("[" * 100_000 + "]" * 100_000)
    with pytest.raises(ModelError, match="is not a model configuration"):
        configuration.read_configuration(tmp_path)


# ------------------------------------------------------------------------------------------------------------ token files


def test_a_location_with_a_nul_character_is_a_data_error() -> None:
    with pytest.raises(DataError, match="not a path"):
        TokenFiles(Path("to\0kens"), sequence_length=8, token_size=2)


def test_a_number_of_too_many_digits_in_a_numpy_header_is_a_data_error() -> None:
    """Hexadecimal digits are read without limit, and the sentence about the wrong type could not be written."""
    text = b"{'descr': 0x" + b"f" * 3800 + b", 'fortran_order': False, 'shape': ()}"
    head = NPY_MAGIC + b"\1\0" + len(text).to_bytes(2, "little") + text
    assert len(head) <= MAX_NPY_HEADER
    with pytest.raises(DataError, match="numpy type of a int"):
        npy_data_start(head, token_size=2, name="tokens.npy")


@pytest.mark.parametrize("field", ["first", "last", "size"])
def test_a_web_server_s_number_of_too_many_digits_is_a_data_error(field: str) -> None:
    numbers = {"first": "0", "last": "7", "size": "100"} | {field: "9" * 5000}
    content_range = f"bytes {numbers['first']}-{numbers['last']}/{numbers['size']}"

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(206, headers={"Content-Range": content_range}, content=b"x" * 8)

    async def read() -> None:
        client = RangeClient(connections=1, stall_seconds=5)
        client._http = httpx.AsyncClient(transport=httpx.MockTransport(answer))
        await client.receive(RemoteFile("http://x/tokens.bin", 100, None, None), 0, 8, bytearray())

    with pytest.raises(DataError):
        anyio.run(read)
