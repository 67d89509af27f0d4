"""`dpfuse fleet`: many fusion centres as one, by a plan in a TOML file."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from dpfuse._logs import set_up_logs
from dpfuse.cli._options import AsJson, LogFormatOption, LogLevelOption

# Room for the addresses of readers, also where the output is no terminal.
_TABLE_WIDTH = 140


class RunByDefault(TyperGroup):
    """`dpfuse fleet FILE` is `dpfuse fleet run FILE`, also with options before the file."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in {*self.commands, "--help"}:
            args = ["run", *args]
        return super().parse_args(ctx, args)


fleet = typer.Typer(
    cls=RunByDefault,
    help="Run many fusion centres as one fleet, or show how one is.\n\nExample: dpfuse fleet roads.toml --new",
    no_args_is_help=True,
)
PlanFile = Annotated[Path, typer.Argument(help="The plan of the fleet, in TOML; docs/operations.md describes it.")]


@fleet.command()
def run(
    file: PlanFile,
    new: Annotated[
        bool, typer.Option("--new", help="Make the fleet's map and ledgers. Refused if one of them exists.")
    ] = False,
    ray: Annotated[bool, typer.Option("--ray", help="Place the shards by Ray, over the nodes of a cluster.")] = False,
    address: Annotated[
        str | None, typer.Option(help="With --ray: the cluster.", show_default="one on this machine")
    ] = None,
    log_format: LogFormatOption = "text",
    log_level: LogLevelOption = "warning",
) -> None:
    """Run a fleet until Ctrl-C or SIGTERM; SIGHUP reads its plan again.

    Each shard is a `dpfuse serve` process with its own ledger, and is started again if
    it ends. A missing map is refused, because the ledgers may have been lost with it:
    give --new at the first start only. Prints the address of the map once the fleet has begun. Streams that the
    new plan has in another shard move there, shards that it has no more are drained.

    Example: dpfuse fleet roads.toml --new
    """
    from dpfuse.fleet.plan import FleetPlan
    from dpfuse.fleet.serve import run_fleet

    if address is not None and not ray:
        raise typer.BadParameter("--address needs --ray")
    set_up_logs(log_format, log_level)
    make_holder: Any = None
    if ray:
        from dpfuse.fleet.on_ray import RayHolder, connect

        connect(address)
        make_holder = RayHolder
    run_fleet(file, FleetPlan.load(file), make_holder, announce=typer.echo, is_new=new)


@fleet.command()
def status(file: PlanFile, as_json: AsJson = False) -> None:
    """Show the shards of a running fleet; exit 1 if one does not release on time.

    Example: dpfuse fleet status roads.toml
    """
    from rich.console import Console
    from rich.table import Table

    from dpfuse.fleet.overview import describe_shards, fetch_map, is_well
    from dpfuse.fleet.plan import FleetPlan

    logging.getLogger("httpx").setLevel(logging.WARNING)
    plan = FleetPlan.load(file)
    published = fetch_map(plan.address)
    shards = describe_shards(published)
    if as_json:
        typer.echo(json.dumps({"version": published["version"], "shards": shards, "streams": published["streams"]}))
    else:
        table = Table("shard", "health", "generation", "streams", "step", "behind", "readers")
        for one in shards:
            names = "shard", "health", "generation", "streams", "step", "steps_behind", "readers"
            table.add_row(*("–" if one[name] is None else str(one[name]) for name in names))
        console = Console(soft_wrap=True, highlight=False, width=max(Console().width, _TABLE_WIDTH))
        console.print(f"Map version {published['version']}, {len(published['streams'])} streams.")
        console.print(table)
    if not is_well(shards):
        raise typer.Exit(1)
