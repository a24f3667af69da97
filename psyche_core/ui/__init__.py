"""All output of a run for users: log lines, the live panel, the local testnet, reports and plots. Its only input is events."""
