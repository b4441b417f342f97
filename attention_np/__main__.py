"""``python -m attention_np``."""

import sys

from attention_np.cli import main

sys.exit(main())
