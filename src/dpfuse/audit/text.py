"""An audit as text: a table of the attacks, a line for each check, and the verdict."""

from __future__ import annotations

from dpfuse.audit.audit import Audit
from dpfuse.privacy.statement import in_short


def to_text(result: Audit) -> str:
    """The audit as text."""
    heads = [
        "attack on",
        "told apart",
        "at most",
        f"epsilon at least ({result.confidence:g})",
        "claimed",
        "share",
        "reach",
    ]
    rows = [
        [
            attack.name,
            f"{attack.accuracy:.1%}",
            f"{result.chance_claimed:.1%}",
            f"{attack.epsilon_bound:.3f}",
            f"{result.epsilon_claimed:.3f}",
            f"{attack.epsilon_bound / result.epsilon_claimed:.0%}",
            f"{attack.reach:.1%}",
        ]
        for attack in result.attacks
    ]
    table = "\n".join("| " + " | ".join(row) + " |" for row in [heads, ["---"] * len(heads), *rows])
    lines = [f"{'ok  ' if check.passed else 'FAIL'} {check.name}: {check.found}" for check in result.checks]
    return "\n".join([table, "", *lines, "", _verdict(result)])


def _verdict(result: Audit) -> str:
    guarantee = in_short(result.guarantee)
    tried = f"{result.num_runs} + {result.num_runs} runs of {result.num_steps} releases in each attack"
    if not result.passed:
        failed = sum(not check.passed for check in result.checks)
        return f"BROKEN: {failed} checks contradict {guarantee} ({tried})."
    return f"Passed: no check contradicts {guarantee} ({tried}; false alarms at most {result.false_alarm:.2g})."
