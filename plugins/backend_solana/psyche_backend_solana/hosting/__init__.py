"""Runs on a local chain in this process: `psyche server run --backend solana`, and testnets.

`local_run` starts the chain and watches the run, `new_run` makes the run, `testnet_member` prepares a member of a testnet for it.
"""
