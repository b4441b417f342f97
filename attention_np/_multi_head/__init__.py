"""What :mod:`attention_np.multi_head` stands on: its parameters, and the steps between projections and scores."""
