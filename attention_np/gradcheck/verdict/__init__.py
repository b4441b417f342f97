"""The only room that says *wrong*: the floor of each entry, its bound, and what follows."""
