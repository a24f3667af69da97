"""The version of psyche-p2p-quic, defined only here."""

__version__ = "0.1.0"
