"""The commands of ``python -m attention_np``, a module each.

Each has ``HELP``, one line; ``add_arguments(parser)``; and ``run(options)``, which returns the exit code.
"""
