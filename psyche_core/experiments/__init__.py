"""Experiments that compare choices by training: for choosing settings, not for a run."""
