"""Makes `harness` and `strategies` importable, whatever pytest's import mode."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]
