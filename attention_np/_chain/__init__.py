"""What a chain is recorded in, and the arithmetic between its ops."""
