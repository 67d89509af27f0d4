"""README and docs are true: examples run, transcripts show what commands print, and links, tests and papers exist."""

from __future__ import annotations

import ast
import re
import sys
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import dpfuse
from support.designs import busy_data, make_design
from tools import transcripts

ROOT = Path(__file__).parents[2]
README, OWN_SYSTEM = ROOT / "README.md", ROOT / "docs/own-system.md"
ENVIRONMENT = ROOT / "docs/environment.md"
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")
# Another machine rounds in another order, and training follows another path to about the same place.
ABOUT = 0.25
# Pages whose Python takes more than a few seconds.
LONG = {"environment.md", "extend.md", "optimal.md", "periods.md", "sweeps.md"}

pages = pytest.mark.parametrize("page", transcripts.PAGES, ids=lambda page: page.name)
TEXTS = [*transcripts.PAGES, ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("experiments/*/README.md"))]
TEXTS += sorted(ROOT.glob("docs/notebooks/*.md"))
texts = pytest.mark.parametrize("page", TEXTS, ids=lambda page: str(page.relative_to(ROOT)))


def agree(shown: list[str], printed: list[str], tolerance: float | None) -> bool:
    """Whether words are equal, and numbers up to a relative tolerance (None: whatever they are)."""
    wanted = list(takewhile(lambda line: line != "...", shown))
    got = printed[: len(wanted)] if len(wanted) < len(shown) else printed
    one, other = "\n".join(wanted), "\n".join(got)
    if NUMBER.sub("#", one) != NUMBER.sub("#", other):
        return False
    pairs = zip(map(float, NUMBER.findall(one)), map(float, NUMBER.findall(other)), strict=True)
    return tolerance is None or all(abs(a - b) <= tolerance * max(a, b) for a, b in pairs)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.slow if page.name in LONG else (), id=page.name)
        for page in transcripts.PAGES
        if page.name != "README.md"
    ],
)
def test_python_examples_run_and_print_the_words_that_are_shown(page, tmp_path):
    """README's runs in full below."""
    text = re.sub(r"num_updates=\d+", "num_updates=1", page.read_text())
    if program := transcripts.program_in(text):
        printed = transcripts.run_python("-c", program, folder=tmp_path, is_brief=True)
        assert agree(transcripts.output_in(text), printed, tolerance=None)


class Tensor(np.ndarray):
    """An array with what the page asks of a tensor of PyTorch."""

    def detach(self):
        return self


def layer(*shape):
    weight = np.random.default_rng(0).normal(size=shape, scale=0.1).astype(np.float32)
    return SimpleNamespace(weight=weight.view(Tensor), bias=weight[:, 0].view(Tensor))


class Agent:
    """Stands for PPO of Stable-Baselines3 2: the same names, two layers of 64 with tanh, and no training."""

    def __init__(self, policy, env):
        assert policy == "MlpPolicy"
        (inputs,), self.env = env.observation_space.shape, env
        self.policy = SimpleNamespace(
            mlp_extractor=SimpleNamespace(policy_net=(layer(64, inputs), "tanh", layer(64, 64), "tanh")),
            action_net=layer(*env.action_space.shape, 64),
        )

    def learn(self, steps):
        assert steps == 20_000
        observed, _ = self.env.reset(seed=0)
        assert self.env.observation_space.contains(observed)
        self.env.step(self.env.action_space.sample())
        return self


@pytest.mark.slow
def test_the_example_with_stable_baselines3_runs_with_an_agent_of_its_form(tmp_path, monkeypatch):
    """The library itself is not in the environment of the tests: it brings PyTorch."""
    program = re.search(r"```py\n(import gymnasium\nfrom stable_baselines3.*?)```", ENVIRONMENT.read_text(), re.S)[1]
    monkeypatch.setitem(sys.modules, "stable_baselines3", SimpleNamespace(PPO=Agent))
    monkeypatch.chdir(tmp_path)
    given = {"design": make_design(spread=0.5), "training": busy_data(num_runs=20), "test": busy_data(num_runs=20)}
    exec(program, given)
    assert dpfuse.load("learned.dpfuse").structure.spending == "agent"
    assert given["report"].within_budget


@pages
def test_account_prints_exactly_what_is_shown(page, tmp_path):
    for command in transcripts.commands_in(page.read_text()):
        if command.line.startswith("dpfuse account"):
            assert agree(command.shown, transcripts.run_command(command.line, tmp_path), tolerance=0.0)


