"""The command line reference in Markdown, made from the commands themselves when the site is built."""

from __future__ import annotations

import inspect
import typing
from typing import Any, Literal

import typer
from typer.main import get_command

from dpfuse.cli import app


def reference() -> str:
    """A section for each command: its help, arguments, options and examples."""
    return "\n\n".join(_sections(app, get_command(app), "dpfuse"))


def commands() -> dict[str, set[str]]:
    """The options of each command, by its name: `{"ledger verify": {"--json"}, ...}`."""
    found: dict[str, set[str]] = {}

    def collect(group: Any, prefix: str) -> None:
        for name, command in group.commands.items():
            found[f"{prefix}{name}"] = {opt for param in command.params for opt in (*param.opts, *param.secondary_opts)}
            if hasattr(command, "commands"):
                collect(command, f"{prefix}{name} ")

    collect(get_command(app), "")
    return found


def _sections(source: typer.Typer, group: Any, prefix: str) -> list[str]:
    sections = []
    callbacks = {info.name or info.callback.__name__: info.callback for info in source.registered_commands}  # type: ignore[union-attr]
    groups = {info.name: info.typer_instance for info in source.registered_groups}
    for name, command in group.commands.items():
        title = f"{prefix} {name}"
        sections.append(f"## `{title}`\n\n{_text(command.help)}")
        if name in groups:
            sections += _sections(groups[name], command, title)  # type: ignore[arg-type]
        else:
            sections.append(_table(command.params, typing.get_type_hints(callbacks[name])))
    return sections


def _text(text: str) -> str:
    """The help of a command; its lines `Example: ...` become code."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    examples = [part.removeprefix("Example: ") for part in paragraphs if part.startswith("Example: ")]
    prose = [part for part in paragraphs if not part.startswith("Example: ")]
    if examples:
        prose.append("```sh\n" + "\n".join(examples) + "\n```")
    return "\n\n".join(prose)


def _table(params: list[Any], hints: dict[str, Any]) -> str:
    rows = [f"| {_name(param)} | {_meaning(param, hints.get(param.name))} | {_default(param)} |" for param in params]
    return "\n".join(["| argument or option | what it is | default |", "|---|---|---|", *rows])


def _name(param: Any) -> str:
    if param.opts[0].startswith("-"):
        return " ".join(f"`{opt}`" for opt in param.opts)
    many = "..." if param.nargs == -1 or param.multiple else ""
    return f"`{param.name.upper()}`{many}"


def _meaning(param: Any, hint: Any) -> str:
    """The help of a parameter with its choices and its environment variable."""
    kinds = [hint, *typing.get_args(hint)]
    choices = [choice for kind in kinds if typing.get_origin(kind) is Literal for choice in typing.get_args(kind)]
    text = (param.help or "").replace("|", "\\|")
    if choices:
        text += " One of " + ", ".join(f"`{choice}`" for choice in choices) + "."
    if param.envvar:
        text += f" Read from the environment variable `{param.envvar}` where it is not given."
    return text


def _default(param: Any) -> str:
    if param.required:
        return "required"
    if isinstance(getattr(param, "show_default", None), str):
        return str(param.show_default)
    value = param.default
    if value is None or value is False or value == ():
        return ""
    if isinstance(value, tuple | list):
        return " ".join(f"`{one}`" for one in value)
    return f"`{value}`"
