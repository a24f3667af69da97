"""Calls to Solana over several RPC endpoints: meaning of failures, choice of the next endpoint, and the calls themselves."""
