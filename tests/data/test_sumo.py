"""SUMO's floating-car data: what SUMO itself wrote, and XML from strangers."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import numpy as np
import pytest

import dpfuse
from dpfuse import data
from support.recordings import SECTION, make_road, write_sumo_csv, write_sumo_xml

# Written by SUMO 1.28.0 from the network and routes beside it; README.md there says how.
WRITTEN = Path(__file__).parent / "sumo"
KINDS = ("fcd.xml.gz", "fcd.csv", "fcd.parquet")
HEAD = '<fcd-export>\n<timestep time="0.00">\n'
VEHICLE = '<vehicle id="a" x="70.0" speed="3.0" lane="e_0" pos="70.0"/>\n'


def from_text(folder, text):
    (folder / "a.xml").write_text(text)
    return data.sumo(folder / "a.xml", section=SECTION)


class TestWhatSumoWrites:
    @pytest.mark.parametrize("options", [{"section": (100, 500)}, {"section": (50, 350), "edge": "out"}])
    @pytest.mark.parametrize("interval_s", [None, 1.0, 1.3])
    def test_every_kind_of_file_gives_the_same_recording(self, options, interval_s):
        first, *others = (data.sumo(WRITTEN / kind, interval_s=interval_s, **options) for kind in KINDS)
        made = first.trajectories
        assert made.interval_s == (interval_s or 0.5) and 2 < made.state.mean() < 50
        for other in others:
            np.testing.assert_array_equal(made.state, other.trajectories.state)
            # XML and CSV have two decimals, Parquet has all.
            np.testing.assert_allclose(made.measurements, other.trajectories.measurements, atol=0.0051)
            assert made.labels.sensor_names[0] == other.trajectories.labels.sensor_names[0] == "f.0"

    def test_instants_without_a_vehicle_are_an_empty_road(self):
        """The first vehicle departs at 2 s."""
        for kind in KINDS:
            made = data.sumo(WRITTEN / kind, section=(0, 900)).trajectories
            assert made.num_runs == 1 and (made.state[0, :4] == 0).all() and made.state[0, 4] > 0

    def test_each_file_of_a_folder_is_a_run(self):
        made = data.sumo(WRITTEN, section=(100, 500), edge=None).trajectories
        assert made.num_runs == 3 and made.labels.run_names == tuple(sorted(KINDS))

    def test_an_edge_counts_its_own_vehicles(self):
        text = (WRITTEN / "fcd.csv").read_text().splitlines()
        rows = [line.split(";") for line in text[1:]]
        expected = {}
        for row in rows:
            expected.setdefault(float(row[0]), 0)
            expected[float(row[0])] += row[8].startswith("out_") and 50 <= float(row[7]) < 350
        made = data.sumo(WRITTEN / "fcd.xml.gz", section=(50, 350), edge="out").trajectories
        np.testing.assert_allclose(made.state[0, :, 0], np.array(list(expected.values())) / 0.3, rtol=1e-6)


class TestXmlFromStrangers:
    def test_entities_are_refused_before_they_are_declared(self, folder):
        """A billion laughs: each entity is ten of the one before."""
        laughs = "".join(f'<!ENTITY l{i} "{f"&l{i - 1};" * 10 if i else "ha"}">' for i in range(10))
        text = f'<?xml version="1.0"?>\n<!DOCTYPE x [{laughs}]>\n{HEAD}<vehicle id="&l9;" x="70" speed="1"/>'
        with pytest.raises(dpfuse.FileRefused, match="a.xml, line 2: the file must have no document type declaration"):
            from_text(folder, text)

    def test_files_of_other_systems_are_never_opened(self, folder):
        text = f'<!DOCTYPE x SYSTEM "file:///etc/passwd">{HEAD}'
        with pytest.raises(dpfuse.FileRefused, match="no document type declaration"):
            from_text(folder, text)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("<net/>", "line 1: the first element must be fcd-export"),
            ("no xml", "line 1: the XML is broken or cut short"),
            (HEAD + VEHICLE, "line 4: the XML is broken or cut short"),
            (HEAD + VEHICLE.replace("3.0", "-4321.25"), "line 3: speed must be a speed in m/s from 0 to 1000$"),
            (HEAD + VEHICLE.replace("70.0", "nan"), "line 3: x must be a coordinate in m$"),
            (HEAD + VEHICLE.replace(' x="70.0"', ""), "line 3: x must be a coordinate in m$"),
            (HEAD + VEHICLE.replace('id="a"', ""), "line 3: vehicle must have an id"),
            ("<fcd-export><timestep/>", "line 1: time must be a time in s of 0 or more"),
            (HEAD.replace("0.00", "5") + '</timestep>\n<timestep time="4"/>', "line 4: time must not go back"),
            ("<fcd-export>" + "<a>" * 20, "line 1: elements must be nested at most 16 deep"),
            (HEAD + f'<vehicle id="{"a" * (5 << 20)}"', "an element must be shorter than 4194304 bytes"),
            ("<fcd-export/>", "a.xml has no rows"),
        ],
    )
    def test_broken_files_are_refused_with_their_line_and_no_value(self, folder, text, message):
        with pytest.raises(dpfuse.FileRefused, match=message) as caught:
            from_text(folder, text)
        assert "4321" not in str(caught.value) and "aaa" not in str(caught.value)

    def test_other_elements_and_vehicles_elsewhere_are_passed_over(self, folder):
        other = '<person id="p" x="70" speed="1"/><vehicle id="b" x="500" speed="1"/>'
        end = '</timestep>\n<timestep time="1.00"/>\n</fcd-export>'
        read = from_text(folder, HEAD + other + VEHICLE + end)
        assert read.trajectories.state[0, :, 0].tolist() == [10.0, 0.0] and read.files[0].num_kept == 1

    def test_a_section_without_vehicles_is_refused(self, folder):
        write_sumo_xml(folder, make_road())
        with pytest.raises(dpfuse.DatasetMissing, match="no vehicle between 5000 and 6000 m"):
            data.sumo(folder, section=(5000, 6000))
        with pytest.raises(ValueError, match="section must have a start before its end"):
            data.sumo(folder, section=(100, 100))


class TestTables:
    @pytest.mark.parametrize("kind", ["xml", "csv"])
    @pytest.mark.parametrize("damage", ["cut", "changed", "no gzip"])
    def test_a_damaged_compressed_file_is_refused(self, folder, kind, damage):
        path = (write_sumo_xml if kind == "xml" else write_sumo_csv)(folder, make_road())
        content = bytearray(gzip.compress(path.read_bytes()))
        if damage == "cut":
            content = content[: len(content) // 2]
        elif damage == "changed":
            content[2000:2100] = bytes(100)
        else:
            content = content[5:]
        (folder / "a.gz").write_bytes(content)
        (folder / "a.gz").rename(packed := folder / f"fcd.{kind}.gz")
        with pytest.raises(dpfuse.FileRefused, match=f"fcd.{kind}.gz"):
            data.sumo(packed, section=SECTION)

    def test_time_that_goes_back_is_named(self, folder):
        path = write_sumo_csv(folder, make_road())
        lines = path.read_text().split("\n")
        lines[50:150], lines[150:250] = lines[150:250], lines[50:150]
        path.write_text("\n".join(lines))
        with pytest.raises(dpfuse.FileRefused, match="fcd.csv, line 151: timestep_time must not go back"):
            data.sumo(path, section=SECTION)

    def test_missing_columns_are_named(self, folder):
        path = write_sumo_csv(folder, make_road())
        text = path.read_text()
        path.write_text(text.replace("vehicle_speed", "speed", 1))
        with pytest.raises(dpfuse.FileRefused, match="line 1: the columns vehicle_speed are missing"):
            data.sumo(path, section=SECTION)
        path.write_text(text.replace("timestep_time", "t", 1))
        with pytest.raises(dpfuse.FileRefused, match="line 1: the column timestep_time is missing"):
            data.sumo(path, section=SECTION)

    def test_a_row_twice_counts_once(self, folder):
        rows = make_road()
        path = write_sumo_csv(folder, rows)
        once = data.sumo(path, section=SECTION)
        twice = data.sumo(write_sumo_csv(folder, [row for row in rows for _ in range(2)]), section=SECTION)
        np.testing.assert_array_equal(once.trajectories.state, twice.trajectories.state)
        assert re.search("rows repeated a sensor and time", twice.summary.to_text())
