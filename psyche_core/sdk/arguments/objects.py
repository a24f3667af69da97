"""Turns what a program gives for a model, an optimizer, data, a transport or a backend into a plugin's name or registration.

An object becomes a registration, as a plugin's hook would return it (`plugin_objects`). A registration is accepted, too. Any
other value is rejected at once with a message that lists what is accepted. torch is not imported to examine an object: a program
that has a module has already imported torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from pydantic import BaseModel, ConfigDict, model_validator

from psyche_core.errors import ConfigError
from psyche_core.hookspecs import (
    BackendContext,
    BackendRegistration,
    DataContext,
    DataRegistration,
    ModelRegistration,
    OptimizerContext,
    OptimizerRegistration,
    Registration,
    TransportContext,
    TransportRegistration,
)
from psyche_core.interfaces import Backend, DataProvider, Model, Optimizer, Transport
from psyche_core.plugin_objects import ObjectPlugin

if TYPE_CHECKING:
    import torch

    from psyche_core.data.sequences import MapDataset
    from psyche_core.models.torch_module import ModuleFactory

    ModelGiven: TypeAlias = str | torch.nn.Module | Callable[[], torch.nn.Module] | ModelRegistration
    EvalGiven: TypeAlias = MapDataset | DataProvider | Callable[[DataContext], DataProvider] | DataRegistration
    DataGiven: TypeAlias = str | MapDataset | DataProvider | Callable[[DataContext], DataProvider] | DataRegistration

OptimizerGiven: TypeAlias = str | Optimizer | Callable[[Model], Optimizer] | OptimizerRegistration
TransportGiven: TypeAlias = str | Transport | Callable[[TransportContext], Transport] | TransportRegistration
BackendGiven: TypeAlias = str | Backend | Callable[[BackendContext], Backend] | BackendRegistration

_SUMMARY = "an object given in code"
_WANTED: Mapping[str, str] = {
    "model": "a torch.nn.Module, a function that makes one, a plugin's name or a ModelRegistration",
    "data": "a dataset with __len__ and __getitem__, a DataProvider or a function that makes one, a plugin's name or a "
    "DataRegistration",
    "optimizer": "a plugin's name, a function from a model to an Optimizer, an Optimizer or an OptimizerRegistration",
    "transport": "a plugin's name, a Transport, a function that makes one from its context or a TransportRegistration",
    "backend": "a plugin's name, a Backend, a function that makes one from its context or a BackendRegistration",
}


class IgnoredSettings(BaseModel):
    """Ignores all settings: an object replaces a plugin and has its own settings."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _drop(cls, _: Any) -> dict[str, Any]:
        return {}


class NoSettings(BaseModel):
    """The settings of an optimizer given as an object. None are allowed, because nothing would use them."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)


def as_plugin(kind: str, value: object, *, argument: str | None = None) -> ObjectPlugin | str | None:
    """Return a registration for an object, the given name for a string, or None for None. Raises TypeError for other values.

    kind: a plugin kind. argument: name of the argument in the message; `kind` if None.
    """
    if value is None or isinstance(value, str):
        return value

    registration: Registration | None = _MAKERS[kind](value)
    if registration is None:
        message = f"{argument or kind}= takes {_WANTED[kind]}; got {_described(value)}"
        raise TypeError(message)
    return ObjectPlugin(registration, str(getattr(value, "__module__", None) or type(value).__module__))


def with_source(found: ObjectPlugin, folder: Path) -> ObjectPlugin:
    """Return the registration of a given module with `source` set to `folder`; return any other registration unchanged.

    folder: empty, except for checkpoints.
    """
    registration = found.registration
    if not isinstance(registration, ModelRegistration) or module_factory(found) is None:
        return found
    return replace(found, registration=replace(registration, source=folder))


def with_address(found: ObjectPlugin, value: object, address: str) -> ObjectPlugin:
    """Return a backend's registration for a client that also has an address, which is passed to a backend function.

    value: the object from which `found` was made. Raises ConfigError for a Backend object, which has no use for an address.
    """
    registration = found.registration
    if isinstance(value, Backend):
        message = f"a backend= object has its own address of the coordinator; give None as the address, got {address!r}"
        raise ConfigError(message)
    if value is registration or not isinstance(registration, BackendRegistration):
        return found
    return replace(found, registration=replace(registration, needs_address=True))


def module_factory(found: ObjectPlugin | str | None) -> ModuleFactory | None:
    """Return the factory of the torch module in a model's registration; None if the model is not made from a module."""
    if "psyche_core.models.torch_module" not in sys.modules or not isinstance(found, ObjectPlugin):
        return None

    from psyche_core.models.torch_module import ModuleFactory

    create = getattr(found.registration, "create", None)
    return create if isinstance(create, ModuleFactory) else None


