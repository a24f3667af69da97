"""Finds which plugin caused an unexpected exception, and says so in one sentence with the plugin and its distribution.

The plugin whose module is deepest in the traceback is taken as the cause. That covers factories and methods, in threads and
tasks, without a wrapper around every object that a plugin makes. Our own modules do not count as a plugin here: an exception that
passed only through them is a defect of psyche-core. Exception groups are split, since a task group wraps what its tasks raise.
Factories are also guarded (`guarded`): a call with wrong arguments fails before it reaches the plugin's code.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from types import FrameType, MappingProxyType, TracebackType
from typing import Any, TypeVar

from psyche_core import hookspecs, interfaces
from psyche_core.errors import PluginFailed, PsycheError
from psyche_core.plugin_exits import ADVICE, Exited, exits_refused

OURS = "psyche_core"
MAX_TEXT = 300
"""Maximum number of characters quoted from an exception's own text."""

_FACTORIES = ("create", "create_server", "observe", "transport_key", "route", "check")
_TESTNET_FACTORIES = ("member_options", "lose_route")
_INTERFACES: Mapping[str, type | tuple[type, ...]] = MappingProxyType(
    {
        "backend": (interfaces.Backend, interfaces.BackendServer),
        "data": interfaces.DataProvider,
        "model": interfaces.Model,
        "optimizer": interfaces.Optimizer,
        "relay": interfaces.Relay,
        "sharding": interfaces.ShardingEngine,
        "store": interfaces.ModelStore,
        "tracker": interfaces.Tracker,
        "transport": interfaces.Transport,
    }
)
_MUST_GIVE: Mapping[tuple[type, str], type] = MappingProxyType(
    {
        (hookspecs.BackendRegistration, "create"): interfaces.Backend,
        (hookspecs.BackendRegistration, "create_server"): interfaces.BackendServer,
        (hookspecs.BackendRegistration, "observe"): interfaces.Backend,
        (hookspecs.DataRegistration, "create"): interfaces.DataProvider,
        (hookspecs.ModelRegistration, "create"): interfaces.Model,
        (hookspecs.ModelStoreRegistration, "create"): interfaces.ModelStore,
        (hookspecs.OptimizerRegistration, "create"): interfaces.Optimizer,
        (hookspecs.RelayRegistration, "create"): interfaces.Relay,
        (hookspecs.ShardingRegistration, "create"): interfaces.ShardingEngine,
        (hookspecs.TrackerRegistration, "create"): interfaces.Tracker,
        (hookspecs.TransportRegistration, "create"): interfaces.Transport,
    }
)
"""The interface of what a factory of a registration must return."""

Place = tuple[str, str, str, str]
"""Kind, name, origin (distribution and version) and module of a plugin."""

AnyRegistration = TypeVar("AnyRegistration", bound=hookspecs.Registration)


def label(kind: str, name: str, origin: str) -> str:
    """The name of a plugin in messages. origin: distribution and version."""
    return f"the {kind} plugin {name} ({origin})"


def labels(places: Iterable[Place]) -> frozenset[str]:
    """The words by which sentences name one of these plugins, or those of one distribution that cannot be told apart."""
    known = list(places)
    return frozenset(
        {label(kind, name, origin) for kind, name, origin, _ in known} | {_several(origin) for _, _, origin, _ in known}
    )


def leaf_exceptions(error: BaseException) -> Iterator[BaseException]:
    """All exceptions in a group and its nested groups; a plain exception yields only itself."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaf_exceptions(inner)
    else:
        yield error


def summary_of(error: BaseException) -> str:
    """Type and text of an exception in one short line that a terminal can show."""
    try:
        text = " ".join(str(error).split())
    except Exception as worse:  # an exception's own text may be anybody's code
        text = f"(its text failed with {type(worse).__name__})"
    text = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)
    text = text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}…"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def explain(error: BaseException, places: Iterable[Place]) -> str:
    """One sentence about an exception.

    If it was raised on purpose, this is its own message. Otherwise it says what happened, where, and in which plugin.
    """
    first = next(leaf_exceptions(error))
    if isinstance(first, PsycheError):
        return first.sentence

    blamed = explain_plugin(first, places)
    if blamed is not None:
        return blamed

    frames = list(_frames(first.__traceback__))
    return f"{summary_of(first)}{_where(frames[-1]) if frames else ''}"


def explain_plugin(error: BaseException, places: Iterable[Place]) -> str | None:
    """The sentence about an exception from a plugin's code; None if no plugin is in the traceback."""
    known = [place for place in places if not _within(place[3], OURS)]
    passed: list[TracebackType] = list(_frames(error.__traceback__))
    for at in reversed(passed):
        holders = [place for place in known if _within(_module(at), _root(place[3]))]
        if holders:
            theirs = [each for each in passed if _within(_module(each), _root(holders[0][3]))]
            return f"{_named(holders, [each.tb_frame for each in theirs])} failed with {summary_of(error)}{_where(at)}"

    return None


