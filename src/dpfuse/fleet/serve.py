"""A whole fleet: its supervisor in a thread, and map, page and health over HTTP."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from dpfuse._logs import fields
from dpfuse.errors import LedgerMismatch
from dpfuse.fleet.holder import ShardHolder
from dpfuse.fleet.map import MAP_FILE, FleetMap
from dpfuse.fleet.overview import make_fleet_app
from dpfuse.fleet.plan import FleetPlan
from dpfuse.fleet.supervisor import Fleet, ShardRunner
from dpfuse.public.answers import too_busy
from dpfuse.public.connections import ByAddress, limited_protocol, raise_limits
from dpfuse.public.listening import address_of, bind, make_server, quiet_signals

_log = logging.getLogger(__name__)


def run_fleet(
    file: Path,
    plan: FleetPlan,
    make_holder: Callable[[str], ShardRunner] | None = None,
    announce: Callable[[str], object] = print,
    *,
    is_new: bool = False,
) -> None:
    """Run until SIGINT or SIGTERM, in the main thread of a process; SIGHUP reads the plan again.

    Args:
        is_new: make map and ledgers; refused if the map or a shard's ledger is there. False refuses a missing map.
    """
    _check_map(plan.folder / MAP_FILE, is_new)
    FleetMap.load(plan.folder / MAP_FILE).check_places(is_on_nodes=make_holder is not None)
    fleet = Fleet(plan, make_holder or (lambda name: ShardHolder()))

    def reload(number: int, frame: FrameType | None) -> None:
        try:
            fleet.follow(FleetPlan.load(file))
        except (OSError, ValueError) as error:
            _log.error("the fleet keeps its plan: %s", error, extra=fields(file=str(file)))

    async def before_shutdown() -> None:
        await asyncio.to_thread(fleet.stop)

    before = signal.signal(signal.SIGHUP, reload)
    try:
        with bind(plan.host, plan.port) as listener:
            server = make_server(
                make_fleet_app(fleet.published_map, fleet.state),
                limited_protocol(ByAddress(raise_limits(), plan.per_address), too_busy),
                before_shutdown=before_shutdown,
            )
            fleet.start()
            announce(f"fleet {address_of(plan.host, listener, has_tls=False)}")
            with quiet_signals():
                server.run(sockets=[listener])
    finally:
        fleet.stop()
        signal.signal(signal.SIGHUP, before)


def _check_map(path: Path, is_new: bool) -> None:
    """Refuse a missing map, since the ledgers that it named may be missing with it, and what they had spent."""
    if is_new and path.exists():
        raise ValueError(f"{path} is there, so the fleet is not new; start it without --new")
    if is_new and (ledger := next(path.parent.glob("*/ledger-*.db*"), None)) is not None:
        raise LedgerMismatch(
            f"{ledger} is there without {path}, so the fleet is not new; put its {MAP_FILE} back, or name another "
            f"folder in the plan"
        )
    if not is_new and not path.exists():
        raise LedgerMismatch(
            f"{path} is missing; put the folder of the fleet back, or mount its disk; new ledgers are only for sensors "
            f"that no other ledger has charged: give --new at the first start of a fleet"
        )