@pytest.mark.slow
def test_the_example_of_readme_prints_about_the_numbers_that_are_shown(tmp_path):
    text = README.read_text()
    printed = transcripts.run_python("-c", transcripts.program_in(text), folder=tmp_path)
    assert agree(transcripts.output_in(text), printed, ABOUT)


@pytest.mark.slow
@pytest.mark.parametrize("page", [README, OWN_SYSTEM], ids=lambda page: page.name)
def test_commands_print_about_the_numbers_that_are_shown(page, tmp_path):
    for command in transcripts.commands_in(page.read_text()):
        if command.shown:
            assert agree(command.shown, transcripts.run_command(command.line, tmp_path), ABOUT)


@texts
def test_every_link_leads_to_a_file_and_a_heading(page):
    targets = [t.split("#") for t in re.findall(r"\]\(([^)]+)\)", page.read_text()) if "://" not in t]
    files = [(page.parent / file if file else page, *part) for file, *part in targets]
    assert [file for file, *part in files if not file.exists() or not set(part) <= headings(file)] == []


def headings(page: Path) -> set[str]:
    """What a link may have after its `#`."""
    lines = re.findall(r"^#+ (.*)$", page.read_text(), re.M) if page.suffix == ".md" else []
    return {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in lines}


@texts
def test_every_test_that_is_named_exists(page):
    named = re.findall(r"`(?:tests/)?((?:\w+/)?test_\w+\.py)(?:::([\w:]+))?`", page.read_text())
    assert [(file, name) for file, name in named if not is_test(ROOT / "tests" / file, name.split("::"))] == []


def is_test(file: Path, names: list[str]) -> bool:
    """Whether the file has the function, or the class with the method; a file named alone must be there."""
    if not file.is_file():
        return False
    body: list[ast.stmt] = ast.parse(file.read_text()).body
    for name in filter(None, names):
        found = [node for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name]
        if not found:
            return False
        body = found[0].body
    return True


def test_every_cited_paper_is_in_the_bibliography():
    known = set(re.findall(r"^@\w+\{(\w+),", (ROOT / "docs/refs.bib").read_text(), re.M))
    cited = {key for page in TEXTS for key in re.findall(r"`([a-z]+\d{4}[a-z]+)`", page.read_text())}
    assert cited and cited <= known


def test_make_help_lists_every_target():
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.search(r"^\.PHONY: (.*)$", makefile, re.M)[1].split())
    assert targets - {"help"} == set(re.findall(r'@echo "make ([\w-]+) ', makefile))


@pages
def test_renewing_a_page_whose_outputs_are_as_shown_leaves_it_alone(page, monkeypatch, tmp_path):
    text = page.read_text()
    shown = {command.line: command.shown for command in transcripts.commands_in(text)}
    monkeypatch.setattr(transcripts, "run_command", lambda line, folder: shown[line])
    blocks = iter(re.findall(r"^```text\n(.*?)^```$", text, re.S | re.M))

    def run_python(flag, program, *, folder):
        return "".join(f"{next(blocks)}{transcripts._HERE}\n" for _ in re.findall("shown here", program)).splitlines()

    monkeypatch.setattr(transcripts, "run_python", run_python)
    assert transcripts.renew(text, tmp_path) == text


def test_renewing_writes_each_output_below_the_python_that_prints_it(tmp_path):
    page = "```python\nprint(1)\n```\n```text\n0\n```\n```python\nprint(2)\nprint(3)\n```\n```text\n0\n```\n"
    wanted = page.replace("text\n0", "text\n1", 1).replace("text\n0", "text\n2\n3")
    assert transcripts.renew(page, tmp_path) == wanted


def test_these_checks_find_planted_mistakes():
    assert agree(["error 10", "..."], ["error 11", "more"], tolerance=0.1)
    assert not agree(["error 10", "..."], ["error 12", "more"], tolerance=0.1)
    assert not agree(["error 10"], ["errors 10"], tolerance=None)
    assert not agree(["error 10"], ["error 10", "more"], tolerance=None)
    assert is_test(Path(__file__), ["test_these_checks_find_planted_mistakes"])
    assert not is_test(Path(__file__), ["test_that_is_not_there"])
    assert transcripts.is_quoted("carry = step.init()\n")
    assert not transcripts.is_quoted("import nothing\n")
