"""The full-screen display of a run, in its own process.

`screen` and `terminal` belong to the program that is shown: they start the display's process, send it lines, and restore the
terminal even if the display fails. `app` and the panes are the display itself; only they import textual.
"""
