"""Everything a run shows to people: log lines, the live panel, the local testnet, reports and curves. Its only
input is events.
"""
