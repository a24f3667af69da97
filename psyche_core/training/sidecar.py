"""`psyche sidecar`, or `python -m psyche_core.training.sidecar`: ranks of a client whose model is divided among several machines.

The client starts the ranks of its own machine itself. This program needs no model files: the client sends each rank the
configuration of the model and its part of the weights. It finds plugins in the same way as the command line, so it may import
modules that the rest of this package must not import. The secret is not a command-line argument, because every user of the
machine could read it there. The words and options of the Rust program `psyche-sidecar` are understood, too.
"""

from __future__ import annotations

import argparse
import atexit
import gc
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NoReturn

from psyche_core.errors import IdentityError
from psyche_core.models.sharding.group.secret import SIDECAR_PORT, read_secret
from psyche_core.text_safety import printable_lines

EXAMPLE: Final = """\
Example:
On the client's machine, which holds ranks 0 and 1 of 4:
  psyche client train ... --data-parallelism 2 --tensor-parallelism 2 \\
      --sidecar-bind 192.168.1.10:29400 --sidecar-local-ranks 2 --sidecar-secret-file group.secret
On the other machine, which holds ranks 2 and 3:
  psyche sidecar --main-host 192.168.1.10 --port 29400 --world-size 4 \\
      --start-rank 2 --local-ranks 2 --secret-file group.secret
The host and the first two numbers may also come from PSYCHE_MAIN_HOST, PSYCHE_WORLD_SIZE and PSYCHE_START_RANK.

Only processes that know the secret can join. The traffic is neither encrypted nor authenticated: use a trusted network.
"""
_FROM_ENVIRONMENT: Final = ("main_host", "world_size", "start_rank")
_USER_ERROR: Final = 2
_POLL_SECONDS: Final = 0.2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code: 0 if the client ended it, 1 if the group failed, 2 for an error of the user."""
    gc.set_threshold(10_000)  # objects made by importing torch stay: a search for garbage every 700 objects takes a second in all
    atexit.register(gc.freeze)  # without it, the search when Python ends takes more than a second
    options = parser()
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words[:1] == ["rust"]:
        return _refuse("there is no sidecar in Rust here; leave out the word `rust`")
    given = options.parse_args(words[1:] if words[:1] == ["python"] else words)
    try:
        _fill(given, os.environ)
    except ValueError as error:
        options.error(str(error))
    if given.local_ranks < 1 or not 1 <= given.start_rank <= given.world_size - given.local_ranks:
        return _refuse(
            f"--start-rank {given.start_rank} and --local-ranks {given.local_ranks} exceed --world-size {given.world_size}"
        )
    try:
        secret = _secret(given)
    except (IdentityError, OSError, ValueError) as error:
        return _refuse(f"the secret cannot be read: {error}")
    if given.local_ranks > 1:
        return _start_all(given, secret)
    if given.end_with_parent:
        threading.Thread(target=_end_with_parent, name="end with parent", daemon=True).start()
    return _serve(given, secret)


def _fill(given: argparse.Namespace, environment: Mapping[str, str]) -> None:
    """Take values that the command line does not give from the environment. Raises ValueError with a sentence."""
    for name in _FROM_ENVIRONMENT:
        variable = f"PSYCHE_{name.upper()}"
        if getattr(given, name) is not None:
            continue
        text = environment.get(variable, "").strip()
        if not text:
            message = f"--{name.replace('_', '-')} is needed (or the environment variable {variable})"
            raise ValueError(message)
        if name == "main_host":
            given.main_host = text
        elif text.isdecimal():
            setattr(given, name, int(text))
        else:
            message = f"{variable}: got {text!r:.80}, expected a whole number"
            raise ValueError(message)
    if given.start_device is not None:
        if given.device != "auto":
            message = "--start-device and --device name devices twice; give one of them"
            raise ValueError(message)
        given.device = "cuda:" + ",".join(str(given.start_device + number) for number in range(given.local_ranks))
    if given.backend == "gloo" and given.device == "auto":
        given.device = "cpu"  # nccl is for GPUs and gloo for CPUs; the client's devices decide which one is used


def _serve(given: argparse.Namespace, secret: bytes) -> int:
    import torch

    from psyche_core.errors import PsycheError, UserError
    from psyche_core.models.sharding.devices import rank_device
    from psyche_core.models.sharding.worker import serve
    from psyche_core.plugins import PluginRegistry

    registry = PluginRegistry.discover()
    try:
        device = rank_device(given.device, 0)
        if device.type == "cpu":
            torch.set_num_threads(given.torch_threads or int(os.environ.get("OMP_NUM_THREADS", "1")))
        serve(
            given.main_host,
            given.port,
            rank=given.start_rank,
            world_size=given.world_size,
            device=device,
            secret=secret,
            engines=lambda name: registry.load("sharding", name).create,
            optimizers=lambda name: registry.load("optimizer", name),
        )
    except PsycheError as error:
        sys.stderr.write(f"Error: {printable_lines(str(error))}\n")
        return _USER_ERROR if isinstance(error, UserError) else 1
    return 0


def _start_all(given: argparse.Namespace, secret: bytes) -> int:
    """Run several ranks of this machine as child processes and return the exit code. If one fails, all are ended."""
    from psyche_core.errors import ModelError
    from psyche_core.models.sharding.devices import rank_device
    from psyche_core.models.sharding.group.processes import LocalRanks

    ranks = LocalRanks()
    try:
        for number in range(given.local_ranks):
            arguments = (
                *("--main-host", given.main_host, "--port", str(given.port), "--world-size", str(given.world_size)),
                *("--start-rank", str(given.start_rank + number), "--device", str(rank_device(given.device, number))),
            )
            ranks.start(given.start_rank + number, arguments, secret=secret, threads=given.torch_threads)
        while (problem := ranks.problem(expected=(0,))) is None and ranks.processes:
            if ranks.all_ended():
                return 0
            time.sleep(_POLL_SECONDS)
    except ModelError as error:
        problem = str(error)
    except KeyboardInterrupt:
        ranks.kill()
        return 130
    ranks.kill()
    sys.stderr.write(f"Error: {printable_lines(str(problem))}\n")
    return 1


def _secret(given: argparse.Namespace) -> bytes:
    if given.end_with_parent:
        line = b""
        while not line.endswith(b"\n"):
            read = os.read(sys.stdin.fileno(), 1)
            if not read:
                message = "the parent process has ended"
                raise ValueError(message)
            line += read
        return bytes.fromhex(line.decode())

    if given.secret_file is None:
        message = "give --secret-file FILE, the same as the client's --sidecar-secret-file"
        raise ValueError(message)
    return read_secret(given.secret_file)


def _end_with_parent() -> NoReturn:
    """End this process when its parent ends. The system closes the pipe to stdin then, however the parent ends."""
    while os.read(sys.stdin.fileno(), 1):
        pass  # ignore other input
    os._exit(1)


def _refuse(sentence: str) -> int:
    sys.stderr.write(f"Error: {sentence}\n")
    return _USER_ERROR


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    options = argparse.ArgumentParser(
        prog="psyche sidecar",
        description="Compute a part of a client's model on this machine. All other settings come from the client.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    client = options.add_argument_group("Client")
    client.add_argument("--main-host", metavar="HOST", help="Host of the client.")
    client.add_argument(
        "--port",
        default=SIDECAR_PORT,
        type=int,
        metavar="N",
        help=f"Port of the client's --sidecar-bind. [default: {SIDECAR_PORT}]",
    )
    client.add_argument("--secret-file", type=Path, metavar="PATH", help="File with the client's secret.")
    ranks = options.add_argument_group("Ranks of this machine")
    ranks.add_argument(
        "--world-size",
        type=int,
        metavar="N",
        help="Number of all ranks: data parallelism times tensor parallelism.",
    )
    ranks.add_argument("--start-rank", type=int, metavar="N", help="First rank on this machine, from 1.")
    ranks.add_argument(
        "--local-ranks",
        "--num-local-ranks",
        default=1,
        type=int,
        metavar="N",
        help="Number of ranks on this machine. [default: 1]",
    )
    compute = options.add_argument_group("Compute")
    compute.add_argument(
        "--device", default="auto", help="auto, cpu, cuda, or cuda:X,Y with one device per rank. [default: auto]"
    )
    compute.add_argument("--start-device", type=int, metavar="N", help="First CUDA device; each rank has one. Default: 0.")
    compute.add_argument(
        "--backend",
        choices=("nccl", "gloo"),
        help="nccl for GPUs, gloo for CPUs. Default: the client's, which follows from its devices.",
    )
    compute.add_argument("--torch-threads", type=int, metavar="N", help="CPU threads of each rank. [default: 1]")
    options.add_argument("--end-with-parent", action="store_true", help=argparse.SUPPRESS)
    return options


if __name__ == "__main__":
    code: int = main()
    sys.stderr.flush()
    os._exit(code)  # a normal exit takes a second because of torch, and the client waits for this process
