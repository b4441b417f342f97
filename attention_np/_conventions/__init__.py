"""What :mod:`attention_np.conventions` stands on: readings of a call, the calls it asks, and what libraries do."""