def module_of(found: ObjectPlugin | str | None) -> torch.nn.Module | None:
    """Return the torch module of a model's registration; None if there is none, or none yet."""
    factory = module_factory(found)
    return None if factory is None else factory.module


def _described(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"


def _name(value: object) -> str:
    return getattr(value, "__name__", None) or type(value).__name__


def _model(value: Any) -> ModelRegistration | None:
    if isinstance(value, ModelRegistration):
        return value

    torch = sys.modules.get("torch")
    is_module = torch is not None and isinstance(value, torch.nn.Module)
    if isinstance(value, Model) or not (is_module or callable(value)):
        return None

    from psyche_core.models.torch_module import ModuleFactory

    factory = ModuleFactory((lambda: value) if is_module else value)
    return ModelRegistration(name=_name(value), summary=_SUMMARY, create=factory)


def _data(value: Any) -> DataRegistration | None:
    if isinstance(value, DataRegistration):
        return value

    create: Callable[[DataContext], DataProvider]
    if isinstance(value, DataProvider):
        create = lambda _: value  # noqa: E731  # one of several factories
    elif isinstance(value, type | Mapping):
        return None
    elif hasattr(value, "__len__") and hasattr(value, "__getitem__"):

        def create(context: DataContext) -> DataProvider:
            from psyche_core.data.sequences import SequenceData

            return SequenceData(value, sequence_length=context.sequence_length)
    elif callable(value):
        create = value
    else:
        return None
    return DataRegistration(name=_name(value), summary=_SUMMARY, settings=IgnoredSettings, create=create)


def _optimizer(value: Any) -> OptimizerRegistration | None:
    if isinstance(value, OptimizerRegistration):
        return value
    if isinstance(value, Optimizer):
        return OptimizerRegistration(name=_name(value), summary=_SUMMARY, settings=NoSettings, create=_Reused(value))
    if not callable(value):
        return None
    return OptimizerRegistration(
        name=_name(value), summary=_SUMMARY, settings=NoSettings, create=lambda context: _checked(value(context.model), value)
    )


def _checked(made: object, maker: object) -> Optimizer:
    if not isinstance(made, Optimizer):
        message = f"optimizer={_name(maker)} must give a psyche_core.interfaces.Optimizer, it gave {_described(made)}"
        raise ConfigError(message)
    return made


class _Reused:
    """`create` for one optimizer object, which was made for one model. From the second call on, it loads the model's weights."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._used = False

    def __call__(self, context: OptimizerContext) -> Optimizer:
        parameters = context.model.parameters
        if parameters.keys() != self._optimizer.masters.keys():
            message = "the optimizer= object was made for another model; give a function from a model to an Optimizer"
            raise ConfigError(message)
        if self._used:
            self._optimizer.load_parameters({name: value.detach().clone() for name, value in parameters.items()})
            state = self._optimizer.public_state
            if state:
                self._optimizer.load_public_state({name: tensor.clone().zero_() for name, tensor in state.items()})
        self._used = True
        return self._optimizer


def _transport(value: Any) -> TransportRegistration | None:
    if isinstance(value, TransportRegistration):
        return value
    if isinstance(value, Transport):

        def create(context: TransportContext) -> Transport:
            if value.peer_id != context.key.public:
                message = "the transport= object has another key than the client; make both with the same one, and give key="
                raise ConfigError(message)
            return value

        return TransportRegistration(name=_name(value), summary=_SUMMARY, create=create)
    if isinstance(value, type) or not callable(value):
        return None
    return TransportRegistration(name=_name(value), summary=_SUMMARY, create=value)


def _backend(value: Any) -> BackendRegistration | None:
    if isinstance(value, BackendRegistration):
        return value
    if isinstance(value, Backend):

        def create(context: BackendContext) -> Backend:
            if value.identity.p2p != context.key.public:
                message = "the backend= object has another key than the client; make both with the same one, and give key="
                raise ConfigError(message)
            return value

        return BackendRegistration(name=_name(value), summary=_SUMMARY, create=create, needs_address=False)
    if isinstance(value, type) or not callable(value):
        return None
    return BackendRegistration(name=_name(value), summary=_SUMMARY, create=value, needs_address=False)


_MAKERS: Mapping[str, Callable[[Any], Registration | None]] = {
    "model": _model,
    "data": _data,
    "optimizer": _optimizer,
    "transport": _transport,
    "backend": _backend,
}
