"""`dpfuse account`: values, tables, JSON, and exit 2 for wrong arguments."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from dpfuse.cli.account import BUDGETS_SHOWN, account
from dpfuse.privacy import epsilons, gdp_epsilon

app = typer.Typer()
app.command()(account)


def run(*arguments, width="110"):
    return CliRunner().invoke(app, arguments, env={"COLUMNS": width, "TERMINAL_WIDTH": width, "NO_COLOR": "1"})


def test_json_holds_every_value():
    result = run("--order", "2", "--budget", "1.5", "--delta", "1e-5", "--json")
    assert result.exit_code == 0
    answer = json.loads(result.stdout)
    assert answer.keys() == {"epsilon", "rho", "mu", "order", "budget", "delta"}
    assert answer["epsilon"] == epsilons(2.0, 1.5, 1e-5)
    assert (answer["order"], answer["budget"], answer["delta"], answer["rho"]) == (2.0, 1.5, 1e-5, 0.75)
    assert answer["mu"] == pytest.approx(1.5**0.5)


def test_epsilon_is_converted_to_the_largest_budget():
    answer = json.loads(run("--epsilon", "3", "--delta", "1e-5", "--json").stdout)
    assert answer["budget"] == pytest.approx(0.51713, abs=1e-5)
    assert 2.999 < answer["epsilon"]["gdp"] <= 3


def test_coordinates_add_the_cost_of_discrete_noise():
    answer = json.loads(run("--budget", "1.5", "--coordinates", "1000000", "--json").stdout)
    assert answer["epsilon"]["gdp"] == gdp_epsilon(2.0, 1.5, 1e-5, 10**6)
    assert answer["epsilon"]["zcdp"] == epsilons(2.0, 1.5, 1e-5)["zcdp"]


def test_tables_show_epsilons_and_the_chance_to_tell():
    result = run("--budget", "1.5")
    assert result.exit_code == 0
    for figure in ("13.01", "11.63", "5.979", "5.545", "rho = 0.75", "mu = 1.225"):
        assert figure in result.stdout
    for budget in BUDGETS_SHOWN:
        assert f"│ {budget:g} " in result.stdout
    assert "55.3%" in result.stdout  # Phi(mu / 2) for a budget of 0.07
    assert "73.0%" in result.stdout  # and of 1.5
    assert "50% is guessing" in result.stdout


def test_help_has_examples():
    result = run("--help")
    assert result.exit_code == 0
    assert "dpfuse account --order 2 --budget 1.5 --delta 1e-5" in result.stdout
    assert "dpfuse account --epsilon 3 --delta 1e-5" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give either --budget or --epsilon"),
        (["--budget", "1", "--epsilon", "1"], "give either --budget or --epsilon"),
        (["--budget", "-1"], "budget must be finite and > 0, got -1.0"),
        (["--budget", "nan"], "budget must be finite and > 0, got nan"),
        (["--budget", "1", "--delta", "2"], "delta must be in (0, 1), got 2.0"),
        (["--budget", "1", "--order", "1"], "order must be > 1, got 1.0"),
        (["--epsilon", "0"], "epsilon must be finite and > 0"),
        (["--budget", "1", "--coordinates", "-1"], "coordinates must be at least 0"),
        (["--budget", "1.5", "--coordinates", "1000000000"], "coordinates must be fewer"),
        (["--budget", "much"], "--budget"),
    ],
)
def test_a_wrong_argument_is_exit_2_with_the_reason(arguments, message):
    result = run(*arguments, "--json")
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""


def test_importing_the_command_loads_nothing_slow():
    slow = ("dp_accounting", "opendp", "jax")
    code = f"import sys, dpfuse.cli.account; print([name for name in {slow} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert loaded.stdout.strip() == "[]"
