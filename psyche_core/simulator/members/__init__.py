"""Simulated members: the process around the real client machine, its work, its disk and its keys; and the run's owner."""
