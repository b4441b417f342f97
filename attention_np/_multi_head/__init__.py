"""What :mod:`attention_np.multi_head` stands on: the steps between projections and scores."""
