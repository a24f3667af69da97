"""The commands of `psyche`, a module for each: `psyche NAME` is the module NAME, here or in one of three packages.

`member`: taking part in a run. `model`: training, measuring and using a model on this machine. `watch`: looking at runs. A module
reads options and calls what does the work; it holds no rules of its own.
"""
