"""The coordinator on a Solana chain: programs, a local chain, the clients' connection to it, and the owner's commands."""

from psyche_backend_solana.__about__ import __version__

__all__ = ["__version__"]
