"""``python -m attention_np``."""

import sys

from attention_np.cli import main

if __name__ == "__main__":  # and not where another process of `check` begins
    sys.exit(main())
