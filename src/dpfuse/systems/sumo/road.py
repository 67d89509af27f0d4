"""The road and its traffic, and the two files that SUMO reads them from."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dpfuse import _check

_LANE_M = 3.2
_AFTER_M = 600.0
_DEMAND_S = 300.0
_VEHICLES = (
    '<vType id="car" length="4.8" minGap="2.5" tau="1.3" accel="2" decel="3" sigma="0.6" '
    'speedFactor="normc(1,0.1,0.7,1.3)"/>'
    '<vType id="truck" vClass="truck" length="14" minGap="3" tau="1.8" accel="1" decel="3" sigma="0.5" maxSpeed="25"/>'
)


@dataclass(frozen=True, kw_only=True)
class SumoFreeway:
    """A straight freeway on which the rightmost lanes end, so that vehicles must change lanes and queues form.

    Attributes:
        num_lanes: lanes up to the place where some end.
        num_lanes_after: lanes behind it.
        road_m: length of the road up to that place.
        section_start_m: where the recorded section starts.
        section_m: length of the recorded section.
        speed_limit_mps: of cars; drivers keep to it to about 10%. Trucks drive 25 m/s at most.
        demand_per_h: vehicles per hour and lane. For every five minutes a demand is drawn between these two.
        truck_share: share of the vehicles that are trucks.
    """

    num_lanes: int = 4
    num_lanes_after: int = 3
    road_m: float = 1200.0
    section_start_m: float = 600.0
    section_m: float = 400.0
    speed_limit_mps: float = 33.3
    demand_per_h: tuple[float, float] = (900.0, 2200.0)
    truck_share: float = 0.12

    def __post_init__(self) -> None:
        _check.is_count("num_lanes_after", self.num_lanes_after)
        _check.is_count("num_lanes", self.num_lanes)
        if self.num_lanes < self.num_lanes_after:
            raise ValueError(
                f"num_lanes must be at least num_lanes_after, {self.num_lanes_after}, got {self.num_lanes}; lanes end"
            )
        for name in ("road_m", "section_m", "speed_limit_mps"):
            _check.is_positive(name, getattr(self, name))
        if not 0 <= self.section_start_m <= self.road_m - self.section_m:
            raise ValueError(
                f"section_start_m must be from 0 to road_m - section_m, {self.road_m - self.section_m:g}, "
                f"got {self.section_start_m}"
            )
        if len(self.demand_per_h) != 2 or not 0 < self.demand_per_h[0] <= self.demand_per_h[1]:
            raise ValueError(f"demand_per_h must be two numbers above 0, the lower one first, got {self.demand_per_h}")
        if not 0 <= self.truck_share < 1:
            raise ValueError(f"truck_share must be from 0 to below 1, got {self.truck_share}")

    def network(self) -> str:
        """The network file: the edge `road`, the edge `after`, and how their lanes connect."""
        length, total = self.road_m, self.road_m + _AFTER_M
        lanes, kept = self.num_lanes, self.num_lanes_after
        none = "0" * kept
        requests = "".join(f'<request index="{i}" response="{none}" foes="{none}" cont="0"/>' for i in range(kept))
        connections = "".join(
            f'<connection from="road" to="after" fromLane="{i + lanes - kept}" toLane="{i}" dir="s" state="M"/>'
            for i in range(kept)
        )
        return (
            f'<net version="1.20"><location netOffset="0,0" convBoundary="0,0,{total},1" origBoundary="0,0,{total},1" '
            f'projParameter="!"/>{self._edge("road", "ab", lanes, 0.0, length)}'
            f"{self._edge('after', 'bc', kept, length, total)}"
            f'<junction id="a" type="dead_end" x="0" y="0" incLanes="" intLanes="" shape="0,0 0,1"/>'
            f'<junction id="b" type="priority" x="{length}" y="0" incLanes="{_names("road", lanes)}" intLanes="" '
            f'shape="{length},0 {length},1">{requests}</junction>'
            f'<junction id="c" type="dead_end" x="{total}" y="0" incLanes="{_names("after", kept)}" intLanes="" '
            f'shape="{total},0 {total},1"/>{connections}</net>'
        )

    def _edge(self, name: str, ends: str, num_lanes: int, start: float, stop: float) -> str:
        lanes = "".join(
            f'<lane id="{name}_{i}" index="{i}" speed="{self.speed_limit_mps}" length="{stop - start:.2f}" '
            f'shape="{start:.2f},{y:.2f} {stop:.2f},{y:.2f}"/>'
            for i, y in enumerate(_LANE_M * (np.arange(num_lanes) + 0.5 - num_lanes))
        )
        return f'<edge id="{name}" from="{ends[0]}" to="{ends[1]}" priority="1">{lanes}</edge>'

    def demand(self, duration_s: float, rng: np.random.Generator) -> str:
        """The route file: what drives, and how many vehicles enter in each five minutes."""
        shares = {"car": 1 - self.truck_share, "truck": self.truck_share}
        flows = []
        for begin, end in pairwise(np.arange(0.0, duration_s + _DEMAND_S, _DEMAND_S)):
            per_h = self.num_lanes * rng.uniform(*self.demand_per_h)
            flows += [
                f'<flow id="{kind}.{begin:.0f}" type="{kind}" route="all" begin="{begin}" end="{end}" '
                f'vehsPerHour="{per_h * share:.3f}" departLane="random" departSpeed="max"/>'
                for kind, share in shares.items()
                if share > 0
            ]
        return f'<routes>{_VEHICLES}<route id="all" edges="road after"/>{"".join(flows)}</routes>'


def _names(edge: str, num_lanes: int) -> str:
    return " ".join(f"{edge}_{i}" for i in range(num_lanes))
