"""A whole run on this machine, a process for each program: what `psyche testnet start` does.

`testnet` starts the programs, watches their events and ends them; `arguments` are their command lines, `results_folder` is what
they leave, and what is kept of an earlier run; `processes` are child processes that print JSON lines, `forking` forks them
from one that has imported torch; `random_kills` is the plan of which clients are killed.
"""
