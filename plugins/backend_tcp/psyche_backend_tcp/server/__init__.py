"""The coordinator server: the `Hub` decides, `tcp_server` acts."""
