"""easyr1: reinforcement learning for language and vision-language models."""

from easyr1.errors import ConfigError, DataError, RewardError

__all__ = ["ConfigError", "DataError", "RewardError", "__version__"]
__version__ = "0.1.0"
