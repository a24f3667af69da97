"""JSON-RPC as a real validator has it: parameters, filters, encodings, transactions as JSON, and faults for tests."""
