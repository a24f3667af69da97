"""Turns options about dividing the model among processes into a `Parallelism` of `psyche_core.models.sharding`.

With one process none of these options is needed. Incomplete options for several machines are refused before anything is loaded.
"""

from __future__ import annotations

from psyche_core.config.options.client import ClientSettings
from psyche_core.config.options.train_local import TrainLocalSettings
from psyche_core.errors import ConfigError, IdentityError
from psyche_core.hookspecs import Parallelism
from psyche_core.training.micro_batch import NO_AUTO


def parallelism_of(settings: ClientSettings | TrainLocalSettings) -> Parallelism | None:
    """Return how the model is divided; None for one process. Raises ConfigError."""
    ranks = settings.data_parallelism * settings.tensor_parallelism
    elsewhere = settings.sidecar_local_ranks is not None and settings.sidecar_local_ranks < ranks
    if settings.sidecar_local_ranks is not None and settings.sidecar_local_ranks > ranks:
        message = f"--sidecar-local-ranks {settings.sidecar_local_ranks} is more than data times tensor parallelism, {ranks}"
        raise ConfigError(message)
    if elsewhere and (settings.sidecar_bind is None or settings.sidecar_secret_file is None):
        message = "processes of other machines need --sidecar-bind HOST:PORT to join at and --sidecar-secret-file"
        raise ConfigError(message)
    if ranks == 1:
        return None
    if settings.micro_batch_size == "auto":
        raise ConfigError(NO_AUTO)

    secret = None
    if settings.sidecar_secret_file is not None:
        from psyche_core.models.sharding.group.secret import read_secret

        try:
            secret = read_secret(settings.sidecar_secret_file)
        except (IdentityError, ValueError) as error:
            message = f"--sidecar-secret-file cannot be used: {error}"
            raise ConfigError(message) from error

    return Parallelism(
        data=settings.data_parallelism,
        tensor=settings.tensor_parallelism,
        sharding=settings.sharding,
        bind=settings.sidecar_bind,
        local_ranks=settings.sidecar_local_ranks,
        secret=secret,
        torch_threads=settings.torch_threads,
    )
