"""Trusted: the fusion centre, its inbox of reports, and the clock that ends its steps."""

from dpfuse.centre.centre import FusionCentre
from dpfuse.centre.clock import Ticker

__all__ = ["FusionCentre", "Ticker"]
