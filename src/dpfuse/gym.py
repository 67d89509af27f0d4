"""Importing this registers the spending problem with Gymnasium as `dpfuse/Spending-v0`, without loading JAX."""

from __future__ import annotations

from dpfuse._extras import requires_extra

with requires_extra("gym", "the environment"):
    import gymnasium

SPENDING = "dpfuse/Spending-v0"

gymnasium.register(
    SPENDING,
    entry_point="dpfuse.training.environment:SpendingEnv",
    vector_entry_point="dpfuse.training.environment:SpendingVectorEnv",
)
