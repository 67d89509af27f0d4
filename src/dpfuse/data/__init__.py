"""Tables of your own and published recordings, turned into `Trajectories`."""

from dpfuse.data.highd import highd
from dpfuse.data.meters import meters
from dpfuse.data.ngsim import ngsim
from dpfuse.data.reading import RecordingRead, SourceFile
from dpfuse.data.recording import Recording, read, us101
from dpfuse.data.sites import Site
from dpfuse.data.summary import Period, periods
from dpfuse.data.sumo import sumo
from dpfuse.data.table import TableRead, read_table
from dpfuse.data.table_summary import TableSummary

__all__ = [
    "Period",
    "Recording",
    "RecordingRead",
    "Site",
    "SourceFile",
    "TableRead",
    "TableSummary",
    "highd",
    "meters",
    "ngsim",
    "periods",
    "read",
    "read_table",
    "sumo",
    "us101",
]
