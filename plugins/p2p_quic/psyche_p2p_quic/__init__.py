"""QUIC transport for Psyche, over iroh."""

from psyche_p2p_quic.__about__ import __version__

__all__ = ["__version__"]
