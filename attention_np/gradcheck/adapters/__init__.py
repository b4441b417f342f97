"""Functions of other libraries: each module here is `gradcheck.torch`, `gradcheck.jax` or `gradcheck.autograd`."""
