"""Sphinx: the Markdown pages of the repository, and the reference of C++, C and Python from headers and docstrings.

`make docs` runs it with the repository's root as its source folder, so that links between the pages are those that
a reader of the repository follows.
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUTPUT = ROOT / "build/docs"
sys.path.insert(0, str(ROOT / "torch"))

VERSION = re.search(r"project\(netsum VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")).group(1)
project = "netsum"
author = "the netsum authors"
project_copyright = author
release = VERSION
extensions = ["myst_parser", "breathe", "sphinx.ext.autodoc", "sphinx_copybutton"]

root_doc = "README"
PAGES = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "wire/PROTOCOL.md"]
include_patterns = [*PAGES, "docs/**.md", "docs/site/*.rst"]
myst_heading_anchors = 4
myst_enable_extensions = ["dollarmath"]
# The heading levels of a page that begins with a comment or skips one are those of its author.
# Each header reopens the namespace.
suppress_warnings = ["myst.header", "duplicate_declaration.cpp"]

html_theme = "furo"
html_title = f"netsum {VERSION}"
html_use_index = False
html_copy_source = False
html_show_sourcelink = False

# The reference of C and C++, which Doxygen reads from the public headers.
breathe_projects = {"netsum": str(OUTPUT / "doxygen/xml")}
breathe_default_project = "netsum"
breathe_default_members = ("members",)
breathe_show_include = False
cpp_id_attributes = ["NETSUM_EXPORT"]
c_id_attributes = ["NETSUM_API"]

# The reference of Python, which needs neither PyTorch nor the extension.
autodoc_mock_imports = ["torch", "numpy", "netsum.torch._C", "netsum.torch._built_for", "netsum.torch._check_torch"]
autodoc_member_order = "bysource"
autodoc_typehints = "none"
default_role = "code"
PARAMETER = re.compile(r"^( *)([a-z_]+(?:, [a-z_]+)*): ")

# A member named "local" (docs/site/comments.sed): Doxygen 1.9.4 takes the word for one of another language.
HIDDEN_NAME = "local__"

# What the root page lists beside the text: the site's order of pages.
NAVIGATION = """
```{toctree}
:hidden:
:caption: Use
docs/tutorial
docs/start
docs/pytorch
docs/programs
docs/options
docs/command
```
```{toctree}
:hidden:
:caption: Run
docs/placement
docs/emulation
docs/operations
docs/security
```
```{toctree}
:hidden:
:caption: Understand
docs/numerics
docs/sparse
docs/compression
docs/p4
docs/results
```
```{toctree}
:hidden:
:caption: Reference
docs/site/cpp
docs/site/c
docs/site/python
wire/PROTOCOL
```
```{toctree}
:hidden:
:caption: Change
ARCHITECTURE
CONTRIBUTING
docs/decisions
docs/dependencies
CHANGELOG
```
"""


def add_navigation(_app, page, source):
    if page == root_doc:
        source[0] += NAVIGATION


def as_fields(_app, _what, _name, _object, _options, lines):
    """Docstrings have a line "name: meaning" for each parameter, which is a list of fields for Sphinx."""
    fields = []
    for line in lines:
        line, is_field = PARAMETER.subn(r"\1:\2: ", line.replace('"*.', r'"\*.'))
        if is_field and fields and indent(line) > indent(fields[-1]):
            fields.append("")
        fields.append(line)
    lines[:] = fields


def indent(line):
    return len(line) - len(line.lstrip())


def read_headers(_app):
    OUTPUT.mkdir(parents=True, exist_ok=True)
    subprocess.run(["doxygen", "docs/site/Doxyfile"], cwd=ROOT, check=True, timeout=300)
    for page in (OUTPUT / "doxygen/xml").glob("*.xml"):
        text = page.read_text(encoding="utf-8")
        if HIDDEN_NAME in text:
            page.write_text(text.replace(HIDDEN_NAME, "local"), encoding="utf-8")


def write_index(app, error):
    """A site's first page is index.html; that of the repository is README."""
    if error is None and app.builder.format == "html":
        page = '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url=README.html">'
        pathlib.Path(app.outdir, "index.html").write_text(page + "<title>netsum</title>\n", encoding="utf-8")


def setup(app):
    app.connect("builder-inited", read_headers)
    app.connect("source-read", add_navigation)
    app.connect("autodoc-process-docstring", as_fields)
    app.connect("build-finished", write_index)
