"""Commands about tokens: what a run pays (`rewards`, `balances`), a pool (`mining_pool`), `bonds`, a new token (`token`)."""
