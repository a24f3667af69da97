"""The full-screen display of a run, in a process of its own.

`screen` and `terminal` are the side of the program that is shown: they start the display's process, feed it, and give the
terminal back whatever happens to it. `app` and the panes are the display itself; only they import textual.
"""
