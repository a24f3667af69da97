"""The commands `psyche run-manager …` and `psyche solana …`.

`run_manager` and `solana` are their tables. `run` has commands about runs, `payments` about tokens, `client` starts the client
that a run asks for. `run_facts` is what the chain says of runs and members; `authority`, `participants`, `token_amounts` and
`context` are what commands share.
"""
