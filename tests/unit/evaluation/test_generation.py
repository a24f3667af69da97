"""Text that a model writes: as transformers writes it, with seeds of its own, within limits."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch

from psyche_core.errors import InputError, NoSuchModel
from psyche_core.evaluation.checkpoint_folders import model_folder
from psyche_core.evaluation.generation import write
from psyche_core.evaluation.sampling import Sampling, SeededChoice
from psyche_core.evaluation.text_model import TextModel, open_text_model
from tests.unit.evaluation.tiny_checkpoint import make_checkpoint

PROMPT = "To be, or not to be"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TextModel:
    return open_text_model(make_checkpoint(tmp_path_factory.mktemp("model")), device="cpu")


def test_the_likeliest_tokens_are_those_of_the_models_logits(model: TextModel) -> None:
    ids = model.tokenizer(PROMPT)["input_ids"]
    start = len(ids)
    for _ in range(12):
        with torch.no_grad():
            ids.append(int(model.module(torch.tensor([ids])).logits[0, -1].argmax()))
    written = write(model, PROMPT, max_new_tokens=12)
    assert written.text == model.tokenizer.decode(ids[start:], skip_special_tokens=True)
    assert (written.prompt_tokens, written.tokens, written.end) == (start, 12, "length")


def test_a_seed_gives_a_text_and_disturbs_no_other_random_numbers(model: TextModel) -> None:
    texts = []
    for seed in (7, 7, 8):
        before = torch.random.get_rng_state()
        texts.append(write(model, PROMPT, sampling=Sampling(1.0, seed=seed), max_new_tokens=12).text)
        assert torch.equal(before, torch.random.get_rng_state())
    assert texts[0] == texts[1] != texts[2]
    assert (
        write(model, PROMPT, sampling=Sampling(1.0, top_k=1), max_new_tokens=12).text
        == write(model, PROMPT, max_new_tokens=12).text
    )


def test_tokens_are_drawn_with_the_models_probabilities() -> None:
    wanted = torch.tensor([0.5, 0.3, 0.2])
    choose = SeededChoice(3)
    scores = wanted.log()[None]
    drawn = Counter(int(choose(torch.zeros(1, 1, dtype=torch.long), scores).argmax()) for _ in range(4000))
    assert [drawn[token] / 4000 for token in range(3)] == pytest.approx(wanted.tolist(), abs=0.03)


def test_pieces_add_up_to_the_text_and_the_end_of_a_text_ends_it(model: TextModel) -> None:
    pieces: list[str] = []
    written = write(model, PROMPT, sampling=Sampling(1.0), max_new_tokens=20, on_text=pieces.append)
    assert len(pieces) > 1
    assert "".join(pieces) == written.text
    first = model.tokenizer(written.text)["input_ids"][4]
    model.module.generation_config.eos_token_id = first
    try:
        ended = write(model, PROMPT, sampling=Sampling(1.0), max_new_tokens=20)
    finally:
        model.module.generation_config.eos_token_id = 0
    assert (ended.end, ended.tokens < 20) == ("end", True)


def test_a_text_never_gets_longer_than_the_model_reads(tmp_path: Path) -> None:
    short = open_text_model(make_checkpoint(tmp_path, max_position_embeddings=16), device="cpu")
    written = write(short, "To be", max_new_tokens=100)
    assert written.prompt_tokens + written.tokens == 16
    with pytest.raises(InputError, match=r"^the prompt has \d+ tokens and the model reads at most 16; shorten it$"):
        write(short, "To be, or not to be: that is the question " * 5)
    with pytest.raises(InputError, match="no chat template"):
        write(short, "To be", chat=True)


def test_the_newest_checkpoint_of_a_run_is_found(tmp_path: Path) -> None:
    for name in ("first-light-step9", "first-light-step10", "first-light-step11-abandoned"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    assert model_folder(str(tmp_path)).name == "first-light-step10"
    assert model_folder(str(tmp_path / "first-light-step9")).name == "first-light-step9"
    (tmp_path / "other-step1").mkdir()
    (tmp_path / "other-step1" / "config.json").write_text("{}")
    with pytest.raises(NoSuchModel, match=r"checkpoints of several runs \(first-light, other\)"):
        model_folder(str(tmp_path))
    with pytest.raises(NoSuchModel, match=r"^there is no folder nowhere; name a folder"):
        model_folder("nowhere", base=tmp_path)
