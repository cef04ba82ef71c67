"""Lets the files of this folder import one another by name, as they do when one of them is run as a script."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
