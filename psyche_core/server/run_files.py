"""A run's files, loaded and checked together: run file, data file, and the settings of every plugin that they name.

`server run`, `server validate-config` and `testnet start` use it, so that all report the same problems in the same words. It does
not load torch: plugins import large packages only inside their factories. `disk_checks` checks the files on disk that they name.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from psyche_core.config.run_config import DataFile, RunFile, check_data_file, load_data_file, load_run_file
from psyche_core.errors import ConfigError
from psyche_core.plugins import PluginRegistry, check_run_file_plugins
from psyche_core.text_safety import printable

SERVER_LOCATION = "Server"
"""The data location of a run whose server also serves the data."""

NAMELESS = "(no run_id)"
"""Used as the name of a run if its file has none."""


@dataclass(frozen=True, slots=True)
class RunFiles:
    """The loaded files.

    data: None without a data file. data_port: the port that is sent to clients; None if the server serves no data. unchecked: one
    sentence for each plugin that the run names but that is not installed here.
    """

    run: RunFile
    data: DataFile | None
    data_port: int | None = None
    unchecked: tuple[str, ...] = ()

    def data_only_here(self, host: str) -> str | None:
        """Return a warning if members on other machines reach a server listening on `host`, but not its data; else None."""
        if self.data_port is None or _is_loopback(host):
            return None

        place = str((self.run.model.LLM.data_location.settings or {}).get("location", "")).partition("#")[0]
        if not _is_loopback(place.rpartition(":")[0]):
            return None
        return (
            f"members on other machines cannot read the training data: they are told that it is at {printable(place)}, which is "
            "their own machine; give this server's public name or address in the run file: [model.LLM.data_location] "
            f'Server = "server.example.org:{self.data_port}"'
        )

    def summary(self) -> Iterator[str]:
        """Yield a few lines of text that summarise the run: members, model, duration."""
        config, llm = self.run.config, self.run.model.LLM
        name = printable(self.run.run_id)
        yield f"run {name}: {config.total_steps} steps, {config.init_min_clients} or more clients to start"
        yield (
            f"model {llm.architecture} ({llm.data_type}), {llm.max_seq_len} tokens a sequence, "
            f"{config.global_batch_size_start} to {config.global_batch_size_end} sequences a round"
        )
        yield f"optimizer {llm.optimizer.name}, data {llm.data_location.name}" + (
            f" from {self.data.dir}" if self.data is not None and self.data_port is not None else ""
        )


def load_run(
    state: Path,
    data_config: Path | None,
    registry: PluginRegistry,
    *,
    prepares_data: bool = False,
    only_looks: bool = False,
    members_here: bool = False,
) -> RunFiles:
    """Load and check everything in a run's files. Raises ConfigError with all problems, one sentence per line.

    prepares_data: the caller makes the token files of data_config, even if members read them directly. only_looks: the run is not
    hosted now, so the data file may be missing, and also the run's name, as in an owner's `config.toml`. members_here: this
    program also starts members, so it needs every plugin of the run; a server does not.
    """
    run_file = load_run_file(state, run_id=NAMELESS if only_looks else None)
    unchecked = check_run_file_plugins(run_file, registry, elsewhere=not members_here)
    location = run_file.model.LLM.data_location
    serves_data = location.name == SERVER_LOCATION
    port = _port(str((location.settings or {}).get("location", ""))) if serves_data else None
    if serves_data and data_config is None and not only_looks:
        message = (
            f"{state} has data_location.Server, so this server serves the data; name the data file with --data-config data.toml"
        )
        raise ConfigError(message)
    if data_config is None:
        return RunFiles(run_file, None, port, unchecked)
    if not serves_data and not prepares_data:
        message = f"{state} has data_location.{location.name}, so this server serves no data; leave out --data-config"
        raise ConfigError(message)

    data_file = load_data_file(data_config)
    check_data_file(data_file, run_file.model)
    return RunFiles(run_file, data_file, port, unchecked)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:  # a name
        return False


def _port(address: str) -> int:
    """Return the port in the `host:port` from which clients request training data; the server must listen on it."""
    port = address.partition("#")[0].rpartition(":")[2] if ":" in address else ""
    if not port.isdecimal() or not 0 < int(port) < 65536:
        rule = "must be host:port with a port from 1 to 65535, for instance 127.0.0.1:20001"
        message = f'model.LLM.data_location.Server = "{address}": {rule}'
        raise ConfigError(message)

    return int(port)
