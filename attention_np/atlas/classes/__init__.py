"""How the modules of transformers are read, by families: digests of their sources, and what each computes."""
