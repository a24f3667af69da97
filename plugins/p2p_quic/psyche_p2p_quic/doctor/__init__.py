"""`psyche doctor network`: whether this machine can take part in a run, and how others will reach it.

`checks` measures, with `server_check` for the server and `relay_rates` for a relay's speed; `verdict` interprets the figures
(pure), `report` and `command` are what people see.
"""
