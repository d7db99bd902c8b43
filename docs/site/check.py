#!/usr/bin/env python3
"""Checks the built site: no dead link, and no page wider than a screen of 1280 or 390 pixels, in headless Chromium.

    docs/site/check.py build/docs/site

Prints one line per offence and exits with 1 if there is any.
"""

import html
import html.parser
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import urllib.parse

WIDTHS = (1280, 390)
# Loads each page in a frame of each width, and notes those whose content is wider, after all of them are there.
FRAMES = """<!doctype html><body><script>
const pages = %s, widths = %s, wide = [];
async function look() {
  for (const page of pages) for (const width of widths) {
    const frame = document.createElement("iframe");
    frame.style.cssText = `width:${width}px;height:800px;border:0`;
    const loaded = new Promise(done => frame.onload = done);
    frame.src = page;
    document.body.append(frame);
    await loaded;
    const root = frame.contentDocument.documentElement;
    if (root.scrollWidth > root.clientWidth)
      wide.push(`${page}: ${root.scrollWidth} pixels wide on a screen of ${width}`);
    frame.remove();
  }
  document.body.innerHTML = "<pre></pre>";
  document.querySelector("pre").textContent = JSON.stringify({looked: pages.length, wide});
}
look();
</script>"""


def too_wide(pages):
    """Lines about pages whose content is wider than the screen."""
    with tempfile.TemporaryDirectory() as folder:
        frames = pathlib.Path(folder, "frames.html")
        frames.write_text(FRAMES % (json.dumps([page.as_uri() for page in pages]), json.dumps(WIDTHS)))
        command = ["chromium", "--headless=new", "--disable-gpu", "--allow-file-access-from-files", "--dump-dom"]
        command += [f"--user-data-dir={folder}/profile", "--virtual-time-budget=600000", frames.as_uri()]
        if os.geteuid() == 0:
            command.insert(1, "--no-sandbox")
        shown = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout
    result = re.search(r"<pre>(.*)</pre>", shown)
    if not result:
        return ["chromium has not shown all pages"]
    result = json.loads(html.unescape(result.group(1)))
    return result["wide"] if result["looked"] == len(pages) else ["chromium has not shown all pages"]


class Names(html.parser.HTMLParser):
    """The anchors of a page, and where its links lead."""

    def __init__(self, page):
        super().__init__()
        self.anchors, self.links = {""}, set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, _tag, attributes):
        self.anchors |= {value for name, value in attributes if name == "id"}
        self.links |= {value for name, value in attributes if name in ("href", "src")}


def dead_links(pages):
    """Lines about links and anchors within the site that lead nowhere. Those to other sites are not followed."""
    names = {page: Names(page) for page in pages}
    for page in pages:
        for link in sorted(names[page].links):
            url = urllib.parse.urlsplit(link)
            target = (page.parent / urllib.parse.unquote(url.path)).resolve() if url.path else page
            if url.scheme or link.startswith("//"):
                continue
            if not target.is_file():
                yield f"{page.as_uri()}: there is no {link}"
            elif target in names and url.fragment not in names[target].anchors:
                yield f"{page.as_uri()}: {target.name} has no #{url.fragment}"


def main():
    site = pathlib.Path(sys.argv[1]).resolve()
    pages = sorted(site.rglob("*.html"))
    offences = [*too_wide(pages), *dead_links(pages)]
    print(*offences or [f"{len(pages)} pages: in order"], sep="\n")
    return bool(offences)


if __name__ == "__main__":
    sys.exit(main())
