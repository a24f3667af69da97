"""Strangers train one language model together over the internet: protocol, SDK and programs.

Importing this package costs nothing: rooms are imported by name (`psyche_core.coordinator`, `psyche_core.client`, …).
"""

from __future__ import annotations

from psyche_core.__about__ import __version__

__all__ = ["__version__"]
