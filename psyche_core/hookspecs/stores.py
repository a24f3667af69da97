"""What a plugin adds to the places where a run's models are stored: one URL scheme for each registration.

The hook is in the package's `__init__`, from which all of these names are imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from psyche_core.interfaces import ModelStore


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStoreContext:
    """The arguments for opening a store.

    Attributes:
        url: of a place for files, with the registration's scheme, a host and perhaps a path; no user, query or fragment. It is
            what a run's configuration or a user says, so it may be a stranger's. Percent escapes are left as they are.
        settings: validated by the registration's `settings`.
    """

    url: str
    settings: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStoreRegistration:
    """A store for models, for one URL scheme. A plugin with two schemes, such as a plain and a secure one, registers two.

    Attributes:
        name: the scheme, without `://`.
        create: opens a place, without asking anybody yet; raises StoreError for a URL that cannot be one.
        settings: the store's own options, such as a password. Where `--model-store` names the scheme they appear as `--name`
            beside the command's own options; `PSYCHE_NAME` holds for whoever reads from such a place, too. Names begin with the
            scheme, without the s of a secure one if they are for both. A secret is a pydantic.SecretStr.
        check: raises UserError for settings or a URL (both in the context) that cannot work on this machine. It is called before
            a run is joined by a client that will store models there. It must return quickly and send nothing.
    """

    name: str
    summary: str
    create: Callable[[ModelStoreContext], ModelStore]
    settings: type[BaseModel] | None = None
    check: Callable[[ModelStoreContext], None] | None = None
    requires: Mapping[str, str] = field(default_factory=dict)
