"""The ledger of a shard, on the machine where the shard is: made, changed, and asked whether it can be changed."""

from __future__ import annotations

import fcntl
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from dpfuse._logs import fields
from dpfuse.errors import DpfuseError

if TYPE_CHECKING:
    from dpfuse.fleet.holder import ShardSpec
    from dpfuse.policy.design import Design

_log = logging.getLogger(__name__)


def make_ledger(spec: ShardSpec) -> None:
    """Make the ledger of a new shard; refused if it is there."""
    from dpfuse.ledger import Ledger

    design = _load_design(spec)
    Ledger.create(spec.ledger, design, spec.streams, _bank_id(spec, design)).close()


def change_ledger(spec: ShardSpec) -> None:
    """Give the ledger the design and the streams of the spec; does nothing if it has them."""
    from dpfuse.ledger import Ledger, upgrade

    try:
        design = _load_design(spec)
        with Ledger.open_for_events(spec.ledger) as ledger:
            terms = ledger.terms
        add, retire = set(spec.streams) - set(terms.streams), set(terms.streams) - set(spec.streams)
        is_same_design = terms.fingerprint == design.fingerprint
        if add or retire or not is_same_design:
            upgrade(spec.ledger, None if is_same_design else design, add=add, retire=retire)
            _log.warning("the ledger of a shard was changed", extra=fields(shard=spec.name))
    except (DpfuseError, OSError, ValueError) as error:
        _log.error("the ledger of a shard was not changed: %s", error, extra=fields(shard=spec.name))


def find_objection(spec: ShardSpec) -> str | None:
    """Why a shard cannot follow that spec, as far as design, keys, bank and ledger tell; None if it can."""
    from dpfuse.ledger.upgrades import check_upgrade

    try:
        design = _load_design(spec)
        if not spec.keys.exists():
            raise FileNotFoundError(f"{spec.keys} is missing; give the key file as keys")
        if spec.ledger.exists():
            check_upgrade(spec.ledger, design, spec.streams)
        else:
            _bank_id(spec, design)
    except (DpfuseError, OSError, ValueError) as error:
        return str(error)
    return None


def has_writer(spec: ShardSpec) -> bool:
    """Whether a centre has the ledger at this moment; to start another one would only take time."""
    from dpfuse.ledger.head import head_path

    with suppress(OSError), head_path(spec.ledger).open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _load_design(spec: ShardSpec) -> Design:
    from dpfuse.policy import load

    design = load(spec.design)
    if design.guarantee is None:
        raise ValueError(f"{spec.design} must have a guarantee; the non-private floor may not be released")
    return design


def _bank_id(spec: ShardSpec, design: Design) -> str | None:
    if spec.bank is None:
        return None
    from dpfuse.ledger.bank.bank import Bank

    with Bank.open(spec.bank) as bank:
        bank.terms.check_guarantee(design.guarantee, bank.address)
        return bank.terms.bank_id
