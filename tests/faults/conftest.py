"""Test modules are imported one by one; this is how they share a module."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
