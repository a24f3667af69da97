"""Commands about tokens: what a run pays (`rewards`, `balances`), a pool of collateral (`mining_pool`), a new token (`token`)."""
