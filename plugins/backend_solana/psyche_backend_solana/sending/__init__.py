"""How a member acts on a run: instructions, transactions, their price and their refusals."""
