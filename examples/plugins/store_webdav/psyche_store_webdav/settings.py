"""Options of the store: `--dav-host` and `PSYCHE_DAV_HOST`, where `--model-store` or a run names a URL of dav or davs."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field, SecretStr


class DavSettings(BaseModel):
    """Names begin with dav_, for both schemes. The password has no option: other users of a machine see command lines."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

    dav_host: str | None = Field(
        default=None,
        description="HOST or HOST:PORT of the only server that is asked, and that is told user and password. Default: any server "
        "that a run names, and none is told them.",
    )
    dav_user: str | None = Field(default=None, description="User on that server.")
    dav_password: SecretStr | None = Field(
        default=None, description="Password of that user, as PSYCHE_DAV_PASSWORD.", json_schema_extra={"option": False}
    )
    dav_ca_file: Path | None = Field(
        default=None,
        description="File (PEM) of the CAs that are trusted for davs://, and no others, for a server with a private CA. "
        "Default: that of the variable SSL_CERT_FILE, or else the public CAs.",
    )
    dav_timeout: float = Field(
        default=60.0, gt=0, le=600, description="Seconds after which a server that says nothing has failed."
    )
