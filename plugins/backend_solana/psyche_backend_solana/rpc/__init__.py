"""Calls to Solana over several RPC endpoints: the calls, the meaning of failures, and the choice of the next endpoint."""
