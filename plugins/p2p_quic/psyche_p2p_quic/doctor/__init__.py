"""`psyche doctor network`: whether this machine can take part in a run, and how others will reach it.

`checks` measures, `relay_rates` measures a relay's speed, `verdict` interprets the figures (pure), `command` is the command.
"""
