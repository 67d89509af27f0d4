"""The commands of docs/recordings.md, run on small files in each layout."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import dpfuse
from support import recordings
from support.command import run_dpfuse
from support.recordings import LAYOUTS, make_road

PAGE = Path(__file__).parents[2] / "docs/recordings.md"
COMMANDS = re.findall(r"^\$ dpfuse (data .*)$", PAGE.read_text(), re.M)
# The roads of the other tests are shorter than the sections of the page.
WRITERS = {
    "us101": recordings.write_us101,
    "i80": recordings.write_i80,
    "lankershim": recordings.write_lankershim,
    "peachtree": recordings.write_peachtree,
    "sumo": recordings.write_sumo_xml,
    "highd": recordings.write_highd,
}


def test_every_command_has_an_example():
    assert {line.split()[1] for line in COMMANDS} == {layout.command for layout in LAYOUTS}


@pytest.mark.parametrize("line", COMMANDS, ids=lambda line: line.split()[1])
def test_a_command_of_the_page_works(line, folder, tmp_path, capsys, monkeypatch):
    name = line.split()[1]
    if name in WRITERS:
        stretched = [(k, vehicle, 2.5 * x, 2.5 * speed) for k, vehicle, x, speed in make_road()]
        WRITERS[name](folder, stretched)
    else:
        next(layout for layout in LAYOUTS if layout.command == name).write(folder)
    monkeypatch.chdir(tmp_path)
    code, out, err = run_dpfuse(capsys, monkeypatch, *shlex.split(line.replace("DIR", str(folder))))
    assert code == 0, err
    saved = dpfuse.Trajectories.load(next(tmp_path.glob("*.dpfuse-data")))
    assert saved.num_steps > 20 and len(list((tmp_path / "out" / name).iterdir())) == 2
