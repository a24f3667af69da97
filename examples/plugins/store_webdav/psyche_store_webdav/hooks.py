"""Registers the stores `dav` and `davs`: models on a WebDAV server, over HTTP and HTTPS."""

from __future__ import annotations

from urllib.parse import urlsplit

from psyche_core.errors import UserError
from psyche_core.hookspecs import ModelStoreContext, ModelStoreRegistration, hookimpl
from psyche_core.interfaces import ModelStore
from psyche_store_webdav.settings import DavSettings
from psyche_store_webdav.tls import own_context

PSYCHE_PLUGIN_API = "1.0"

_ON_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")


@hookimpl
def psyche_register_model_stores() -> list[ModelStoreRegistration]:
    """One for each scheme."""
    return [
        ModelStoreRegistration(name=name, summary=summary, create=create, settings=DavSettings, check=check)
        for name, summary in (
            ("dav", "models on a WebDAV server, not encrypted"),
            ("davs", "models on a WebDAV server, over TLS"),
        )
    ]


def create(context: ModelStoreContext) -> ModelStore:
    """The files of a collection; context.settings is a validated DavSettings. Raises UserError as `check` does."""
    from psyche_store_webdav.store import WebDav

    check(context)
    return WebDav(context.url, context.settings)


def check(context: ModelStoreContext) -> None:
    """Whether these settings can be used with this URL. Raises UserError.

    A run's URL is set by one of its members. So a password goes to the named host alone, and never in the clear over a network.
    """
    settings, url = context.settings, urlsplit(context.url)
    if settings.dav_host is not None and settings.dav_host.lower() != url.netloc.lower():
        message = f"{context.url} is not on {settings.dav_host}, the only server that --dav-host allows; change one of them"
        raise UserError(message)
    if (settings.dav_user is None) != (settings.dav_password is None):
        message = "a user needs a password and a password a user; give --dav-user and PSYCHE_DAV_PASSWORD, or neither"
        raise UserError(message)
    if settings.dav_user is not None and settings.dav_host is None:
        message = f"--dav-user needs --dav-host, the server that is told the password; for this URL it is {url.netloc}"
        raise UserError(message)
    if settings.dav_user is not None and url.scheme == "dav" and url.hostname not in _ON_THIS_MACHINE:
        message = f"{context.url} would send the password unencrypted; use davs://, or leave out user and password"
        raise UserError(message)
    if url.scheme == "davs":
        own_context(settings)
