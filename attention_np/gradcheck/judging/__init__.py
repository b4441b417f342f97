"""A verdict on every entry: whether it is wrong, or rounding can be blamed."""
