"""Many designs at once: grids of recordings, guarantees, settings and seeds, on this machine or on a Ray cluster."""

from dpfuse.sweeps.grid import Recording
from dpfuse.sweeps.plan_file import SweepPlan, read_plan
from dpfuse.sweeps.result import SweepFailure, SweepResult
from dpfuse.sweeps.sweep import sweep

__all__ = ["Recording", "SweepFailure", "SweepPlan", "SweepResult", "read_plan", "sweep"]
