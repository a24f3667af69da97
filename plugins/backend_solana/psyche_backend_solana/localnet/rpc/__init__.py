"""The local chain's JSON-RPC and websockets, as a real validator has them."""
