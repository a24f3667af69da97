"""What people type: `psyche run-manager …` and `psyche solana …`. Each room holds commands of one concern; all share `desk`."""
