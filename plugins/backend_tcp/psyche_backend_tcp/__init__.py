"""Coordinator over TCP: a server that hosts a run, the client's connection to it, and the run's data server."""
