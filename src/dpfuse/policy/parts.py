"""The parts of a policy by name: those of the package from its tables, a user's own among classes that are passed in.

A file only ever names a part. Its code is never looked up by an import path that a file holds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypeVar, cast

import equinox as eqx

from dpfuse.policy.estimators import ESTIMATORS, Estimator
from dpfuse.policy.filters import FILTERS, RecurrentFilter
from dpfuse.policy.spending import SPENDING_RULES, SpendingRule

Part = type[RecurrentFilter] | type[SpendingRule] | type[Estimator]
_Kind = TypeVar("_Kind", bound=eqx.Module)


class PartMissing(ValueError):
    """A part of a user's own whose class was not passed in."""


def part_name(part: str | Part) -> str:
    """The name under which a design stores the part."""
    return part if isinstance(part, str) else f"{part.__module__}:{part.__qualname__}"


def find_filter(name: str, own: Sequence[Part] = ()) -> type[RecurrentFilter]:
    """The class of the filter with this name, from the package's table or among the user's classes `own`."""
    return _find("recurrent_filter", RecurrentFilter, FILTERS, name, own)


def find_spending(name: str, own: Sequence[Part] = ()) -> type[SpendingRule]:
    """The class of the spending rule with this name, as in `find_filter`."""
    return _find("spending", SpendingRule, SPENDING_RULES, name, own)


def find_estimator(name: str, own: Sequence[Part] = ()) -> type[Estimator]:
    """The class of the estimator with this name, as in `find_filter`."""
    return _find("estimator", Estimator, ESTIMATORS, name, own)


def _find(role: str, base: type, table: Mapping[str, type[_Kind]], name: str, own: Sequence[Part]) -> type[_Kind]:
    if name in table:
        return table[name]
    for part in own:
        if part_name(part) == name:
            if not issubclass(part, base):
                raise TypeError(f"{role} must be a subclass of {base.__module__}:{base.__qualname__}, got {name}")
            return cast(type[_Kind], part)
    # A name may come from a stranger's file and is printed.
    if re.fullmatch(r"[\w.]{1,200}:[\w.<>]{1,200}", str(name)):
        class_name = name.partition(":")[2]
        raise PartMissing(f"its {role} is {name}, which is not of this package; pass its class, parts=[{class_name}]")
    raise ValueError(f"{role} must be one of {', '.join(table)} or a class of your own, got {str(name)[:200]!r}")
