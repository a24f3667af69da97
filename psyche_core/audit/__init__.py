"""Recomputes a run's weights from published journals, without any gradient, and checks everything on the way that can be checked.

`finding` reads journals and checkpoints in folders, `planning` decides which journal gives which step and finds gaps, `rounds`
checks the records of a round, `start` finds the first weights, `replaying` does it all step by step, and `report` says what was
found. Journals and checkpoints come from strangers: nothing in them is believed that is not checked.
"""
