"""Whose certificates are trusted for davs://, and what is said of one that is not accepted."""

from __future__ import annotations

import os
import ssl

from psyche_core.errors import UserError
from psyche_store_webdav.settings import DavSettings

_NAMES = (62, 64)
_DATES = (9, 10)
"""Codes of OpenSSL: the certificate is for another name or address; it is not valid yet, or no more."""


def own_context(settings: DavSettings) -> ssl.SSLContext | None:
    """Trust the CAs of --dav-ca-file, or else of SSL_CERT_FILE, and no others; None if neither is given: httpx chooses then.

    Raises UserError for a file that cannot be read or holds no certificate.
    """
    what, file = "--dav-ca-file", settings.dav_ca_file
    if file is None:
        what, file = "SSL_CERT_FILE", os.environ.get("SSL_CERT_FILE")
    if not file:
        return None

    try:
        return ssl.create_default_context(cafile=file)
    except OSError as error:
        why = "it holds no certificate" if isinstance(error, ssl.SSLError) else error.strerror or error
        message = f"{what} {file} cannot be used: {why}; name a file with the CA's certificates as PEM"
        raise UserError(message) from error


def refusal(error: BaseException) -> str:
    """Why a server's certificate was not accepted and what to do, as the end of a sentence; empty if it was not that."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, ssl.SSLCertVerificationError):
        found = found.__cause__ or found.__context__
    if found is None:
        return ""

    if found.verify_code in _NAMES:
        hint = "write the URL with a name that the certificate has"
    elif found.verify_code in _DATES:
        hint = "whoever runs the server must renew it, if the clock of this machine is right"
    else:
        hint = "if the server's CA is a private one, give its certificate with --dav-ca-file"
    return f"its certificate is not accepted: {found.verify_message.rstrip('.')}; {hint}"
