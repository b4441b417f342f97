"""What :mod:`attention_np.linear_attention` stands on: its tokens, and the same recurrence in chunks."""
