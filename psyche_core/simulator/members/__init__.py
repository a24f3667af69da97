"""Simulated members: the process around the real client machine, its disk and its keys."""
