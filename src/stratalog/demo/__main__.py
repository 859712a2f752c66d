"""``python -m stratalog.demo``."""

from __future__ import annotations

import sys

from stratalog.demo.main import main

sys.exit(main())
