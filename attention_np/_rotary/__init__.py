"""What :mod:`attention_np.rotary` stands on: how fast each pair turns."""
