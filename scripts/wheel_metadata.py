"""The version and the dependencies of the Python package, for scikit-build-core (pyproject.toml): those of a wheel for one minor
version of PyTorch, the one that the extension is compiled against, because c10d's C++ classes change between them."""

import importlib.metadata
import pathlib
import re

VERSION_HEADER = pathlib.Path(__file__).resolve().parents[1] / "include/netsum/version.h"


def torch_minor():
    """Of the PyTorch of this Python: "2.13"."""
    return ".".join(importlib.metadata.version("torch").split(".")[:2])


def dynamic_metadata(field, _settings=None, _project=None):
    if field == "dependencies":
        return [f"torch=={torch_minor()}.*"]
    header = VERSION_HEADER.read_text(encoding="utf-8")
    return re.search('#define NETSUM_VERSION_STRING "([^"]+)"', header).group(1) + f"+torch{torch_minor()}"
