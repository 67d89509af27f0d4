"""`dpfuse card`: what a design guarantees, what it was trained on, how good it is, and where its limits are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dpfuse.cli._options import AsJson


def card(
    design: Annotated[
        Path, typer.Argument(help="A design from `dpfuse train` or `Design.save`, or freeway, which comes with dpfuse.")
    ],
    as_json: AsJson = False,
) -> None:
    """Print the card of a design.

    The guarantee is computed from the design. Errors are those that were recorded: on
    the validation part by `dpfuse train`, on the test part by `dpfuse evaluate --record`.

    Example: dpfuse card adaptive.dpfuse
    """
    import dpfuse
    from dpfuse.policy.card import card_text

    made = dpfuse.load(design).card
    typer.echo(json.dumps(made) if as_json else card_text(made))
