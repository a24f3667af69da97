"""What a trained model can do: text that it writes, and its scores in benchmarks.

`checkpoint_folders` finds a model's folder, `text_model` opens it, `sampling` chooses tokens and `generation` writes text.
`prompts` has the texts that a training client asks its model to continue.
"""
