"""A good run's file, and changes of it: for tests of what is read and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import strategies as st

from psyche_core.config.run_config import (
    parse_run_file,
)
from psyche_core.errors import ConfigError

GOOD = """
run_id = "test"
run_state = "WaitingForMembers"

[config]
warmup_time = 30
cooldown_time = 5
epoch_time = 60
max_round_train_time = 15
round_witness_time = 2
min_clients = 2
init_min_clients = 3
verification_percent = 0
witness_nodes = 1
global_batch_size_start = 4
global_batch_size_end = 8
global_batch_size_warmup_tokens = 1000
total_steps = 25000
waiting_for_members_extra_time = 3

[model.LLM]
architecture = "HfLlama"
data_type = "Pretraining"
max_seq_len = 512
cold_start_warmup_steps = 2

[model.LLM.data_location]
Server = "127.0.0.1:20001"

[model.LLM.checkpoint.Hub]
repo_id = "emozilla/llama2-20m-init"

[model.LLM.lr_schedule.Cosine]
base_lr = 4.0e-4
warmup_steps = 20
warmup_init_lr = 0.0
total_steps = 25000
final_lr = 4.0e-5

[model.LLM.optimizer.Distro]
clip_grad_norm = 1
compression_decay = 0.999
compression_chunk = 64
compression_topk = 8
quantize_1bit = true
"""


def changed(*replacements: tuple[str, str]) -> str:
    text = GOOD
    for old, new in replacements:
        assert text.count(old) == 1, f"{old!r} is there {text.count(old)} times"
        text = text.replace(old, new)
    return text


def refusal(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_run_file(text, source="state.toml")
    return [line.removeprefix("state.toml: ") for line in str(caught.value).splitlines()]


KEYS = ["ab" * 32, "0f" * 32]


def with_checkpointers(keys: Any) -> str:
    return changed(("\nwitness_nodes", f"\ncheckpointers = {json.dumps(keys)}\nwitness_nodes"))


names = st.from_regex(r"[A-Za-z][A-Za-z0-9_-]{0,63}", fullmatch=True)
