"""What a recording remembers of the table that it was read from, so that it can be written as that table again."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Id = str | int | float | bool
TimeKind = Literal["whole", "number", "moment"]


@dataclass(frozen=True, kw_only=True)
class Labels:
    """Names of columns, sensors and runs of a table, and when its runs begin.

    Attributes:
        time, sensor, run, values, state, public: names of columns; a table of one run has no column `run`.
        time_kind: `whole` and `number` are columns of seconds, `moment` one of dates with a time.
        time_zone: of moments, or None.
        sensor_names: the id of each sensor by its number; None where the ids are the numbers.
        run_names: the id of each recording by its number; None for a table of one run.
        starts_ns: when each recording begins, in nanoseconds.
    """

    time: str = "time"
    sensor: str = "sensor"
    run: str | None = "run"
    values: tuple[str, ...] = ()
    state: tuple[str, ...] = ()
    public: tuple[str, ...] = ()
    time_kind: TimeKind = "number"
    time_zone: str | None = None
    sensor_names: tuple[Id, ...] | None = None
    run_names: tuple[Id, ...] | None = None
    starts_ns: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON takes them."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Labels:
        """The labels with these fields, as JSON gives them."""
        plain: dict[str, Any] = {k: tuple(value) if isinstance(value, list) else value for k, value in fields.items()}
        return cls(**plain)
