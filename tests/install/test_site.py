"""The site of the documents: `make docs` fails for a dead link, a page wider than a screen, or a comment that Sphinx cannot read."""

import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_every_page_and_header_becomes_a_page_of_the_site():
    made = subprocess.run(["make", "-C", ROOT, "docs"], capture_output=True, text=True, timeout=800)
    assert made.returncode == 0, made.stdout + made.stderr
    for name in ("index.html", "README.html", "docs/start.html", "wire/PROTOCOL.html", "docs/site/python.html"):
        assert (ROOT / "build/docs/site" / name).is_file()
    reference = (ROOT / "build/docs/site/docs/site/cpp.html").read_text(encoding="utf-8")
    assert all(
        f"netsum/{header.name}" in reference
        for header in (ROOT / "include/netsum").glob("[!e]*.h")
        if header.name not in ("netsum.h", "version.h")
    )
