"""Every exception psyche-core raises on purpose.

    PsycheError
    ├── UserError                 the user can correct it: one sentence, shown without a traceback, exit code 2
    │   ├── ConfigError           a run configuration, data configuration or setting breaks a rule
    │   ├── PluginError           a plugin is missing, broken, duplicated or of another API version
    │   │   └── PluginMissing     it, or what it needs, is not installed here
    │   └── IdentityError         a key file is missing or malformed
    ├── CoordinatorError          the coordinator refused a command; `.name` is the protocol's name for the error
    ├── BackendError              the coordinator backend cannot be used
    │   ├── BackendClosed         the connection is lost and all retries failed
    │   │   └── KeyUsedElsewhere  because another client uses the same key: also a UserError
    │   ├── CommandRefused        the backend answered with a code and a sentence
    │   │   └── AccessRefused     because the given address, run or key is wrong: also a UserError
    │   └── UnknownHost           the host in an address does not exist: also a UserError
    ├── TransportError            a peer or blob cannot be reached
    │   ├── CannotBind            the address or interface to bind is not one of this machine: also a UserError
    │   ├── BlobNotFound          no peer that was asked delivered it before the deadline
    │   └── BlobRejected          the blob was too large or did not match its hash
    ├── WireError                 received bytes do not follow the wire rules
    ├── PayloadRejected           a peer's training result does not fit our own parameter table
    ├── DataError                 training data cannot be read
    │   ├── NothingForUs          the source has no data for us now; a later attempt may succeed
    │   └── InputError            a named text, tokenizer or data folder is missing or unusable: also a UserError
    ├── ModelError                a model cannot be built, loaded or saved
    │   ├── NoSuchModel           there is no model at the named place: also a UserError
    │   ├── NoSuchDevice          the device name is unknown, or this machine lacks the device: also a UserError
    │   ├── RanksLost             processes that compute a part of the model ended: training cannot continue
    │   └── ModelHalfReplaced     only some parameters were replaced: unusable until all are replaced
    ├── StoreError                a model cannot be uploaded to a store or downloaded from one
    │   └── NoSuchBucket          no bucket has that name
    ├── NonFiniteError            a gradient, delta or loss is not finite; nothing was sent
    └── PluginFailed              a plugin's code raised an exception or returned a value that breaks its contract

Messages say what was received, what was expected and what to do. Programming errors stay TypeError and ValueError.
"""

from __future__ import annotations


class PsycheError(Exception):
    """Base of all errors raised on purpose."""

    @property
    def sentence(self) -> str:
        """What people are shown: the message, without the name that a program would look at."""
        message = getattr(self, "message", None)
        return message if isinstance(message, str) else str(self)


class UserError(PsycheError):
    """The user can correct the cause; the message is one clear sentence."""


class ConfigError(UserError):
    """A configuration breaks a rule; the message names key, value and rule."""


class PluginError(UserError):
    """A plugin is missing, broken, duplicated or was built for another API."""


class PluginMissing(PluginError):
    """A plugin, or a module that it needs, is not installed here. Its name is not a slip of a known one."""


class IdentityError(UserError):
    """A key file is missing or malformed."""


class CoordinatorError(PsycheError):
    """The coordinator refused a command. The state is unchanged.

    name: one of `psyche_core.coordinator.errors.NAMES`, stable across implementations.
    """

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name
        self.message = message


class BackendError(PsycheError):
    """The coordinator backend cannot be used."""


class BackendClosed(BackendError):
    """The connection to the coordinator is lost and will not be retried."""


class KeyUsedElsewhere(BackendClosed, UserError):
    """Another client uses the same key. Each client needs a key of its own."""


class CommandRefused(BackendError):
    """The coordinator or its server answered a command with an error.

    code: the coordinator's error name, or a backend code such as `WrongRun`; message: one sentence.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class AccessRefused(CommandRefused, UserError):
    """The coordinator rejects what the user gave: a wrong address, key or run, or a release that does not match."""


class UnknownHost(BackendError, UserError):
    """The host in a coordinator's address does not exist. The name is wrong, so waiting does not help."""


class TransportError(PsycheError):
    """A peer or blob cannot be reached."""


class CannotBind(TransportError, UserError):
    """The address or network interface to bind is not one of this machine, or its port is taken."""


class BlobNotFound(TransportError):
    """No peer that was asked delivered the blob before the deadline."""


class BlobRejected(TransportError):
    """A blob was larger than allowed or did not match its hash."""


class WireError(PsycheError):
    """Received bytes do not follow the wire rules. The sender loses its connection, and nothing else happens."""


class PayloadRejected(PsycheError):
    """A training result does not fit our own parameter table. Its sender's result is left out of the round."""


class DataError(PsycheError):
    """Training data cannot be read."""


class NothingForUs(DataError):
    """The data source has nothing for us now. Other members train these samples; we ask again with our next share."""


class ProviderFailed(DataError):
    """A data provider broke its contract: it gave samples that do not match the request, or raised an unexpected exception."""


class InputError(DataError, UserError):
    """A file or folder that a command or a run file names is missing, or is not of the expected kind."""


class ModelError(PsycheError):
    """A model cannot be built, loaded or saved."""


class NoSuchModel(ModelError, UserError):
    """There is no model at the named place: the path, repository or bucket is wrong."""


class NoSuchDevice(ModelError, UserError):
    """The requested device name is unknown, or this machine lacks the device."""


class RanksLost(ModelError):
    """Processes among which the model is divided ended or failed. The others end too; this model is no longer usable."""


class StoreError(PsycheError):
    """A model cannot be uploaded to a store or downloaded from one."""


class NoSuchBucket(StoreError):
    """No bucket has the given name."""


class ModelHalfReplaced(ModelError):
    """Replacing a model's parameters failed half way. The parameters belong to no step and must not be used."""


class PluginFailed(PsycheError):
    """A plugin's code raised an exception that its contract does not allow, or returned an unusable value.

    The message names the plugin and its distribution. The original exception, if any, is `__cause__`.
    """


class NonFiniteError(PsycheError):
    """A gradient, delta or loss is NaN or infinite; nothing was sent and no state changed."""
