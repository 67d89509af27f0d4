"""`dpfuse data`: what it prints, plots and writes."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

import dpfuse
from support.command import run_dpfuse
from support.ngsim import ELSEWHERE, SECTION, put, write_broken, write_csv, write_parquet


@pytest.fixture
def run(capsys, monkeypatch):
    """`dpfuse data` with these arguments: exit code, stdout and stderr."""
    return lambda *arguments: run_dpfuse(capsys, monkeypatch, "data", *arguments)


class TestCommand:
    SECTION = ("--section", *SECTION)

    def test_it_prints_what_was_found_and_plots_it(self, run, traffic, folder, tmp_path):
        write_csv(folder / "a.csv", [*traffic, traffic[7] | {"v_Vel": 1.0}, *ELSEWHERE], site="us-101")
        (folder / "notes.txt").write_text("notes\n")
        code, out, err = run("us101", "--data", folder, *self.SECTION, "--out", tmp_path / "out")
        assert code == 0 and "a.csv" in err
        for text in ("60 vehicles from 07:49:40 to 07:50:39", "notes.txt holds no vehicle trajectories", "all"):
            assert text in out
        assert "1 duplicates disagree" in out and "5 rows of other sites or directions were left out" in out
        for name in ("density.png", "space-time.png"):
            assert (tmp_path / "out" / name).read_bytes().startswith(b"\x89PNG")

    def test_it_prints_one_json_object_and_saves_a_recording(
        self, run, traffic, recording, folder, tmp_path, monkeypatch
    ):
        write_parquet(folder / "a.parquet", traffic)
        monkeypatch.setenv("DPFUSE_DATA", str(folder))
        saved = tmp_path / "run.dpfuse-data"
        arguments = (*self.SECTION, "--out", tmp_path, "--save", saved, "--share", 0.5, "--interval", 0.1, "--json")
        code, out, err = run("us101", *arguments)
        assert (code, err) == (0, "")
        answer = json.loads(out)
        assert (answer["vehicles"], answer["sightings"]) == (60, len(traffic))
        written = dpfuse.Trajectories.load(saved)
        whole = recording.trajectories(SECTION, 0.1)
        np.testing.assert_array_equal(written.state, whole.state)
        assert answer["periods"][-1]["density_mean"] == pytest.approx(whole.state.mean(), rel=1e-6)
        assert 0 < written.present.sum() < 0.8 * whole.present.sum()
        again = run("us101", *arguments)
        assert again.exit_code == 2 and "exists; give --force" in again.error
        assert run("us101", *arguments, "--force").exit_code == 0

    def test_an_error_is_one_line(self, run, traffic, folder, tmp_path):
        write_broken(folder / "a.csv", traffic, 5, put("v_Vel", b"x"))
        code, out, err = run("us101", "--data", folder, "--out", tmp_path, "--json")
        assert (code, out) == (1, "") and err.count("\n") == 1 and "a.csv, line 5: v_vel" in err
        code, _, err = run("us101", "--data", folder / "nowhere", "--json")
        assert code == 1 and "no folder or file at" in err


class TestTableCommand:
    OPTIONS = ("--time", "t", "--sensor", "id", "--values", "speed,position", "--state", "density")

    @pytest.fixture
    def rows(self):
        rng = np.random.default_rng(0)
        state = np.cumsum(rng.normal(size=200))
        return [(k, f"car {i}", state[k] + rng.normal(), 2.0, state[k]) for k in range(200) for i in range(4)]

    @staticmethod
    def write(path, rows, delimiter=","):
        header = "t", "id", "speed", "position", "density"
        path.write_text("\n".join(delimiter.join(map(str, row)) for row in [header, *rows]))

    @pytest.mark.slow
    def test_three_commands_lead_from_a_csv_to_a_design_and_figures(self, capsys, monkeypatch, rows, tmp_path):
        self.write(tmp_path / "cars.csv", [*rows, rows[3]])
        data, design = tmp_path / "cars.dpfuse-data", tmp_path / "cars.dpfuse"

        def dpfuse_(*arguments):
            result = run_dpfuse(capsys, monkeypatch, *arguments)
            assert result.exit_code == 0, result.stderr
            return result.stdout

        out = dpfuse_("data", "table", tmp_path / "cars.csv", *self.OPTIONS, "--save", data)
        assert "801 rows of 4 sensors in 1 run: 1 run of 200 steps of 1 s" in out and "1 row repeated" in out
        budget = "--budget", 0.5, "--adjacency", "remove-one", "--horizon", 10, "--updates", 1
        # From the recording or from the table itself, with the meaning of its columns.
        dpfuse_("train", tmp_path / "cars.csv", *self.OPTIONS, *budget, "--recurrent-filter", "gru", "--out", design)
        evaluated = dpfuse_("evaluate", data, design, "--draws", 1, "--figures", tmp_path / "figures")
        assert evaluated == dpfuse_("evaluate", tmp_path / "cars.csv", design, *self.OPTIONS, "--draws", 1)
        assert "| cars |" in evaluated
        assert {"budget.png", "error.png"} <= {path.name for path in (tmp_path / "figures").iterdir()}

    @pytest.mark.slow
    def test_the_three_commands_of_the_page_run_as_they_stand(self, capsys, monkeypatch, tmp_path):
        """From a CSV file to a design that is trained, evaluated, plotted and saved, and its card; with one update."""
        page = (Path(__file__).parents[2] / "docs/own-system.md").read_text().partition("in three commands\n")[2]
        commands = [shlex.split(line) for line in re.search(r"```sh\n(.*?)```", page, re.S)[1].splitlines()]
        assert [command[:2] for command in commands] == [["dpfuse", word] for word in ("train", "evaluate", "card")]
        rng = np.random.default_rng(0)
        rows = [(1.5 * k, f"home {i}", *rng.gamma(2, size=2)) for k in range(1100) for i in range(3)]
        lines = [",".join(map(str, row)) for row in [("when", "home", "power", "voltage"), *rows]]
        (tmp_path / "meters.csv").write_text("\n".join(lines))
        monkeypatch.chdir(tmp_path)
        printed = []
        for command, extra in zip(commands, (["--updates", "1"], ["--draws", "1"], []), strict=True):
            result = run_dpfuse(capsys, monkeypatch, *command[1:], *extra)
            assert result.exit_code == 0, result.stderr
            printed.append(result.stdout)
        assert dpfuse.load("meters.dpfuse").guarantee.budget == 0.5
        assert {"error.png", "budget.png", "estimates.png"} <= {path.name for path in Path("figures").iterdir()}
        error = re.search(r"\| meters \| ([\d.]+) \|", printed[1])[1]
        shown = re.search(r"- mse: ([\d.e+]+)", printed[2])[1]
        assert float(shown) == pytest.approx(float(error), rel=0.01)
        assert "- within budget: True" in printed[2] and "- channels: 2" in printed[2]

    def test_train_and_evaluate_want_the_columns_of_a_table_and_of_nothing_else(
        self, capsys, monkeypatch, rows, tmp_path
    ):
        self.write(tmp_path / "cars.csv", rows)
        for arguments, message in [
            (("train", tmp_path / "cars.csv", "--non-private", *self.OPTIONS[2:-2]), "--time, --state are missing"),
            (("evaluate", tmp_path / "cars.csv", tmp_path / "x.dpfuse"), "is a table, so name its columns"),
            (("train", tmp_path / "x.dpfuse-data", "--non-private", "--steps", 4), "because --steps is for tables"),
        ]:
            result = run_dpfuse(capsys, monkeypatch, *arguments)
            assert result.exit_code == 2 and message in result.error

    def test_every_kind_of_file_gives_the_same_recording(self, run, rows, tmp_path):
        names = "t", "id", "speed", "position", "density"
        table = pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))
        pa.parquet.write_table(table, tmp_path / "a.parquet")
        self.write(tmp_path / "b.csv", rows)
        self.write(tmp_path / "c.tsv", rows, "\t")
        self.write(tmp_path / "d.txt", rows, ";")
        read = []
        for name in ("a.parquet", "b.csv", "c.tsv", "d.txt"):
            saved = tmp_path / f"{name}.dpfuse-data"
            code, out, err = run("table", tmp_path / name, *self.OPTIONS, "--save", saved, "--json")
            assert (code, err) == (0, "")
            assert json.loads(out)["num_rows"] == 800
            read.append(saved.read_bytes())
        assert len(set(read)) == 1

    @pytest.mark.parametrize(
        "ids",
        [
            ("007", "7", "07"),
            ("12345678901234567890", "12345678901234567891", "7"),
            ("1.0", "1.00", "1"),
            (7, 9_007_199_254_740_993, 9_007_199_254_740_992),
            (-1, 0, 1),
        ],
    )
    def test_ids_that_differ_are_different_sensors_and_runs_in_every_kind_of_file(self, run, tmp_path, ids):
        names = "t", "id", "run", "speed", "density"
        rows = [(float(k), one, other, 0.5 * k, 1.0) for other in ids for k in range(4) for one in ids]
        table = pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))
        pa.parquet.write_table(table, tmp_path / "a.parquet")
        (tmp_path / "b.csv").write_text("\n".join(",".join(map(str, row)) for row in [names, *rows]))
        options = "--time", "t", "--sensor", "id", "--run", "run", "--values", "speed", "--state", "density"
        read = []
        for name in ("a.parquet", "b.csv"):
            assert run("table", tmp_path / name, *options, "--save", tmp_path / f"{name}.data").exit_code == 0
            read.append((tmp_path / f"{name}.data").read_bytes())
        frame = table.to_pandas()
        made = dpfuse.Trajectories.from_table(
            frame, time="t", sensor="id", run="run", values="speed", state="density", quiet=True
        )
        made.save(tmp_path / "c.data")
        assert len({*read, (tmp_path / "c.data").read_bytes()}) == 1
        assert made.num_runs == 3 and made.present.all() and made.num_slots == 3

    def test_states_regions_shares_and_resampling_are_options(self, run, rows, tmp_path):
        self.write(tmp_path / "a.csv", rows)
        self.write(tmp_path / "b.csv", [(k, 0, 0, 0, k) for k in range(200)])
        save = "--save", tmp_path / "saved", "--force"
        assert run("table", tmp_path / "a.csv", *self.OPTIONS, "--states", tmp_path / "b.csv", *save).exit_code == 0
        assert dpfuse.Trajectories.load(tmp_path / "saved").state[0, :, 0].tolist() == list(range(200))
        options = (
            *self.OPTIONS[:-1],
            "count:position",
            "--region",
            "position=2:3",
            "--interval",
            2,
            "--resample",
            "last",
        )
        assert run("table", tmp_path / "a.csv", *options, "--share", 0.5, *save).exit_code == 0
        data = dpfuse.Trajectories.load(tmp_path / "saved")
        assert (data.state == 4).all() and data.num_steps == 100 and data.num_slots < 4

    def test_public_inputs_are_an_option(self, run, rows, tmp_path):
        lines = [(*row, 7.5 if row[0] == 100 else "", row[0] / 4) for row in rows]
        header = "t", "id", "speed", "position", "density", "count", "rain"
        (tmp_path / "a.csv").write_text("\n".join(",".join(map(str, row)) for row in [header, *lines]))
        options = *self.OPTIONS, "--public", "count,rain", "--save", tmp_path / "saved"
        assert run("table", tmp_path / "a.csv", *options).exit_code == 0
        data = dpfuse.Trajectories.load(tmp_path / "saved")
        assert data.public.shape == (1, 200, 2) and data.labels.public == ("count", "rain")
        assert np.isnan(data.public[0, :101, 0]).all() and (data.public[0, 101:, 0] == 7.5).all()
        np.testing.assert_array_equal(data.public[0, 1:, 1], np.arange(199) / 4)

    @pytest.mark.parametrize(
        ("change", "code", "message"),
        [
            (lambda rows: [*rows[:7], (*rows[7][:2], "fast", *rows[7][3:])], 2, "'speed' must hold numbers.*row 7"),
            (lambda rows: [*rows[:7], rows[7][:4]], 1, "line 9 must have 5 columns, got 4"),
            (lambda rows: [*rows[:7], (None, *rows[7][1:])], 2, "'t' must hold seconds"),
            (lambda rows: [*rows[:7], ("", *rows[7][1:])], 2, "'t', row 7 .*must have a time"),
        ],
    )
    def test_a_broken_file_is_one_line_with_the_row_and_no_value(self, run, rows, tmp_path, change, code, message):
        rows = [(*row[:2], 4321.25, *row[3:]) for row in rows]
        self.write(tmp_path / "a.csv", change(rows))
        result = run("table", tmp_path / "a.csv", *self.OPTIONS, "--save", tmp_path / "saved")
        assert result.exit_code == code and re.search(message, result.error)
        assert "4321" not in result.stderr and "fast" not in result.stderr and result.stderr.count("\n") == 1

    @pytest.mark.parametrize("secret", [4321.25, -4321.25, ".432125e4", " 4321.25", '"4321.25"'])
    @pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
    def test_the_values_of_a_file_without_a_header_are_not_shown(self, run, tmp_path, name, secret):
        (tmp_path / "a.csv").write_text(f"first,car,{secret},2.0,1.0\nsecond,car,1.0,2.0,1.0\n")
        if name == "a.parquet":
            pa.parquet.write_table(pa.csv.read_csv(tmp_path / "a.csv"), tmp_path / name)
        result = run("table", tmp_path / name, *self.OPTIONS, "--save", tmp_path / "saved")
        assert result.exit_code == 2 and "give it a line with names first" in result.error
        assert "432" not in result.stderr + result.stdout

    def test_a_wrong_file_or_option_is_refused(self, run, rows, tmp_path):
        self.write(tmp_path / "a.csv", rows)
        (tmp_path / "b.parquet").write_text("no")
        (tmp_path / "c.xlsx").write_text("no")
        save = "--save", tmp_path / "saved"
        for name, message in [("d.csv", "no file at"), ("b.parquet", "not a Parquet file"), ("c.xlsx", "must end in")]:
            result = run("table", tmp_path / name, *self.OPTIONS, *save)
            assert result.exit_code == 1 and message in result.error
        result = run("table", tmp_path / "a.csv", *self.OPTIONS, "--region", "position", *save)
        assert result.exit_code == 2 and "region must be COLUMN=LOW:HIGH" in result.error
        result = run("table", tmp_path / "a.csv", *self.OPTIONS[:5], "power", *self.OPTIONS[6:], *save)
        assert "got 'power'; it has t, id, speed, position, density" in result.error
