"""Experiments that compare settings by training. They help to choose settings; a run does not use them.

`convergence` compares optimizers, `convergence_run` reads its models and data from a run file, `convergence_jobs` trains several
at once, `convergence_plot` draws it.
`replayed_training` measures the scores with which shares are verified, `lazy_work` those of members that cheat, `replay_report`
says what they mean, and `replay_run` reads models and data for them from a run file.
"""
