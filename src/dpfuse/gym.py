"""Importing this makes the spending problem known to Gymnasium, as `dpfuse/Spending-v0`; JAX waits until it is made."""

from __future__ import annotations

from dpfuse.errors import MissingExtra

try:
    import gymnasium
except ImportError as error:
    raise MissingExtra("the environment needs gymnasium: pip install 'dpfuse[gym]'") from error

SPENDING = "dpfuse/Spending-v0"

gymnasium.register(
    SPENDING,
    entry_point="dpfuse.training.environment:SpendingEnv",
    vector_entry_point="dpfuse.training.environment:SpendingVectorEnv",
)
