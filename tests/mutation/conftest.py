from importlib.util import find_spec

# The examples in docstrings are tests, so pytest imports all modules: not those that need what may be missing.
if not (find_spec("mutmut") and find_spec("coverage")):
    collect_ignore = ["mutants.py", "running.py", "score.py"]
