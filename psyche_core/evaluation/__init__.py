"""Evaluates a trained model: text that it writes, and its scores in benchmarks.

`checkpoint_folders` finds a model's folder, `text_model` opens it, `sampling` chooses tokens and `generation` writes text.
`harness` measures with lm-evaluation-harness. `in_run` evaluates while a client trains.
"""
