"""Every exception psyche-core raises on purpose.

    PsycheError
    ├── UserError                 the user can mend it: one sentence, shown without a traceback, exit code 2
    │   ├── ConfigError           a run configuration, data configuration or setting breaks a rule
    │   ├── PluginError           a plugin is missing, broken, duplicated or of another API version
    │   └── IdentityError         a key file is missing or malformed
    ├── CoordinatorError          a command the coordinator refused; `.name` is the protocol's name for it
    ├── BackendError              the coordinator backend cannot be used
    │   ├── BackendClosed         the connection is gone for good (after its retries)
    │   ├── CommandRefused        the backend answered with a code and a sentence
    │   │   └── AccessRefused     and it is the address, the run or the key that was given: a UserError, too
    │   └── UnknownHost           the host in an address does not exist: a UserError, too
    ├── TransportError            a peer or blob cannot be reached
    │   ├── BlobNotFound          nobody asked had it before the deadline
    │   └── BlobRejected          it was too large or did not match its hash
    ├── WireError                 bytes from outside do not follow the wire rules
    ├── PayloadRejected           a peer's training result does not fit our own parameter table
    ├── DataError                 training data cannot be read
    │   ├── NothingForUs          there is nothing to read for us now; it mends itself
    │   └── InputError            texts, a tokenizer or a data folder that was named will not do: a UserError, too
    ├── ModelError                a model cannot be built, loaded or saved
    │   ├── NoSuchModel           there is no model at the place that was named: a UserError, too
    │   ├── NoSuchDevice          this machine has no such device, or there is none: a UserError, too
    │   ├── RanksLost             processes that compute a part of the model are gone: nothing can go on
    │   └── ModelHalfReplaced     some parameters are the new ones, others still the old: unusable until replaced again
    ├── StoreError                a model cannot be put into a store, or had from one
    │   └── NoSuchBucket          there is no bucket of that name
    ├── NonFiniteError            a gradient, delta or loss is not finite; nothing was sent
    └── PluginFailed              a plugin's code raised what it may not, or gave what breaks its contract

Messages say what was got, what was expected and what to do. Programming errors stay TypeError and ValueError.
"""

from __future__ import annotations


class PsycheError(Exception):
    """Base of all errors raised on purpose."""


class UserError(PsycheError):
    """Something the user can mend; the message is one clear sentence."""


class ConfigError(UserError):
    """A configuration breaks a rule; the message names key, value and rule."""


class PluginError(UserError):
    """A plugin is missing, broken, duplicated or was built for another API."""


class IdentityError(UserError):
    """A key file is missing or malformed."""


class CoordinatorError(PsycheError):
    """A command the coordinator refused. The state is unchanged.

    name: one of `psyche_core.coordinator.errors.NAMES`, stable across implementations.
    """

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name
        self.message = message


class BackendError(PsycheError):
    """The coordinator backend cannot be used."""


class BackendClosed(BackendError):
    """The connection to the coordinator is gone for good."""


class CommandRefused(BackendError):
    """The coordinator or its server answered a command with an error.

    code: the coordinator's error name, or a backend code such as `WrongRun`; message: one sentence.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class AccessRefused(CommandRefused, UserError):
    """We are not let in with what the user gave: a wrong address, key or run, or a release that does not match."""


class UnknownHost(BackendError, UserError):
    """The host in a coordinator's address has no address of its own: a wrong name, which waiting does not mend."""


class TransportError(PsycheError):
    """A peer or blob cannot be reached."""


class BlobNotFound(TransportError):
    """None of the asked peers had the blob before the deadline."""


class BlobRejected(TransportError):
    """A blob was larger than allowed or did not match its hash."""


class WireError(PsycheError):
    """Bytes from outside do not follow the wire rules. Costs the sender its connection, never more."""


class PayloadRejected(PsycheError):
    """A training result does not fit our own parameter table. Costs its sender the round."""


class DataError(PsycheError):
    """Training data cannot be read."""


class NothingForUs(DataError):
    """The data's source has nothing for us now. Others train these samples, and we ask again with our next share."""


class InputError(DataError, UserError):
    """What a command or a run file names to read or to write to is not there, or cannot be what it is named for."""


class ModelError(PsycheError):
    """A model cannot be built, loaded or saved."""


class NoSuchModel(ModelError, UserError):
    """There is no model at the place that was named: a wrong path, repository or bucket."""


class NoSuchDevice(ModelError, UserError):
    """The device that was asked for is none, or is not on this machine."""


class RanksLost(ModelError):
    """Processes among which the model is divided are gone or failed. The others end too; nothing can go on with this model."""


class StoreError(PsycheError):
    """A model cannot be put into a store, or had from one."""


class NoSuchBucket(StoreError):
    """There is no bucket of the name that was given."""


class ModelHalfReplaced(ModelError):
    """Replacing a model's parameters failed half way, so they fit no step; nothing may be built on them."""


class PluginFailed(PsycheError):
    """A plugin's code raised what its contract does not allow, or gave something useless.

    The message names the plugin and its distribution. What was raised is the cause.
    """


class NonFiniteError(PsycheError):
    """A gradient, delta or loss is NaN or infinite; nothing was sent and no state changed."""
