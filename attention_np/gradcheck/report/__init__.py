"""What is found: data, as text, as JSON, as pictures."""
