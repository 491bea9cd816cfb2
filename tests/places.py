"""Where tests find what the project does not ship."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHARED = Path(os.environ.get("BITUNE_SHARED", ROOT.parent / "shared"))
