"""What is in deploy/: checked by the tools of its own field, and against the commands and metrics that dpfuse has."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import version
from pathlib import Path

import pytest
import typer
import yaml
from typer.testing import CliRunner

from dpfuse.cli import app
from dpfuse.wire.operations import Operations
from dpfuse.wire.operator_port import make_operator_app
from support.parts import needs, needs_package
from support.wire import call, rig

DEPLOY = Path(__file__).parents[2] / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
UNITS = sorted((DEPLOY / "systemd").iterdir())
RULES = yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text())["groups"][0]["rules"]
COMPOSE = yaml.safe_load((DEPLOY / "container/compose.yaml").read_text())


def run(*command, cwd=None):
    return subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True, timeout=60)


def verify_units(folder, text=lambda unit: unit.read_text()):
    for unit in UNITS:
        (folder / unit.name).write_text(text(unit).replace("/opt/dpfuse/bin/dpfuse", sys.executable))
    return run(needs("systemd-analyze"), "verify", "--man=no", *sorted(folder.iterdir()))


class TestUnits:
    def test_systemd_takes_the_units(self, tmp_path):
        done = verify_units(tmp_path)
        ours = [line for line in done.stderr.splitlines() if "dpfuse" in line]
        assert done.returncode == 0 and not ours, done.stderr

    def test_a_wrong_unit_is_seen(self, tmp_path):
        """Negative control."""
        done = verify_units(tmp_path, lambda unit: unit.read_text().replace("Restart=on-failure", "Restart=maybe"))
        assert "maybe" in done.stderr

    def test_systemd_takes_the_credentials_of_the_readers_door_that_the_page_gives(self, tmp_path):
        page = (DEPLOY.parent / "docs/operations.md").read_text()
        (text,) = re.findall(r"```ini\n(.*?)```", page, re.S)
        (unit,) = (unit for unit in UNITS if unit.name == "dpfuse-readers@.service")
        shutil.copy(unit, tmp_path)
        (tmp_path / "dpfuse-readers@.service.d").mkdir()
        for lines, fault in ((text, None), (text.replace(".crt:/", ".crt:"), "is not valid")):
            (tmp_path / "dpfuse-readers@.service.d/tls.conf").write_text(lines)
            done = run(needs("systemd-analyze"), "verify", "--man=no", tmp_path / unit.name)
            assert ("tls.conf" in done.stderr) == (fault is not None), done.stderr
        names = re.findall(r"^LoadCredential=(\S+?):", text, re.M)
        assert names == [
            Path(name).name for name in re.findall(r"/run/credentials/dpfuse-readers@north.service/[\w.]+", page)
        ]

    def test_the_relay_of_a_centre_is_another_user_that_has_only_the_socket(self):
        centre, readers = ((DEPLOY / f"systemd/dpfuse-{name}@.service").read_text() for name in ("centre", "readers"))
        [feed] = re.findall(r" --feed (\S+)", centre)
        assert " --no-relay " in centre and "\nUser=dpfuse\n" in centre and feed.startswith("/run/dpfuse/%i/")
        assert f" --from unix:{feed} " in readers and "\nDynamicUser=true\n" in readers and "\nUser=" not in readers
        of_centre, of_readers = (re.findall(r"EnvironmentFile=(\S+)", text) for text in (centre, readers))
        assert of_centre and of_readers and not {*of_centre} & {*of_readers}  # the first may hold the operator's token


class TestManifests:
    @pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
    def test_manifests_follow_the_published_schemas(self, path):
        needs_package("kubernetes_validate")
        import kubernetes_validate as validate

        for resource in yaml.safe_load_all(path.read_text()):
            validate.validate(resource, "1.32", strict=True)

    def test_a_wrong_manifest_is_seen(self):
        """Negative control."""
        needs_package("kubernetes_validate")
        import kubernetes_validate as validate

        wrong = next(yaml.safe_load_all((DEPLOY / "kubernetes/centre.yaml").read_text()))
        wrong["spec"]["replica"] = wrong["spec"].pop("replicas")
        with pytest.raises(validate.ValidationError):
            validate.validate(wrong, "1.32", strict=True)

    def test_a_centre_has_one_replica_and_no_way_to_make_a_new_ledger(self):
        wanted, *_ = yaml.safe_load_all((DEPLOY / "kubernetes/centre.yaml").read_text())
        assert wanted["kind"] == "StatefulSet" and wanted["spec"]["replicas"] == 1
        assert "--new" not in wanted["spec"]["template"]["spec"]["containers"][0]["args"]
        assert "--new" not in COMPOSE["services"]["centre"]["command"]
        assert not any("--new" in unit.read_text() for unit in UNITS)


def test_a_centre_that_is_made_anew_has_the_host_name_under_which_the_bank_knows_its_ledger():
    first, centre = (COMPOSE["services"][name] for name in ("centre-init", "centre"))
    assert first["hostname"] == centre["hostname"] == "north"
    # And that of the machine: else a clone of the volume on another host would pass for the same ledger.
    assert first["volumes"] == centre["volumes"] and "/etc/machine-id:/etc/machine-id:ro" in centre["volumes"]


def test_images_have_the_version_of_the_package_as_their_tag():
    files = [DEPLOY / "container/compose.yaml", DEPLOY / "container/Containerfile", *MANIFESTS]
    found = [name for path in files for name in re.findall(r"(?:image: |-t )(dpfuse\S*)", path.read_text())]
    assert len(found) >= 6 and set(found) == {f"dpfuse:{version('dpfuse')}"}


def test_the_image_takes_packages_by_their_hashes_and_dpfuse_from_its_wheel():
    """`tools/test_lock.py` looks at the hashes."""
    lines = re.findall(r"pip install (.*)", (DEPLOY / "container/Containerfile").read_text())
    assert lines and all("--require-hashes" in line or "--no-deps --no-index" in line for line in lines)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [(200, ""), (503, "restart dpfuse-centre@north"), (None, "")],
    ids=["alive", "hangs", "starts"],
)
def test_a_centre_that_hangs_is_restarted_by_its_timer(tmp_path, answer, expected):
    (line,) = re.findall(r"ExecStart=(.*)", (DEPLOY / "systemd/dpfuse-liveness@.service").read_text())
    told = tmp_path / "told"
    (tmp_path / "systemctl").write_text(f'#!/bin/sh\n[ "$1" = is-active ] || echo "$@" >> {told}\n')
    (tmp_path / "systemctl").chmod(0o755)

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_error(answer) if answer != 200 else self.send_response(200) or self.end_headers()

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        if answer is None:
            server.server_close()
        else:
            threading.Thread(target=server.handle_request, daemon=True).start()
        words = shlex.split(line.replace("$$", "$").replace("%i", "north"))
        environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "OPERATOR_PORT": str(server.server_port)}
        subprocess.run([needs("curl") and words[0], *words[1:]], env=environment, timeout=60, check=True)
    assert (told.read_text().strip() if told.exists() else "") == expected


class TestPrometheus:
    def test_promtool_takes_configuration_and_rules(self):
        promtool = needs("promtool")
        checked = run(promtool, "check", "config", "--syntax-only", DEPLOY / "prometheus/prometheus.yml")
        assert checked.returncode == 0, checked.stderr
        checked = run(promtool, "check", "rules", DEPLOY / "prometheus/alerts.yml")
        assert checked.returncode == 0, checked.stderr

    def test_faults_raise_their_alerts_and_a_healthy_centre_none(self):
        done = run(needs("promtool"), "test", "rules", "alerts_test.yml", cwd=DEPLOY / "prometheus")
        assert done.returncode == 0, done.stdout + done.stderr

    def test_an_alert_that_never_fires_is_seen(self, tmp_path):
        """Negative control."""
        for name in ("alerts.yml", "alerts_test.yml"):
            text = (DEPLOY / "prometheus" / name).read_text()
            (tmp_path / name).write_text(text.replace("dpfuse_ledger_up == 0", "dpfuse_ledger_up == 2"))
        assert run(needs("promtool"), "test", "rules", "alerts_test.yml", cwd=tmp_path).returncode != 0

    def test_alerts_and_dashboard_use_metrics_that_exist(self, tmp_path):
        from dpfuse.public.parts import CentreParts

        with rig(tmp_path) as live:
            live.tick()
            live.feed._parts = lambda: CentreParts(True, True, True, 1.0, 2.0)
            operations = Operations()
            operations.watch(live.watch, live.feed, live.ledger.path, live.intake.counts.copy)
            headers = {"Authorization": "Bearer a-token"}
            private = call(make_operator_app(operations, "a-token"), "GET", "/metrics", headers=headers).text
            exposed = live.get("/metrics").text + private
        known = set(re.findall(r"^((?:dpfuse|process)_\w+)", exposed, re.M)) | {"dpfuse_tick_seconds_bucket"}
        board = json.loads((DEPLOY / "grafana/dashboard.json").read_text())
        used = [rule["expr"] for rule in RULES]
        used += [target["expr"] for panel in board["panels"] for target in panel["targets"]]
        used += [one["definition"] for one in board["templating"]["list"] if "definition" in one]
        names = {name for text in used for name in re.findall(r"\b(?:dpfuse|process)_\w+", text)}
        assert len(names) > 10 and names - known == set()


def commands():
    """Every command line of dpfuse in deploy/, as a list of words."""
    for unit in UNITS:
        text = unit.read_text().replace("\\\n", " ")
        for line in re.findall(r"/opt/dpfuse/bin/dpfuse ([^;\n']+)", text):
            yield unit.name, shlex.split(line)
    for name, service in COMPOSE["services"].items():
        if str(service.get("image")).startswith("dpfuse:"):
            yield f"compose:{name}", [str(word) for word in service["command"]]
    for path in MANIFESTS:
        for resource in yaml.safe_load_all(path.read_text()):
            pod = resource.get("spec", {}).get("template", {}).get("spec", {})
            for container in [*pod.get("initContainers", ()), *pod.get("containers", ())]:
                yield f"{path.name}:{container['name']}", container["args"]


@pytest.mark.parametrize("words", [pytest.param(words, id=name) for name, words in commands()])
def test_commands_have_options_that_exist(words):
    command = typer.main.get_command(app)
    names = []
    while hasattr(command, "commands"):
        command = command.commands[words[len(names)]]
        names.append(command.name)
    known = {option for parameter in command.params for option in parameter.opts}
    used = {word.partition("=")[0] for word in words if word.startswith("--")}
    assert used <= known
    assert CliRunner().invoke(app, [*names, "--help"]).exit_code == 0
