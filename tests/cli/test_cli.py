"""The command line: from a simulation to a report, exit codes, and files that are never overwritten."""

from __future__ import annotations

import json
import warnings

import pytest
from typer.testing import CliRunner

import dpfuse
from dpfuse import cli
from support.command import run_dpfuse

COMMANDS = ("demo", "simulate", "data", "train", "evaluate", "audit", "account", "optimal", "ledger", "live", "serve",
            "relay", "keys", "broker", "estimate", "replay")  # fmt: skip
TRAIN = (
    "--recurrent-filter",
    "gru",
    "--budget",
    "1.5",
    "--adjacency",
    "replace-one",
    "--split-by",
    "run",
    "--updates",
    "1",
)


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    """The working folder, with a recording and designs that the commands made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path := tmp_path_factory.mktemp("cli"))
        yield path


@pytest.fixture
def run(capsys, monkeypatch):
    """`dpfuse` with these arguments: exit code, stdout and stderr."""
    return lambda *arguments: run_dpfuse(capsys, monkeypatch, *arguments)


@pytest.fixture
def recording(run, folder):
    path = folder / "walk.dpfuse-data"
    if not path.exists():
        result = run("simulate", "linear-gaussian", "--runs", 40, "--steps", 6, "--out", path, "--json")
        assert (result.exit_code, result.stderr) == (0, "")
        summary = json.loads(result.stdout)
        assert (summary["runs"], summary["steps"], summary["slots"]) == (40, 6, 20)
    return path


@pytest.fixture
def design(run, recording, folder):
    path = folder / "adaptive.dpfuse"
    if not path.exists():
        result = run("train", recording, *TRAIN, "--out", path, "--json")
        assert result.exit_code == 0, result.stderr
        assert "validation error" in result.stderr
        summary = json.loads(result.stdout)
        assert summary["file"] == str(path) and summary["validation_mse"] > 0 and summary["prior_mse"] > 0
        assert summary["fingerprint"] == dpfuse.load(path).fingerprint
    return path


class TestFromSimulationToReport:
    def test_train_writes_a_design_with_the_given_settings(self, design):
        loaded = dpfuse.load(design)
        assert loaded.guarantee == dpfuse.Guarantee(order=2.0, budget=1.5, adjacency="replace-one")
        assert (loaded.structure.spending, loaded.structure.horizon) == ("adaptive", 6)
        assert loaded.structure.recurrent_filter == "gru"

    def test_evaluate_prints_one_json_object(self, run, recording, design, folder):
        other = folder / "other.dpfuse"
        other.write_bytes(design.read_bytes())
        result = run("evaluate", recording, design, other, "--whole", "--draws", 1, "--figures", folder / "f", "--json")
        assert result.exit_code == 0, result.stderr
        answer = json.loads(result.stdout)
        assert set(answer["designs"]) == {"adaptive", "other"}
        assert answer["designs"]["adaptive"]["within_budget"] is True
        assert answer["designs"]["adaptive"]["budget_spent_max"] <= 1.5
        assert answer["designs"]["adaptive"]["num_windows"] == 40
        assert answer["paired"] == {
            "other": {"ratio": 1.0, "ci95": [1.0, 1.0], "difference": 0.0, "difference_ci95": [0.0, 0.0]}
        }
        drawn = {path.name for path in (folder / "f").iterdir()}
        assert drawn == {"budget.png", "calibration.png", "error.png", "estimates.png", "training.png"}

    def test_evaluate_states_the_guarantee_in_words(self, run, recording, design):
        result = run("evaluate", recording, design, "--whole", "--draws", 1)
        assert result.exit_code == 0, result.stderr
        assert "| adaptive |" in result.stdout and "no releases at all (prior)" in result.stdout
        assert "(2, 1.5)-Rényi differential privacy" in result.stdout
        assert "(replace-one): the whole trajectory of the sensor is protected" in result.stdout
        assert "95% interval" not in result.stderr

    def test_evaluate_says_why_intervals_are_missing(self, run, recording, design, monkeypatch):
        monkeypatch.setattr("dpfuse.evaluation.bootstrap.MIN_BLOCKS", 41)
        result = run("evaluate", recording, design, "--whole", "--draws", 1)
        assert "they need test data of 41 independent blocks, and it has 40;" in result.stderr

    def test_the_card_has_the_errors_that_evaluate_recorded(self, run, recording, design, folder):
        (own := folder / "carded.dpfuse").write_bytes(design.read_bytes())
        before = json.loads(run("card", own, "--json").stdout)
        assert before["errors"]["test"] == "not recorded" and before["errors"]["validation"] > 0
        assert before["training_data"]["training"]["runs"] == 32
        evaluated = run("evaluate", recording, own, "--split-by", "run", "--draws", 1, "--record", "--json")
        mse = json.loads(evaluated.stdout)["designs"]["carded"]["mse"]
        assert json.loads(run("card", own, "--json").stdout)["errors"]["test"]["mse"] == mse
        text = run("card", own).stdout
        assert text.startswith("# Design card") and f"mse: {mse:.4g}" in text
        assert dpfuse.load(own).fingerprint == dpfuse.load(design).fingerprint

    def test_two_designs_with_one_name_are_refused(self, run, recording, design, folder):
        (folder / "b").mkdir()
        (twin := folder / "b" / design.name).write_bytes(design.read_bytes())
        result = run("evaluate", recording, design, twin, "--split-by", "run", "--draws", 1, "--json")
        assert result.exit_code == 2 and "different file names" in result.error

    @pytest.mark.parametrize("system", ["linear-gaussian", "hidden-markov", "tracking", "growth", "freeway"])
    def test_simulate_writes_a_recording_of_every_system(self, run, tmp_path, system):
        out = tmp_path / "data"
        result = run("simulate", system, "--runs", 1, "--minutes", 0.5, "--steps", 9, "--out", out)
        assert result.exit_code == 0, result.stderr
        assert "1 runs of" in result.stdout
        assert dpfuse.Trajectories.load(out).num_runs == 1

    def test_equal_seeds_write_equal_recordings(self, run, tmp_path):
        for name, seed in [("a", 0), ("b", 0), ("c", 1)]:
            run("simulate", "hidden-markov", "--runs", 2, "--steps", 9, "--seed", seed, "--out", tmp_path / name)
        one, two, other = ((tmp_path / name).read_bytes() for name in "abc")
        assert one == two != other


class TestExitCodes:
    def test_nothing_is_overwritten_without_force(self, run, recording, design):
        for path, command in [(recording, ("simulate", "linear-gaussian")), (design, ("train", recording, *TRAIN))]:
            before = path.read_bytes()
            result = run(*command, "--out", path)
            assert result.exit_code == 2
            assert "exists" in result.error and "--force" in result.error
            assert result.stdout == "" and path.read_bytes() == before

    def test_force_overwrites(self, run, tmp_path):
        (tmp_path / "data").write_text("old")
        arguments = ("simulate", "hidden-markov", "--runs", 1, "--steps", 3, "--out", tmp_path / "data")
        assert run(*arguments).exit_code == 2
        assert run(*arguments, "--force").exit_code == 0
        assert dpfuse.Trajectories.load(tmp_path / "data").num_steps == 3

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("train", "nowhere", *TRAIN), "no trajectories file at nowhere"),
            (("evaluate", "nowhere", "nowhere.dpfuse"), "no trajectories file at nowhere"),
            (("evaluate", "{recording}", "nowhere.dpfuse", "--split-by", "run"), "no design file at nowhere.dpfuse"),
            (("evaluate", "{recording}", "{recording}", "--split-by", "run"), "must hold a design"),
            (("train", "{design}", *TRAIN), "must hold a trajectories"),
        ],
    )
    def test_a_failure_is_one_line_and_exit_1(self, run, recording, design, arguments, message):
        places = {"recording": recording, "design": design}
        result = run(
            *(argument.format(**places) for argument in arguments), *(["--out", "new"] * (arguments[0] == "train"))
        )
        assert result.exit_code == 1
        assert result.stderr.startswith("dpfuse: ") and message in result.stderr
        assert result.stdout == "" and "Traceback" not in result.stderr

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("train", "{recording}", "--budget", "1.5"), "adjacency"),
            (("train", "{recording}", "--adjacency", "replace-one"), "budget"),
            (("train", "{recording}", *TRAIN, "--non-private"), "or --non-private alone"),
            (("train", "{recording}", *TRAIN, "--spending", "greedy"), "greedy"),
            (("train", "{recording}", *TRAIN, "--budget", "-1"), "budget must be finite and > 0"),
            (("train", "{recording}", *TRAIN, "--order", "1"), "order must be > 1"),
            (("train", "{recording}", *TRAIN, "--updates", "0"), "updates"),
            (("simulate", "heat-pump"), "heat-pump"),
            (("simulate", "hidden-markov", "--runs", "0", "--out", "new"), "runs"),
            (("simulate", "freeway", "--share", "2", "--minutes", "0.1", "--runs", "1", "--out", "new"), "share"),
            (("train", "{recording}", *TRAIN, "--horizon", "99"), "window must be at most the 6 steps"),
            (("train", "{recording}", *TRAIN, "--stationary"), "a stationary design must have individual accounting"),
            (("evaluate", "{recording}"), "designs"),
            (("evaluate", "{recording}", "{design}", "--split-by", "run", "--draws", "0"), "draws"),
            (("tarin",), "tarin"),
        ],
    )
    def test_a_wrong_argument_is_exit_2(self, run, recording, design, arguments, message):
        places = {"recording": recording, "design": design}
        result = run(*(argument.format(**places) for argument in arguments))
        assert result.exit_code == 2
        assert message in result.error and result.stdout == ""

    def test_demo_refuses_a_folder_with_other_files(self, run, tmp_path):
        (tmp_path / "thesis.tex").touch()
        result = run("demo", "--out", tmp_path)
        assert result.exit_code == 2
        assert "other files" in result.error and result.stdout == ""


class TestHelp:
    @pytest.mark.parametrize("command", COMMANDS)
    def test_the_help_of_every_command_has_an_example(self, command):
        result = CliRunner().invoke(cli.app, [command, "--help"], env={"COLUMNS": "120", "NO_COLOR": "1"})
        assert result.exit_code == 0
        assert f"dpfuse {command}" in result.stdout.split("Usage:", 1)[1].split("\n", 1)[1]

    def test_the_main_help_names_every_command(self):
        result = CliRunner().invoke(cli.app, ["--help"], env={"COLUMNS": "120", "NO_COLOR": "1"})
        assert result.exit_code == 0
        assert all(f" {command} " in result.stdout for command in COMMANDS)


def test_a_warning_is_one_line_without_the_code_that_warns(run, monkeypatch):
    def command():
        print(warnings.formatwarning("try another seed", UserWarning, "train.py", 108), end="")

    usual = warnings.formatwarning
    monkeypatch.setattr(cli, "app", command)
    assert run("train").stdout == "dpfuse: try another seed\n"
    assert warnings.formatwarning is usual


@pytest.mark.slow
def test_demo_writes_report_designs_and_figures(run, tmp_path):
    """With three updates the designs are poor: this tests the files and the budgets."""
    result = run("demo", "--updates", 3, "--out", tmp_path, "--json")
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert report == json.loads((tmp_path / "report.json").read_text())
    assert set(report["designs"]) == {"classical", "adaptive", "individual"}
    assert set(report["paired"]) == {"adaptive", "individual"}
    for design in report["designs"].values():
        assert design["mse"] > 0 and 0 < design["budget_spent_max"] <= 0.5 and design["within_budget"]
    for comparison in report["paired"].values():
        assert comparison["ci95"][0] <= comparison["ratio"] <= comparison["ci95"][1]
    assert report["prior_mse"] > 0 and report["non_private_mse"] > 0 and report["seconds"] > 0
    assert (report["guarantee"]["order"], report["guarantee"]["budget"]) == (2.0, 0.5)
    assert report["guarantee"]["adjacency"] == "remove-one"
    page = (tmp_path / "report.md").read_text()
    for name in ("traffic", "estimates", "budget", "error"):
        assert (tmp_path / f"{name}.png").stat().st_size > 5000
        assert f"({name}.png)" in page
    for name in ("classical", "adaptive", "individual", "non-private"):
        assert dpfuse.load(tmp_path / f"{name}.dpfuse").structure.horizon == 100
    assert "Rényi differential privacy" in page


@pytest.mark.parametrize("given", ["rain", "rain=", "=3", "rain=1 --input rain=2"])
def test_public_inputs_are_given_once_by_name_and_value(run, given):
    result = run("serve", "--design", "d", "--ledger", "l", "--input", *given.split())
    assert result.exit_code == 2 and "--input must" in result.stderr
