"""Command lines of the Rust implementation as ours: the rules of docs/reference/seeds-commands.md, for tests."""

from __future__ import annotations

import re
import shlex

RPC = "http://127.0.0.1:8899"
DEVNET = "https://api.devnet.solana.com"
ADDRESS = "8NZi3WUMbTa3tX2NvQAPjJFz1b21t2tEN2Lp2S1FCyja"
VALUES = {"PUBKEY": ADDRESS, "RPC": RPC, "WS": "ws://127.0.0.1:8900", "FILE": "file", "RUN": "run"}
"""Placeholders of the list, and what stands in their place for the parser."""

PROGRAMS = {
    "psyche-centralized-client": ["psyche", "client"],
    "psyche-centralized-server": ["psyche", "server"],
    "psyche-centralized-local-testnet": ["psyche", "testnet"],
    "psyche-sidecar": ["psyche", "sidecar"],
    "run-manager": ["psyche", "run-manager"],
}


def ours(theirs: str) -> list[list[str]]:
    """Our commands, as words with the program first, for one of theirs. Raises KeyError for a program without a rule."""
    words = shlex.split(theirs)
    given = {}
    while "=" in words[0] and not words[0].startswith("-"):
        name, _, value = words.pop(0).partition("=")
        given[name] = value
    if "--command" in words and words[0] == "nix":
        words = words[words.index("--command") + 1 :]
    if words[:2] == ["cargo", "run"]:
        return _cargo(words)
    program = words[0].removeprefix("./")
    if program == "just":
        return _recipe(words[1:], given)
    if program == "psyche-solana-client":
        return [_solana_client(words[1:])]
    if program == "solana-keygen":
        return [_keygen(words[1:])]
    return [[*PROGRAMS[program], *words[1:]]]


def filled(words: list[str]) -> list[str]:
    """Words with placeholders replaced."""
    return [VALUES.get(word, word) for word in words]


def _cargo(words: list[str]) -> list[list[str]]:
    after = words[words.index("--") + 1 :]
    if "--example" in words:
        return [["psyche", "train-local", *(["--help"] if after == ["---help"] else after)]]
    return ours(shlex.join([words[words.index("--bin") + 1], *after]))


def _solana_client(words: list[str]) -> list[str]:
    command, *rest = words
    if command == "train":
        return ["psyche", "client", "train", "--backend", "solana", *rest]
    if command == "predownload":
        return ["psyche", "predownload", "--backend", "solana", *rest]
    if command.endswith("-static-p2p-identity"):
        return ["psyche", "client", command, *rest]
    return ["psyche", "run-manager", command, *rest]


def _keygen(words: list[str]) -> list[str]:
    if words[0] == "new":
        return ["psyche", "solana", "keygen", words[words.index("--outfile") + 1]]
    return ["psyche", "solana", "address", words[1]]


def _recipe(words: list[str], given: dict[str, str]) -> list[list[str]]:
    match words:
        case ["run-manager", file]:
            return [["psyche", "run-manager", "--env-file", file]]
        case ["check-client"]:
            return [["psyche", "client", "train", "--help"]]
        case ["local-testnet", *rest]:
            return [["psyche", "testnet", "start", *rest]]
        case ["train-model-python", *rest]:
            return [["psyche", "train-local", *rest]]
        case ["dev", name, *rest]:
            run = next((word.partition("=")[2] for word in rest if word.startswith("run_id=")), "test")
            return _development(name, run, given)
    message = f"no rule for the recipe {' '.join(words)}"
    raise KeyError(message)


def _development(name: str, run: str, given: dict[str, str]) -> list[list[str]]:
    found = re.fullmatch(r"start-training-(localnet|devnet)-(light-)?client", name)
    if found is not None:
        more = ["--authorizer", given["AUTHORIZER"]] if "AUTHORIZER" in given else []
        more += ["-w", given["WALLET_FILE"]] if "WALLET_FILE" in given else []
        more += [] if found[1] == "localnet" else ["--rpc", DEVNET]
        return [["psyche", "client", "train", "--backend", "solana", "--run-id", run, *more]]

    found = re.fullmatch(r"setup-solana-(localnet|devnet)-(permissioned-)?(light-)?test-run(-treasurer)?", name)
    assert found is not None, name
    manager = ["psyche", "run-manager"]
    of_run = ["-r", run, "-w", "owner.json", *([] if found[1] == "localnet" else ["--rpc", DEVNET])]
    begin = [["psyche", "solana", "localnet"]] if found[1] == "localnet" else []
    paid = ["--treasurer-collateral-mint", ADDRESS] if found[4] else []
    if found[4]:
        begin.append(["psyche", "solana", "create-token", "--supply", "1000000", "-w", "owner.json"])
    steps = [
        *begin,
        [*manager, "create-run", *of_run, *paid],
        [*manager, "update-config", *of_run, "--config-path", "examples/solana_testnet/state.toml"],
    ]
    if not found[2]:
        steps.append([*manager, "join-authorization-create", *of_run[2:], "--authorizer", "11111111111111111111111111111111"])
    if found[4]:
        steps.append([*manager, "treasurer-top-up-rewards", *of_run, "--collateral-amount", "1000"])
        steps.append([*manager, "set-future-epoch-rates", *of_run, "--earning-rate-total-shared", "10"])
    return [*steps, [*manager, "set-paused", *of_run, "--resume"]]
