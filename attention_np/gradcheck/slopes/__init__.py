"""Slopes of a function: by the complex step, by differences, and how well each is known. Decides nothing."""
