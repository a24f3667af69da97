"""The run's data server, and the `Server` data location that reads from it."""
