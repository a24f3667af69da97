"""`psyche data`: from text to token files and back, and what is wrong with data."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy
import pytest

from psyche_core.builtin.local_data import LocalData, LocalSettings
from psyche_core.cli.commands.data import proposed_length
from psyche_core.config.run_config import parse_data_file
from psyche_core.hookspecs import DataContext
from psyche_core.types import BatchId
from tests.unit.cli.conftest import Psyche

tokenizers = pytest.importorskip("tokenizers")

POEM = "".join(f"line {number} of a poem, é\n" for number in range(300))


def save_tokenizer(folder: Path, *, more: int = 0, **config: object) -> Path:
    """A byte-level tokenizer that would begin every text with `<s>`; `more` further ids. id 0 is `<s>`, id 1 `</s>`."""
    folder.mkdir(parents=True, exist_ok=True)
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    names = ["<s>", "</s>", *alphabet, *(f"<more{number}>" for number in range(more))]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({name: number for number, name in enumerate(names)}, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.enable_truncation(4)
    tokenizer.save(str(folder / "tokenizer.json"))
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_tokenizer(tmp_path / "model")


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    (folder / "b").mkdir(parents=True)
    (folder / "a.txt").write_text(POEM, encoding="utf-8")
    (folder / "b" / "c.jsonl").write_text('{"text": "short"}\n{"text": "I say </s> and go on"}\n', encoding="utf-8")
    return folder


def tokens(path: Path, dtype: str = "<u2") -> list[int]:
    values: list[int] = numpy.fromfile(path, dtype=dtype).tolist()
    return values


def text_of(ids: list[int], model: Path) -> str:
    text: str = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json")).decode(ids, skip_special_tokens=False)
    return text


def test_every_document_is_there_and_ends(psyche: Psyche, tmp_path: Path, texts: Path, model: Path) -> None:
    out = tmp_path / "corpus"
    result = psyche("data", "tokenize", texts, "--tokenizer", model, "--out", out)

    assert result.code == 0
    ids = tokens(out / "train" / "tokens.bin")
    assert ids.count(1) == 3
    assert ids[-1] == 1
    assert 0 not in ids
    assert text_of(ids, model) == f"{POEM}</s>short</s>I say </s> and go on</s>"
    assert sorted(path.name for path in out.iterdir()) == ["dataset.json", "tokenizer.json", "train"]
    assert f"{len(ids):,} tokens to train on; 3 documents of 2 files" in result.out


async def test_what_it_says_to_write_works(psyche: Psyche, tmp_path: Path, texts: Path, model: Path) -> None:
    out = tmp_path / 'odd "name" é'
    result = psyche("data", "tokenize", texts, "--tokenizer", model, "--out", out, "--seq-len", 64)
    ids = tokens(out / "train" / "tokens.bin")

    state, data = result.out.split("in state.toml:")[1].split("For a server that hands it out, in data.toml:")
    llm = tomllib.loads(state)["model"]["LLM"]
    settings = LocalSettings.model_validate(llm["data_location"]["Local"])
    async with LocalData.from_context(DataContext(settings=settings, sequence_length=llm["max_seq_len"])) as provider:
        samples = await provider.read([BatchId(0, 0)], timeout=5.0)
        assert f"{provider.num_sequences} sequences of 64 tokens" in result.out
    assert numpy.frombuffer(samples.tokens, "<u2").tolist() == ids[:64]

    data_file = parse_data_file(data, source="data.toml")
    async with LocalData.from_data_file(data_file) as provider:
        assert provider.num_sequences == len(ids) // 64


@pytest.mark.parametrize(
    ("tokens", "length"), [(0, 64), (63_999, 64), (128_000, 128), (200_000, 128), (2_047_999, 1024), (10**12, 2048)]
)
def test_a_length_is_proposed_that_leaves_a_thousand_sequences(tokens: int, length: int) -> None:
    assert proposed_length(tokens) == length


def test_a_proposed_length_is_called_an_example(psyche: Psyche, texts: Path, model: Path, tmp_path: Path) -> None:
    result = psyche("data", "tokenize", texts, "--tokenizer", model, "--out", tmp_path / "out")
    assert re.search(r"sequences of 64 tokens, for instance; --seq-len N shows another length\n", result.out)
    assert "max_seq_len = 64\n" in result.out
    asked = psyche("data", "tokenize", texts, "--tokenizer", model, "--out", tmp_path / "asked", "--seq-len", 32)
    assert "sequences of 32 tokens\n" in asked.out


def test_a_share_is_held_out(psyche: Psyche, tmp_path: Path, texts: Path, model: Path) -> None:
    out = tmp_path / "corpus"
    psyche("data", "tokenize", texts, "--tokenizer", model, "--out", out, "--held-out", "0.5")

    training, validation = (text_of(tokens(out / part / "tokens.bin"), model) for part in ("train", "validation"))
    head, _, rest = training.partition("</s>")
    tail, _, lines = validation.partition("</s>")
    assert head + tail == POEM
    assert len(head) == pytest.approx(len(POEM) / 2, abs=30)
    assert (rest, lines) == ("short</s>", "I say </s> and go on</s>")


def test_threads_and_pieces_change_nothing(tmp_path: Path, texts: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real processes: the library reads the number of threads only once."""
    contents = []
    for number, workers in enumerate((1, 3)):
        out = tmp_path / f"corpus{number}"
        command = ["data", "tokenize", texts, "--tokenizer", model, "--out", out, "--workers", workers, "--json"]
        code = (
            "from psyche_core.data.text import documents, tokenizing\n"
            f"tokenizing.BATCH_CHARACTERS = {100 + 900 * number}\n"
            f"documents.PIECE_BYTES = {64 + 200 * number}\n"
            f"from psyche_core.cli import main; main({list(map(str, command))})"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
        assert json.loads(done.stdout)["documents"] == 3
        contents.append((out / "train" / "tokens.bin").read_bytes())

    assert contents[0] == contents[1]
    assert len(contents[0]) > 2 * len(POEM)


@pytest.mark.parametrize(("more", "size"), [(0, 2), (65_536 - 258, 2), (65_537 - 258, 4)])
def test_token_size_follows_the_vocabulary(psyche: Psyche, tmp_path: Path, texts: Path, more: int, size: int) -> None:
    model = save_tokenizer(tmp_path / "model", more=more)
    result = psyche("data", "tokenize", texts, "--tokenizer", model, "--out", tmp_path / "out", "--json", "--seq-len", 100)

    found = json.loads(result.out)
    assert found["token_size"] == size
    assert found["vocabulary"] == 258 + more
    assert found["tokens"]["train"] * size == (tmp_path / "out" / "train" / "tokens.bin").stat().st_size
    assert found["sequences"] == found["tokens"]["train"] // 100


def test_four_bytes_can_be_asked_for_and_two_refused(psyche: Psyche, tmp_path: Path, texts: Path, model: Path) -> None:
    psyche("data", "tokenize", texts, "--tokenizer", model, "--out", tmp_path / "out", "--token-size", 4)
    assert text_of(tokens(tmp_path / "out" / "train" / "tokens.bin", "<u4"), model).startswith(POEM)

    large = save_tokenizer(tmp_path / "large", more=70_000)
    result = psyche("data", "tokenize", texts, "--tokenizer", large, "--out", tmp_path / "two", "--token-size", 2)
    assert (result.code, "70258 ids, too many for 2 bytes a token; use 4" in result.err) == (2, True)


@pytest.mark.parametrize(
    ("eos", "config", "expected"),
    [
        ("auto", {}, {"token": "</s>", "id": 1}),
        ("auto", {"eos_token": "<s>"}, {"token": "<s>", "id": 0}),
        ("auto", {"eos_token": {"content": "<s>"}}, {"token": "<s>", "id": 0}),
        ("none", {}, None),
        ("0", {}, {"token": "<s>", "id": 0}),
        ("<s>", {}, {"token": "<s>", "id": 0}),
    ],
)
def test_the_end_of_a_text_can_be_chosen(
    psyche: Psyche, tmp_path: Path, texts: Path, eos: str, config: dict[str, Any], expected: dict[str, Any] | None
) -> None:
    model = save_tokenizer(tmp_path / "model", **config)
    result = psyche("data", "tokenize", texts, "--tokenizer", model, "--out", tmp_path / "out", "--eos", eos, "--json")

    assert json.loads(result.out)["eos"] == expected
    ids = tokens(tmp_path / "out" / "train" / "tokens.bin")
    assert (ids[-1] == expected["id"]) if expected else not {0, 1} & set(ids)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--eos", "<nothing>"], "has no token '<nothing>'"),
        (["--eos", "999999"], "has no token '999999'"),
        (["--text-key", "body"], "has no text under 'body'"),
        (["--tokenizer", "nowhere"], "there is no tokenizer at nowhere"),
    ],
)
def test_a_failure_leaves_nothing_behind(
    psyche: Psyche, tmp_path: Path, texts: Path, model: Path, arguments: list[str], sentence: str
) -> None:
    result = psyche("data", "tokenize", texts, "--tokenizer", model, "--out", tmp_path / "out", *arguments)

    assert (result.code, sentence in result.err) == (2, True), result.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "texts"]


