"""Talking to Solana over several RPC endpoints: what failed and why, whom to ask next, and the calls themselves."""
