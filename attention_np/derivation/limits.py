"""The bounds that a page must keep. A page is data from strangers: each bound has its own clear error."""

from __future__ import annotations

PAGE_CHARACTERS = 400_000
FRONT_MATTER_CHARACTERS = 8_000
FRONT_MATTER_DEPTH = 6
EQUATIONS = 400  # per page
EQUATION_CHARACTERS = 4_000
SAME = 8  # equations that one is said to be the same as: all their places in the code are places of this one
DEPTH = 40  # of the tree of an expression, and of braces
NAME_CHARACTERS = 80
NAMES = 400  # declared and defined on one page
AXES = 6  # of one tensor
INDICES = 10  # named axes of one intermediate result
ELEMENTS = 3_000_000  # of one intermediate array
STEPS = 120_000_000  # array elements produced while one equation is judged
PAGE_STEPS = 500_000_000  # and while one page is: more than twice what the largest of ours takes
DUAL = 2  # what an element with a slope costs besides, in elements: its product takes three in the place of one
OPERATION = 10_000  # what an operation costs besides, in elements: about the time that it takes
HELD = 40_000_000  # numbers that one page keeps, over all draws
NUMBER_CHARACTERS = 24
MATRIX_POWER = 64
EXPONENT = 10_000.0
SIZE = 64  # of an index range, in a worked example or fixed in the front matter
