"""What may leave the centre: committed rows, and what follows from them and from public settings.

There is one exception. In a replay of simulated or public data (`dpfuse serve --replay`) the page also shows the truth,
the number of reports and the time of a step, see `ReplayNotes`. A centre with real sensors never has them.
"""

from dpfuse.public.hub import Hub
from dpfuse.public.rows import Published, Row

__all__ = ["Hub", "Published", "Row"]
