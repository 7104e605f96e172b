"""MkDocs hooks: they add the README as home page, the notebook, the examples and the settings to the pages of docs/.

Files link to each other as they lie in the repository; these links are rewritten to lead to the pages of the site.
"""

import base64
import json
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
"""Files outside docs/ that become pages, with their names on the site."""
FOLDERS = {"examples": "examples.md", "results": "results.md"}
"""Folders outside docs/, with the page that stands for each."""
LINK = re.compile(r"""(\]\(|\bsrc=")([^)"\s#:]+)""")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add to the navigation, under More, every page of docs/ that it does not name."""
    assert config.nav is not None
    named = json.dumps(config.nav)
    there = sorted(path.name for path in Path(config.docs_dir).glob("*.md"))
    more = [name for name in there if f'"{name}"' not in named]
    if more:
        config.nav.append({"More": more})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    def add(name: str, content: str | bytes, inclusion: InclusionLevel = InclusionLevel.INCLUDED) -> None:
        files.append(File.generated(config, name, content=content, inclusion=inclusion))

    for source, name in PAGES.items():
        add(name, (ROOT / source).read_text(encoding="utf-8"))
    for path in sorted(Path(config.docs_dir).glob("*.ipynb")):
        text, pictures = page_of(path)
        add(f"{path.stem}.md", text)
        for name, picture in pictures.items():
            add(name, picture)
    add("examples.md", listing("examples", "Whole files to copy; a test runs each of them."))
    add("settings.md", settings())
    for name in sorted({target for page in files.documentation_pages() for target in targets(page)}):
        if (ROOT / name).is_file() and name not in files.src_uris:  # a linked file, such as a figure or the licence
            add(name, (ROOT / name).read_bytes())
        elif name.startswith("files/"):
            add(name, listing(name.removeprefix("files/").removesuffix(".md")), InclusionLevel.NOT_IN_NAV)
    return files


def on_page_markdown(markdown: str, *, page: Page, **more: Any) -> str:
    here = posixpath.dirname(page.file.src_uri) or "."
    return LINK.sub(lambda found: found[1] + posixpath.relpath(target(found[2], page.file), here), markdown)


def targets(page: File) -> set[str]:
    """Return the names of the site's files that a page links to."""
    return {target(link, page) for _, link in LINK.findall(page.content_string)}


def target(link: str, page: File) -> str:
    """Return where a link leads on the site; it is relative to where the page lies in the repository."""
    origin = next((source for source, name in PAGES.items() if name == page.src_uri), f"docs/{page.src_uri}")
    path = posixpath.normpath(posixpath.join(posixpath.dirname(origin), link))
    if path.startswith("docs/"):
        return re.sub(r"\.ipynb$", ".md", path.removeprefix("docs/"))
    folder = path.partition("/")[0]
    if folder in FOLDERS and not (folder == "results" and (ROOT / path).is_file()):
        return FOLDERS[folder]
    return f"files/{path}.md" if (ROOT / path).is_dir() else PAGES.get(path, path)


def page_of(notebook: Path) -> tuple[str, dict[str, bytes]]:
    """Return a notebook's cells and their output as Markdown, and its pictures by name."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                name = f"{notebook.stem}-{len(pictures) + 1}.png"
                pictures[name] = base64.b64decode("".join(data["image/png"]))
                parts.append(f"![curves by round]({name})")
            elif "text/html" in data:
                plain = re.sub(r"<style.*?</style>\s*", "", "".join(data["text/html"]), flags=re.DOTALL)
                parts.append(plain.replace(' border="1" class="dataframe"', ""))  # the site's own style
            else:
                text = "".join(output.get("text") or data["text/plain"])
                parts.append(f"```text\n{text.rstrip()}\n```")
    return "\n\n".join(parts), pictures


def listing(folder: str, about: str = "") -> str:
    """Return a page that shows every file of a folder in full, as Markdown."""
    parts = [f"# {folder.capitalize() if about else folder}", about]
    for path in sorted(path for path in (ROOT / folder).rglob("*") if path.is_file() and path.suffix != ".pyc"):
        kind = path.suffix[1:] if path.suffix in (".py", ".toml") else "text"
        parts += [
            f"## {path.relative_to(ROOT).as_posix()}",
            f"```{kind}\n{path.read_text(encoding='utf-8').rstrip()}\n```",
        ]
    return "\n\n".join(parts)


def settings() -> str:
    """Return a page with a table of every setting, its default and the help text of the command line, as Markdown."""
    from fedaccord.config import table

    where = "Keywords of `federate()`, options of `fedaccord run` (`--batch-size 32`), lines of a TOML file."
    lines = ["# Settings", "", where, "", "| setting | default | what it is |", "|---|---|---|"]
    for name, each in table().items():
        default = "" if each.default is None else f"`{each.default!r}`"
        lines.append(f"| `{name}` | {default} | {each.help} |".replace("\n", " "))
    return "\n".join(lines)
