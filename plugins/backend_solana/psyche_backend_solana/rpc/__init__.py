"""Calls to Solana over several RPC endpoints: what a failure means, which endpoint to ask next, and the calls themselves."""
