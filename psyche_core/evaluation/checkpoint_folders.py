"""Finds the folder of the model that a command names: a model folder, a folder of checkpoints, or a repository of the Hub."""

from __future__ import annotations

import re
from pathlib import Path

from psyche_core.config.run_config import Choice
from psyche_core.errors import NoSuchModel
from psyche_core.models.hf.configuration import CONFIG_FILE
from psyche_core.storage.model_stores.url import is_hub_name
from psyche_core.storage.scratch import default_folder
from psyche_core.training.checkpoints import sources

_CHECKPOINT = re.compile(r"(?P<run>.+)-step(?P<step>\d+)")


def model_folder(place: str, *, base: Path | None = None) -> Path:
    """Return the folder with a model's config.json.

    place: the folder itself; a folder of one run's checkpoints, of which the newest is taken; or a repository of the Hub
    (owner/name), which is downloaded unless it is in the Hub's cache. base: where a relative path starts; default: the current
    folder. Raises NoSuchModel, and ModelError if a download fails.
    """
    found = local_folder(place, base=base)
    if found is not None:
        return found

    hub = (base or Path.cwd()) / place
    return sources.find(Choice("Hub", {"repo_id": place}), base=hub.parent, cache=default_folder())


def local_folder(place: str, *, base: Path | None = None) -> Path | None:
    """Do the same as model_folder, but return None for a repository of the Hub, and download nothing. Raises NoSuchModel."""
    path = (base or Path.cwd()) / place
    if path.is_file():
        message = f"{place} is a file; a model is a folder with {CONFIG_FILE} and safetensors"
        raise NoSuchModel(message)
    if path.is_dir():
        return path if (path / CONFIG_FILE).is_file() else _newest(path)
    if is_hub_name(place):
        return None

    message = (
        f"there is no folder {place}; name a folder with {CONFIG_FILE} and safetensors, or a repository of the Hub (owner/name)"
    )
    raise NoSuchModel(message)


def _newest(folder: Path) -> Path:
    """Return the newest checkpoint in a folder that --checkpoint-dir named. Raises NoSuchModel if there is no single run."""
    runs: dict[str, dict[int, Path]] = {}
    for path in folder.iterdir():
        named = _CHECKPOINT.fullmatch(path.name)
        if named is not None and (path / CONFIG_FILE).is_file():
            runs.setdefault(named["run"], {})[int(named["step"])] = path
    if not runs:
        message = f"{folder} holds no {CONFIG_FILE} and no checkpoint RUN-stepN; name the folder of a model"
        raise NoSuchModel(message)
    if len(runs) > 1:
        message = f"{folder} holds checkpoints of several runs ({', '.join(sorted(runs))}); name one checkpoint"
        raise NoSuchModel(message)

    [steps] = runs.values()
    return steps[max(steps)]
