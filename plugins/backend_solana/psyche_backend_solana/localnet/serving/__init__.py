"""The local chain's providers: sockets, the node behind them in a thread of its own, and subscriptions."""
