"""Slopes of a function, and how far rounding and the method can be trusted."""