def guarded(registration: AnyRegistration, *, called: str) -> AnyRegistration:
    """A copy of the registration whose factories raise PluginFailed for unexpected exceptions and for what is not of its kind.

    An object with all methods of the interface is one, whatever its class.

    called: the plugin's label in the message. PsycheError and ModuleNotFoundError pass unchanged; of a command's `load`, every
    exception does but a call of os._exit.
    """
    guarded = replace(registration, **_guards(registration, _FACTORIES, called))
    if isinstance(guarded, hookspecs.CommandRegistration):
        return replace(guarded, load=_without_exit(guarded.load, "load", called))
    if isinstance(guarded, hookspecs.BackendRegistration) and guarded.testnet is not None:
        return replace(guarded, testnet=replace(guarded.testnet, **_guards(guarded.testnet, _TESTNET_FACTORIES, called)))

    return guarded


def _guards(holder: hookspecs.Registration | hookspecs.BackendTestnet, names: Sequence[str], called: str) -> dict[str, Any]:
    """The guarded factories of a registration, by field name."""
    present = {field.name for field in fields(holder)}.intersection(names)
    made = {name: getattr(holder, name) for name in sorted(present)}
    return {
        name: _guard(factory, name, called, _MUST_GIVE.get((type(holder), name)))
        for name, factory in made.items()
        if factory is not None
    }


def _without_exit(function: Callable[..., Any], name: str, called: str) -> Callable[..., Any]:
    """The function, but os._exit in it is PluginFailed."""

    def run(*arguments: Any, **named: Any) -> Any:
        try:
            with exits_refused(called):
                return function(*arguments, **named)
        except Exited as error:
            message = f"{called} called {error} in its {name}, {ADVICE}"
            raise PluginFailed(message) from error

    return run


def _guard(factory: Callable[..., Any], name: str, called: str, expected: type | None) -> Callable[..., Any]:
    @functools.wraps(factory, updated=())
    def guard(*arguments: Any, **named: Any) -> Any:
        try:
            made = _without_exit(factory, name, called)(*arguments, **named)
        except (PsycheError, ModuleNotFoundError):  # the second: an extra is not installed, which has its own message
            raise
        except (Exception, SystemExit) as error:  # sys.exit in a plugin must not end the program without a sentence
            *_, last = _frames(error.__traceback__)
            where = "" if _within(_module(last), OURS) else _where(last)
            message = f"{called} failed in its {name} with {summary_of(error)}{where}"
            raise PluginFailed(message) from error

        wrong = "" if expected is None else _unlike(made, expected)
        if expected is not None and wrong:
            message = (
                f"{called} returned {wrong} from its {name}, expected an object of psyche_core.interfaces.{expected.__name__}"
            )
            raise PluginFailed(message)
        return made

    return guard


def _unlike(made: Any, expected: type) -> str:
    """What was returned instead of an object with all methods of an interface; empty if it is one."""
    if made is None or isinstance(made, type):
        return "None" if made is None else f"the class {made.__name__} itself"

    own = {*dir(type(made)), *getattr(made, "__dict__", ())}  # without calling properties, which may be slow or fail
    missing = sorted({*getattr(expected, "__abstractmethods__", ())} - own)
    return f"an object of {type(made).__name__}, which has no {', '.join(missing)}," if missing else ""


def _named(holders: list[Place], frames: list[FrameType]) -> str:
    """The label of one plugin, or of several in one distribution that neither module nor the called object distinguishes.

    frames: those in the distribution's code, outermost first.
    """
    module = str(frames[-1].f_globals.get("__name__", ""))
    nearest = [place for place in holders if _within(module, place[3])] or holders
    kinds = _kinds_called(frames, {place[0] for place in nearest})
    nearest = [place for place in nearest if place[0] in kinds] or nearest
    kind, name, origin, _ = nearest[0]
    if len(nearest) == 1:
        return label(kind, name, origin)

    names = ", ".join(f"{kind}.{name}" for kind, name, _, _ in nearest)
    return f"{_several(origin)}{names})"


def _several(origin: str) -> str:
    return f"the plugins of {origin} ("


def _kinds_called(frames: list[FrameType], among: set[str]) -> set[str]:
    """The kinds of the object that was called, of those in `among`: of the innermost method's owner, or of a method's name.

    What fails may be a function that the method calls, and an object may have the methods of an interface without its class.
    """
    for frame in reversed(frames):
        owner = frame.f_locals.get("self")
        kinds = {kind for kind in among if isinstance(owner, _INTERFACES.get(kind, ()))}
        if kinds:
            return kinds
    for frame in frames:
        kinds = {kind for kind in among if _has_method(_INTERFACES.get(kind, ()), frame.f_code.co_name)}
        if kinds:
            return kinds
    return set()


def _has_method(interface: type | tuple[type, ...], name: str) -> bool:
    each = interface if isinstance(interface, tuple) else (interface,)
    return not name.startswith("_") and any(hasattr(one, name) for one in each)


def _frames(traceback: TracebackType | None) -> Iterator[TracebackType]:
    """The entries of a traceback, outermost first."""
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _module(at: TracebackType) -> str:
    return str(at.tb_frame.f_globals.get("__name__", ""))


def _where(at: TracebackType) -> str:
    return f" ({Path(at.tb_frame.f_code.co_filename).name}, line {at.tb_lineno})"


def _root(module: str) -> str:
    return module.partition(":")[0].partition(".")[0]


def _within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")
