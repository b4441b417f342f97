"""The parts of :mod:`attention_np.blockwise`: tiles of the scores, the kernels that compute them, and who runs them."""
