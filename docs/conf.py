"""How Sphinx makes the site of the documentation; `make site` writes it to build/site.

The source folder is the repository's root, so that links between README.md and docs/ are the same
on the site as in a checkout. Pages stay plain Markdown: the navigation is not written in them, but
is made of the lists of links in docs/index.md, a part of it for each section there.
"""

import re
from importlib.metadata import version as installed_version
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]
PAGE_LINK = re.compile(r"\]\(([^)#\s:]+\.md)\)")

project = "dflash-cache"
release = installed_version(project)
extensions = ["myst_parser"]
root_doc = "docs/index"
include_patterns = ["*.md", "docs/*.md", "docs/*/*.md"]
exclude_patterns = [path.name for path in ROOT.iterdir() if path.is_dir() and path.name != "docs"]
nitpicky = True  # a link that leads nowhere is a warning, and `make site` makes it an error
myst_heading_anchors = 4  # of every heading, by GitHub's rule

html_theme = "furo"
html_title = f"dflash-cache {release}"
html_copy_source = False
html_show_copyright = False
templates_path = ["templates"]
html_additional_pages = {"index": "index.html"}  # leads to docs/index.html


def add_navigation(_app: Sphinx, page: str, content: list[str]) -> None:
    """Append a hidden table of contents for each section of the first page."""
    if page != root_doc:
        return
    for section in content[0].split("\n## ")[1:]:
        caption = section.partition("\n")[0]
        pages = "\n".join(PAGE_LINK.findall(section))
        content[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{pages}\n```\n"


def setup(app: Sphinx) -> None:
    app.connect("source-read", add_navigation)
