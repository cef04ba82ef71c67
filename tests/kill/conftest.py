"""Lets the tests of this folder import what stands beside them, which must also start as plain scripts."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
