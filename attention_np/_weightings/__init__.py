"""What :mod:`attention_np.weightings` stands on: the thresholds that make the weights of a row sum to one."""
