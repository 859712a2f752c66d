"""Optional packages: imported when first used, with an error that says what to install."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from stratalog.errors import ConfigError


def needed(package: str, what: str, install: str = "") -> Any:
    """Import a package; ConfigError, naming ``what`` needs it and what to install, if it is missing."""
    try:
        return import_module(package)
    except ImportError as error:
        name = package.removeprefix("google.").partition(".")[0].replace("_", "-")
        missing = ConfigError(f"{what} needs the package {name}: pip install {install or name}")
        missing.add_note("")  # no setting helps: the command line has no hint for it
        raise missing from error
