"""What mkdocs does here besides its own: the CLI reference, links that leave docs/, and lists as GitHub reads them.

Pages link to files of the repository by relative paths, so that links work in an editor and on a code host. The site
has its own copy of each file outside docs/ that a page links to, under the file's path in the repository.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from cli_reference import reference
from markdown import Extension, Markdown
from markdown.preprocessors import Preprocessor
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(?=(?:#[^)\s]*)?\))")
_TEST = re.compile(r"`(?:\w+/)?test_\w+\.py[\w:]*`")
_ITEM = re.compile(r"( *)(?:[-*]|1\.) ")


def on_config(config: Any) -> Any:
    """Read lists as GitHub does, in pages and in docstrings."""
    config.markdown_extensions.append(GitHubLists())
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add every file outside docs/ that the navigation names or a page links to."""
    waiting = [PurePosixPath(name) for name in re.findall(r"[\w./-]+\.md", str(config.nav))]
    for page in files.documentation_pages():
        waiting += _links(page)
    while waiting:
        path = waiting.pop()
        if path.parts[0] == "docs" or files.get_file_from_path(str(path)) or not (ROOT / path).is_file():
            continue
        file = File.generated(config, str(path), abs_src_path=str(ROOT / path))
        files.append(file)
        waiting += _links(file) if file.is_documentation_page() else []
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Fill in the commands, and point links to where files are in the site."""
    if page.file.src_uri == "cli.md":
        markdown = markdown.replace("<!-- commands -->", reference())
    markdown = _TEST.sub(r"\g<0>{ .test }", markdown)  # in small type, see css/extra.css
    return _LINK.sub(lambda link: _in_site(page.file.src_uri, link[0]), markdown)


def _links(page: File) -> list[PurePosixPath]:
    return [_in_repository(page.src_uri, target) for target in _LINK.findall(page.content_string)]


def _in_repository(src_uri: str, target: str) -> PurePosixPath:
    """The path in the repository of what a page links to."""
    is_outside = (ROOT / src_uri).is_file() and not (ROOT / "docs" / src_uri).is_file()
    folder = PurePosixPath("" if is_outside else "docs", src_uri).parent
    return PurePosixPath(os.path.normpath(folder / target))


def _in_site(src_uri: str, target: str) -> str:
    path = _in_repository(src_uri, target)
    own = path.relative_to("docs") if path.parts[0] == "docs" else path
    return os.path.relpath(own, PurePosixPath(src_uri).parent)


class GitHubLists(Extension):
    """A list needs no blank line before it, and may be indented under the line that introduces it."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        # Below fenced code (25), which is stashed by then; above HTML blocks (20).
        md.preprocessors.register(_Lists(md), "github_lists", 22)


class _Lists(Preprocessor):
    def run(self, lines: list[str]) -> list[str]:
        out: list[str] = []
        indent = 0  # of a list that stands under an unindented line
        for line in lines:
            item = _ITEM.match(line)
            before = out[-1] if out else ""
            if indent and line.strip() and not line.startswith(" " * indent):
                indent = 0
            if item and before.strip() and before[0] != " " and not _ITEM.match(before) and not before.startswith("|"):
                if not _is_in_list(out):
                    indent = len(item[1])
                    out.append("")
            out.append(line[indent:] if line.startswith(" " * indent) else line)
        return out


def _is_in_list(lines: list[str]) -> bool:
    """Whether the last paragraph is an item that goes on without indentation."""
    for line in reversed(lines):
        if not line.strip():
            return False
        if _ITEM.match(line):
            return True
    return False
