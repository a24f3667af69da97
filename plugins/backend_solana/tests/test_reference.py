"""The other implementation's accounts, built here byte by byte as documented, and read back."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference_bytes import account
from solders.pubkey import Pubkey

from psyche_backend_solana.commands.context import plain
from psyche_backend_solana.layouts import reference
from psyche_core.errors import WireError


def test_what_is_documented_is_read() -> None:
    read = plain(reference.parse_account(bytes(account())))
    assert (read["nonce"], read["run_id"], read["name"], read["client_version"]) == (
        777,
        "consilience-40b",
        "Consilience",
        "sha256:abc",
    )
    assert (read["run_state"], read["pending_pause"], read["since"]) == ("RoundTrain", True, 1_750_000_000)
    assert (read["num_parameters"], read["vocab_size"], read["description"]) == (40_000_000_000, 129_280, "forty billion")
    assert read["progress"] == {"epoch": 7, "step": 1_234, "epoch_start_data_index": 99_000}
    assert (read["config"]["epoch_time"], read["config"]["global_batch_size_end"]) == (7_200, 512)
    assert read["config"]["waiting_for_members_extra_time"] == 3
    llm = read["model"]["LLM"]
    assert (llm["max_seq_len"], llm["architecture"], llm["data_type"]) == (2048, "HfDeepseek", "Pretraining")
    assert llm["checkpoint"] == {"P2P": {"repo_id": "owner/model", "revision": "main"}}
    place = llm["data_location"]["Http"]
    assert place["location"]["NumberedFiles"] == {
        "url_template": "https://x/{}.ds",
        "start_index": 5,
        "n_left_pad_zeros": 4,
        "num_files": 20,
    }
    assert (place["token_size_in_bytes"], place["shuffle_seed"]) == ("FourBytes", "07" * 32)
    assert llm["lr_schedule"]["Cosine"]["total_steps"] == 25_000
    distro = llm["optimizer"]["Distro"]
    assert (distro["clip_grad_norm"], distro["weight_decay"], distro["compression_chunk"]) == (1.0, None, 64)
    assert read["clients"] == [
        {"slot": 0, "address": str(Pubkey(b"s" * 32)), "p2p": "70" * 32, "state": "Dropped", "exited_height": 12}
    ]
    assert read["exited_clients"] == []
    assert [member["earned"] for member in read["accounts"]] == [5, 6]
    assert [member["address"] for member in read["pending"]] == [str(Pubkey(b"s" * 32))]
    assert read["future_rates"] == {"earning_total_shared": 200, "slashing_per_client": 20}


def test_an_instance_is_read() -> None:
    data = reference.INSTANCE_MAGIC + b"\xff" + b"m" * 32 + b"j" * 32 + b"a" * 32 + struct.pack("<I", 4) + b"test"
    read = reference.parse_instance(data.ljust(reference.INSTANCE_BYTES, b"\0"))
    assert (read["run_id"], read["account"], read["join_authority"]) == ("test", Pubkey(b"a" * 32), Pubkey(b"j" * 32))
    for wrong in (data, b"\0" + data[1:].ljust(172, b"\0"), data[:105] + b"\xff" * 68):
        with pytest.raises(WireError):
            reference.parse_instance(wrong)


@pytest.mark.parametrize(
    ("at", "content", "sentence"),
    [(0, b"\0", "discriminator"), (8, b"\2", "version 1"), (75_928, b"\xff\xff", "65535 clients"), (119_000, b"\2\2", "members")],
)
def test_what_is_no_such_account_is_refused(at: int, content: bytes, sentence: str) -> None:
    data = account()
    data[at : at + len(content)] = content
    with pytest.raises(WireError, match=sentence):
        reference.parse_account(bytes(data))
    with pytest.raises(WireError, match="119,160"):
        reference.parse_account(bytes(data)[:-1])


@given(st.lists(st.tuples(st.integers(16, reference.ACCOUNT_BYTES - 1), st.integers(0, 255)), max_size=60))
def test_whatever_is_inside_it_is_read_or_refused_and_can_be_printed(changes: list[tuple[int, int]]) -> None:
    data = account()
    for at, value in changes:
        data[at] = value
    try:
        read = reference.parse_account(bytes(data))
    except WireError:
        return
    json.dumps(plain(read))
