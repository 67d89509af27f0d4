"""Statistics that several rooms use."""

Z95 = 1.959964
"""The 97.5% quantile of the standard normal distribution: mean +- Z95 deviations is a 95% interval."""
