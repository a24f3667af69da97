"""Checks the files that a run configuration names on this machine: the model's folder, token files, the tokenizer.

The checks are those that members would do. All problems are reported together. Nothing is written or downloaded, the network is
not used, and weights are not read. A note names each place that cannot be checked here (a repository of the Hub, a bucket, a web
server). transformers reads a model's configuration, if it is installed. A server that only hosts a run imports none of this.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from psyche_core.builtin.local_data import LocalSettings, token_place
from psyche_core.builtin.preprocessed_data import PreprocessedSettings, is_hub_data_set
from psyche_core.config.run_config import DataFile, LLMConfig
from psyche_core.data.parquet.files import parquet_paths
from psyche_core.data.text.tokenizing import DESCRIPTION, described
from psyche_core.data.text_corpus import check_text
from psyche_core.data.token_files import count_sequences, token_bytes
from psyche_core.errors import DataError, ModelError
from psyche_core.server.run_files import RunFiles
from psyche_core.storage.model_stores.url import is_hub_name
from psyche_core.training.checkpoints import sources


@dataclass(frozen=True, slots=True)
class Problem:
    """One sentence about what is wrong."""

    sentence: str


@dataclass(frozen=True, slots=True)
class Note:
    """One sentence about what was not checked."""

    sentence: str


CheckResult = Problem | Note


def check_disk(files: RunFiles, *, base: Path) -> Iterator[CheckResult]:
    """Yield problems of the named files on this disk, and notes about places that could not be checked.

    base: folder that relative paths of the run file start from.
    """
    llm = files.run.model.LLM
    yield from _model(llm, base=base)
    made_at = None
    if files.data is not None:
        try:
            made_at = None if check_text(files.data) else files.data.dir
            if made_at is not None:
                yield Note(f"the token files in {made_at} will be made at first use")
            else:
                _check_served(files.data)
        except DataError as error:
            yield Problem(str(error))
    yield from _data(llm, base=base, made_at=made_at, served=files.data is not None)


def _model(llm: LLMConfig, *, base: Path) -> Iterator[CheckResult]:
    checkpoint = llm.checkpoint
    repo = (checkpoint.settings or {}).get("repo_id", "")
    try:
        if checkpoint.name in ("Gcs", "P2PGcs"):
            yield Note("the model's bucket was not checked")
            return

        folder = sources.local_folder(checkpoint, base=base)
        if folder is None and checkpoint.name in ("Hub", "P2P") and is_hub_name(repo):
            yield Note(f"the model {repo} is not a folder here ({base / repo}); as a repository of the Hub it was not checked")
            return

        _check_folder(llm, folder or sources.find(checkpoint, base=base, cache=base))
    except ModelError as error:
        yield Problem(str(error))
    except ModuleNotFoundError as error:
        yield Note(f"the model's config.json was not read: {error.name} is not installed (pip install 'psyche-core[train]')")


def _check_folder(llm: LLMConfig, folder: Path) -> None:
    """Check that a built-in architecture can be built from the folder; raises ModelError.

    Folders of other plugins are not checked.
    """
    from psyche_core.models.hf.model_types import MODEL_TYPES

    if llm.architecture in MODEL_TYPES:
        from psyche_core.models.hf.configuration import read_configuration  # transformers takes seconds to import

        read_configuration(folder, required_types=MODEL_TYPES[llm.architecture]).check_length(llm.max_seq_len)


def _check_served(data: DataFile) -> None:
    _check_token_size(data.dir, data.token_bytes, said="data.toml: token_size")
    count_sequences(token_place(data.dir), sequence_length=data.seq_len, token_size=data.token_bytes)


def _check_token_size(place: Path, size: int, *, said: str) -> None:
    """Compare a run's token size with the one in the description of the token files, if there is one. Raises DataError.

    said: the key of the token size. With a wrong size the tokens are wrong, and only the decoded text would show it.
    """
    says = next(filter(None, map(described, (place, *place.absolute().parents[:1]))), None)
    if says is not None and says["token_size"] != size:
        names = {2: "TwoBytes", 4: "FourBytes"}
        message = (
            f'{said} = "{names[size]}", but the tokens in {place} have {says["token_size"]} bytes each, as its {DESCRIPTION} '
            f'says; write "{names[says["token_size"]]}"'
        )
        raise DataError(message)


def _data(llm: LLMConfig, *, base: Path, made_at: Path | None, served: bool) -> Iterator[CheckResult]:
    name, settings = llm.data_location.name, llm.data_location.settings or {}
    try:
        match name:
            case "Dummy":
                return
            case "Local":
                local = LocalSettings.model_validate(settings)
                place = base / local.location
                if made_at is not None and place.resolve().is_relative_to(made_at.resolve()):
                    return  # reported above
                _check_token_size(place, token_bytes(local.token_size), said="data_location.Local: token_size")
                count_sequences(token_place(place), sequence_length=llm.max_seq_len, token_size=token_bytes(local.token_size))
            case "Preprocessed":
                rows = PreprocessedSettings.model_validate(settings)
                if (base / rows.location).exists() or not is_hub_data_set(rows.location):
                    parquet_paths(base / rows.location, rows.split)
                else:
                    yield Note(
                        f"the data set {rows.location} is not a folder here ({base / rows.location}); the Hub was not checked"
                    )
            case "Server":
                if not served:
                    yield Note("the server's data (data_location.Server) was not checked; give --data-config data.toml")
            case _:
                yield Note(f"data_location.{name} was not checked")
    except DataError as error:
        yield Problem(str(error))
