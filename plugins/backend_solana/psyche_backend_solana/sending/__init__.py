"""Sends a member's commands to a run: instructions, transactions, their price, and the programs' errors."""
