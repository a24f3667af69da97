"""Experiments that compare settings by training. They help to choose settings; a run does not use them.

`convergence` is the experiment, `convergence_run` reads its models and data from a run file, `convergence_plot` draws it.
"""
