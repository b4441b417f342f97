"""What each op computes forward and backward, in any arithmetic: of the package, and of kernels."""

from attention_np.known_answers import kernels, program

OPS = {**program.DENSE, "attention": kernels.attention, "merge": kernels.merge}