@pytest.mark.parametrize(("place", "said"), [("nobooks", "No such file"), ("empty", "has no texts; expected files named")])
def test_a_place_without_texts_is_the_user_s_to_mend(psyche: Psyche, tmp_path: Path, model: Path, place: str, said: str) -> None:
    (tmp_path / "empty").mkdir()
    result = psyche("data", "tokenize", tmp_path / place, "--tokenizer", model, "--out", tmp_path / "out")

    assert (result.code, said in result.err, len(result.err.splitlines())) == (2, True, 1), result.err


def test_a_full_disk_leaves_nothing_behind(
    psyche: Psyche, tmp_path: Path, texts: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    result = psyche("data", "tokenize", texts, "--tokenizer", model, "--out", tmp_path / "out")

    assert (result.code, "No space left on device; the incomplete files were removed" in result.err) == (1, True), result.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "texts"]


def test_only_our_own_folder_is_replaced(psyche: Psyche, tmp_path: Path, texts: Path, model: Path) -> None:
    command = ["data", "tokenize", texts, "--tokenizer", model, "--out", tmp_path / "out"]
    (tmp_path / "out").mkdir()
    assert psyche(*command).code == 0  # an empty folder is as good as none
    assert "replace it with --overwrite" in psyche(*command).err

    (texts / "a.txt").write_text("something else")
    assert psyche(*command, "--overwrite").code == 0
    assert text_of(tokens(tmp_path / "out" / "train" / "tokens.bin"), model).startswith("something else</s>")

    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("not to be lost")
    result = psyche(*command[:-1], tmp_path / "mine", "--overwrite")
    assert (result.code, "was not made by this command" in result.err) == (2, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "model", "out", "texts"]


