"""What this distribution registers, as runs find it."""

from __future__ import annotations

import json
from pathlib import Path

from nacl.signing import SigningKey

from psyche_core.testing.registration import RegistrationConformance


class TestSolana(RegistrationConformance):
    kind, name = "backend", "solana"

    def settings(self, folder: Path) -> dict[str, str]:
        key = SigningKey(bytes([1]) * 32)
        (folder / "id.json").write_text(json.dumps(list(key.encode() + key.verify_key.encode())))
        (folder / "id.json").chmod(0o600)
        return {"wallet_private_key_path": str(folder / "id.json")}


class TestRunManager(RegistrationConformance):
    kind, name = "command", "run-manager"


class TestCommand(RegistrationConformance):
    kind, name = "command", "solana"
