"""The commands `psyche run-manager …` and `psyche solana …`.

`run_manager` and `solana` list the commands. `run` has commands about runs, `payments` about tokens, `client` starts the client
that a run asks for. `run_facts` reads what the chain says about runs and members. `authority`, `participants`, `token_amounts`
and `context` are shared by commands.
"""
