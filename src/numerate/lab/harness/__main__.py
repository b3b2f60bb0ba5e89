"""Print the folder of the tasks, for ``lm_eval run --include_path``."""

import sys
from pathlib import Path

sys.stdout.write(f"{Path(__file__).parent}\n")
