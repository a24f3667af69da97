"""Experiments that compare settings by training. They help to choose settings; a run does not use them.

`convergence` compares optimizers; `convergence_run` reads its models and data from a run file, `convergence_jobs` runs several
trainings at once, and `convergence_plot` draws the result. `replayed_training` measures the scores with which shares are
verified, `lazy_work` the scores of members that cheat, and `replay_report` interprets them; `replay_run` reads models and data
for them from a run file. `tuning` searches for optimizer settings, and `tuning_run` runs its trainings.
"""
