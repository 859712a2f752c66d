"""Sphinx configuration: `make docs` builds the site into build/docs, without network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stratalog.version import __version__

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "Stratalog"
author = "the Stratalog authors"
copyright = "the Stratalog authors, Apache-2.0"
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
root_doc = "docs/index"
include_patterns = ["docs/*.md", "bench/*.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"]
exclude_patterns = [".*", "build", "dist", "examples", "requirements", "src", "tests", "data"]

# Markdown: the pages are also read on GitHub, so they use plain Markdown and links between files.
myst_heading_anchors = 4
myst_links_external_new_tab = False
highlight_language = "none"
copybutton_exclude = ".linenos, .gp, .go"

# The API reference. A docstring's `name` is code.
default_role = "code"
add_module_names = False
autodoc_default_options = {"member-order": "bysource"}
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"Stratalog {__version__}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_extra_path = ["_root"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0f6b63", "color-brand-content": "#0f6b63"},
    "dark_css_variables": {"color-brand-primary": "#5fd3c4", "color-brand-content": "#5fd3c4"},
    "sidebar_hide_name": False,
}


def keep_blocks(app: Sphinx, what: str, name: str, thing: object, options: Any, lines: list[str]) -> None:
    """Show an indented block of a docstring as it is: a drawing, a table or code."""
    for number in range(len(lines) - 1, 0, -1):
        before = next((line for line in reversed(lines[:number]) if line.strip()), "")
        starts = lines[number].startswith("    ") and not lines[number - 1].strip()
        if starts and not before.startswith("    ") and not before.endswith("::"):
            lines[number:number] = ["::", ""]


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", keep_blocks)
