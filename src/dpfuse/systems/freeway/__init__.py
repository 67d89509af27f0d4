"""A freeway of several lanes with stop-and-go waves, calibrated to US-101 on the morning of 15 June 2005.

`Freeway` has the parameters, `simulate` makes recordings, and `watch` simulates without end.
"""

from dpfuse.systems.freeway.parameters import Freeway
from dpfuse.systems.freeway.recording import Moment, simulate, watch

__all__ = ["Freeway", "Moment", "simulate", "watch"]
