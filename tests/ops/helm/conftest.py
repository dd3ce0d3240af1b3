"""Helm's library is large, so only `make test-ops` installs it; without it there is nothing to collect."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("helm_python") else ["*.py"]
