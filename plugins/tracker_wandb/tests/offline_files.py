"""Reads what the library wrote offline, independently of the library: records of its file, as its protobuf says.

The file is 7 bytes (`:W&B`, a magic number, a version), then blocks of 32 KiB of LevelDB's log: crc (4), length (2), type (1).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wandb.proto import wandb_internal_pb2

from psyche_core.testing.tracker import Kept

TIMEOUT = 30.0
BLOCK = 32 * 1024
HEADER = 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def records(path: Path) -> Iterator[Any]:
    content = path.read_bytes()
    assert content.startswith(b":W&B")
    place, parts = HEADER, b""
    while place + HEADER <= len(content):
        left = BLOCK - place % BLOCK
        if left < HEADER:
            place += left
            continue
        length, kind = int.from_bytes(content[place + 4 : place + 6], "little"), content[place + 6]
        if kind == 0:
            place += left
            continue
        parts += content[place + HEADER : place + HEADER + length]
        place += HEADER + length
        if kind in (FULL, LAST):
            record: Any = wandb_internal_pb2.Record()  # type: ignore[attr-defined]  # made by protobuf when it is imported
            record.ParseFromString(parts)
            yield record
            parts = b""


def name_of(item: Any) -> str:
    return item.key or ".".join(item.nested_key)


def read_file(path: Path) -> tuple[Kept, dict[str, Any]]:
    """What one run kept, and facts about it."""
    kept = Kept()
    facts: dict[str, Any] = {"exit_code": None, "times": {}}
    for record in records(path):
        match record.WhichOneof("record_type"):
            case "run":
                facts |= {"project": record.run.project, "name": record.run.display_name, "group": record.run.run_group}
                facts |= {"entity": record.run.entity, "host": record.run.host}
                for item in record.run.config.update:
                    value = json.loads(item.value_json)
                    kept.config[name_of(item)] = str(value)
            case "history":
                row = {name_of(item): json.loads(item.value_json) for item in record.history.item}
                step = row.pop("step")
                for key, value in row.items():
                    if isinstance(value, str):
                        kept.texts[key, step] = value
                    elif not key.startswith("_"):
                        kept.figures[key, step] = value
                    facts["times"][step] = row["_timestamp"]
            case "exit":
                facts["exit_code"] = record.exit.exit_code
    return kept, facts


def read_all(folder: Path) -> tuple[Kept, list[dict[str, Any]]]:
    """What all runs in a folder kept together, and the facts of each, once the library's own process has written the last."""
    deadline = time.monotonic() + TIMEOUT
    while True:
        together, facts = Kept(), []
        for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
            kept, fact = read_file(path)
            together.figures |= kept.figures
            together.texts |= kept.texts
            together.config |= kept.config
            facts.append(fact)
        if all(fact["exit_code"] is not None for fact in facts):
            return together, facts

        assert time.monotonic() < deadline, f"a run was not ended: {facts}"
        time.sleep(0.02)
