"""easyr1: reinforcement learning for language and vision-language models."""

import sys

if sys.version_info < (3, 10):  # noqa: UP036  # the only file that older versions can read; pip asks pyproject.toml
    raise SystemExit("easyr1 needs Python 3.10 or newer, this is %d.%d" % sys.version_info[:2])  # noqa: UP031

from easyr1.errors import ConfigError, DataError, RewardError

__all__ = ["ConfigError", "DataError", "RewardError", "__version__"]
__version__ = "0.1.0"