def test_no_text_is_a_sentence(psyche: Psyche, tmp_path: Path, model: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    result = psyche("data", "tokenize", tmp_path / "empty.txt", "--tokenizer", model, "--out", tmp_path / "out")

    assert (result.code, "the 1 files have no text to train on" in result.err) == (2, True)


def inspected(psyche: Psyche, *arguments: object) -> tuple[dict[str, Any], int]:
    result = psyche("data", "inspect", *arguments, "--json")
    return json.loads(result.out), result.code


def test_inspect_shows_both_parts_with_the_folders_own_tokenizer(
    psyche: Psyche, tmp_path: Path, texts: Path, model: Path
) -> None:
    out = tmp_path / "corpus"
    psyche("data", "tokenize", texts, "--tokenizer", model, "--out", out, "--held-out", "0.2", "--token-size", 4)

    found, code = inspected(psyche, out, "--seq-len", 50)

    assert code == 0
    assert found["vocabulary"] == 258
    assert list(found["parts"]) == ["train", "validation"]
    train = found["parts"]["train"]
    ids = tokens(out / "train" / "tokens.bin", "<u4")
    assert (train["tokens"], train["sequences"]) == (len(ids), len(ids) // 50)
    assert train["ids"] == [min(ids), max(ids)]
    assert (train["token_size"], train["token_size_from"]) == (4, "dataset.json")
    assert train["sample"] == {"ids": ids[:64], "text": text_of(ids[:64], model)}

    shown = psyche("data", "inspect", out, "--seq-len", 50)
    assert shown.code == 0
    assert "line 0 of a poem" in shown.out
    assert f"{len(ids):,}" in shown.out


def test_inspect_shows_a_sample_from_where_it_is_told(psyche: Psyche, tmp_path: Path) -> None:
    for name, first in (("a.bin", 0), ("b.bin", 10)):
        numpy.arange(first, first + 10, dtype="<u2").tofile(tmp_path / name)

    found, _ = inspected(psyche, tmp_path, "--sample", 13)

    assert found["parts"]["all"]["sample"]["ids"] == list(range(13, 20))


@pytest.mark.parametrize(
    ("dtype", "header", "expected"),
    [
        ("<u4", True, (4, "the numpy header")),
        ("<u2", True, (2, "the numpy header")),
        ("<u4", False, (4, "a guess")),
        ("<u2", False, (2, "a guess")),
    ],
)
def test_inspect_finds_out_the_token_size(
    psyche: Psyche, tmp_path: Path, dtype: str, header: bool, expected: tuple[int, str]
) -> None:
    values = numpy.random.default_rng(3).integers(0, 50_000, 5000).astype(dtype)
    if header:
        numpy.save(tmp_path / "a.npy", values)
    else:
        values.tofile(tmp_path / "a.bin")

    found, code = inspected(psyche, tmp_path)
    part = found["parts"]["all"]

    assert code == 0
    assert (part["token_size"], part["token_size_from"]) == expected
    assert (part["tokens"], part["ids"]) == (5000, [int(values.min()), int(values.max())])


def test_inspect_says_what_is_wrong_and_goes_on(psyche: Psyche, tmp_path: Path, model: Path) -> None:
    numpy.array([3, 4, 5, 400], "<u2").tofile(tmp_path / "a.bin")
    (tmp_path / "b.bin").write_bytes(bytes([3, 0, 4, 0, 5, 0, 6]))
    numpy.save(tmp_path / "c.npy", numpy.zeros(4, "<f4"))
    numpy.save(tmp_path / "d.npy", numpy.ones(1000, "<u2"))
    (tmp_path / "d.npy").write_bytes((tmp_path / "d.npy").read_bytes()[:-100])
    numpy.array([3, 4, 5, 6, 7], "<u2").tofile(tmp_path / "e.bin")

    command = [tmp_path, "--seq-len", 4, "--tokenizer", model, "--token-size", 2]
    found, code = inspected(psyche, *command)

    assert code == 1
    assert [Path(file["path"]).name for file in found["parts"]["all"]["files"]] == ["a.bin", "b.bin", "e.bin"]
    problems = "\n".join(found["problems"])
    assert "a.bin has token id 400, but the tokenizer's ids are below 258" in problems
    assert "b.bin has 1 bytes after its last whole token" in problems
    assert "b.bin has 3 tokens, not one whole sequence of 4" in problems
    assert "c.npy holds numpy type '<f4'" in problems
    assert "d.npy is cut short: its header promises 1000 tokens, 950 are there" in problems
    assert len(found["problems"]) == 5
    shown = psyche("data", "inspect", *command)
    assert shown.code == 1
    assert shown.out.count("problem: ") == 5


def test_inspect_reads_parquet(psyche: Psyche, tmp_path: Path, model: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    rows = [[10 + row] * 4 for row in range(6)]
    pq.write_table(
        pa.table({"inputs": rows, "labels": [[-100, -100, 1, -100]] * 6}), tmp_path / "train.parquet", row_group_size=4
    )

    found, code = inspected(psyche, tmp_path, "--tokenizer", model, "--seq-len", 4, "--sample", 5)
    part = found["parts"]["all"]
    assert code == 0
    assert (part["kind"], part["tokens"], part["sequences"], part["ids"]) == ("parquet", 24, 6, [10, 15])
    (file,) = part["files"]
    assert (file["rows"], file["row_groups"], file["columns"]) == (6, 2, ["inputs", "labels"])
    assert (file["row_lengths"], file["unlabelled_share"]) == ([4, 4], 0.75)
    assert part["sample"]["ids"] == [15] * 4
    assert "75% of the tokens are not predicted" in psyche("data", "inspect", tmp_path).out

    pq.write_table(pa.table({"inputs": [[1, 2], [-5]]}), tmp_path / "bad.parquet")
    found, code = inspected(psyche, tmp_path, "--seq-len", 8)
    assert code == 1
    problems = "\n".join(found["problems"])
    assert "bad.parquet has token id -5; ids must not be negative" in problems
    assert "bad.parquet has rows of 1 to 2 tokens; all must have exactly max_seq_len" in problems
    assert "train.parquet has rows of 4 tokens, not of 8" in problems


def test_text_cannot_play_with_the_terminal(psyche: Psyche, tmp_path: Path, model: Path) -> None:
    (tmp_path / "evil.txt").write_text("a\x1b[31mred\x07 [bold]b")
    psyche("data", "tokenize", tmp_path / "evil.txt", "--tokenizer", model, "--out", tmp_path / "out")

    shown = psyche("data", "inspect", tmp_path / "out")

    assert "\x1b" not in shown.out
    assert "a\N{REPLACEMENT CHARACTER}[31mred\N{REPLACEMENT CHARACTER} [bold]b</s>" in shown.out


@pytest.mark.parametrize(
    ("place", "sentence", "code"), [("nowhere", "nowhere does not exist", 2), ("empty", "has no token files", 2)]
)
def test_nothing_to_inspect_is_a_sentence(psyche: Psyche, tmp_path: Path, place: str, sentence: str, code: int) -> None:
    (tmp_path / "empty").mkdir()
    result = psyche("data", "inspect", tmp_path / place)

    assert (result.code, sentence in result.err) == (code, True)
