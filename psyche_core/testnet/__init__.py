"""A whole run on this machine, a process for each program: what `psyche testnet start` does.

`testnet` starts the programs, watches their events and ends them; `processes` are child processes that print JSON lines;
`random_kills` is the plan of which clients are killed. What people see of it is in `ui`.
"""
