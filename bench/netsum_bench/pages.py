"""HTML pages from templates in this package, and figures in them."""

import io
import pathlib

import jinja2

ENVIRONMENT = jinja2.Environment(
    loader=jinja2.FileSystemLoader(pathlib.Path(__file__).parent),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def render(template, **values):
    return ENVIRONMENT.get_template(template).render(**values)


def svg_of(figure, title):
    """The SVG element of a matplotlib figure, for a page."""
    file = io.StringIO()
    about = {"Title": title, "Date": None, "Creator": None, "Format": None, "Type": None}
    figure.savefig(file, format="svg", transparent=True, metadata=about)
    return f'<svg role="img" {file.getvalue().partition("<svg ")[2]}'
