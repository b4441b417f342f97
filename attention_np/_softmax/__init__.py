"""What :mod:`attention_np.softmax` stands on: what its formulas need to be right in every row."""
