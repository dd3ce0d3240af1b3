"""`python -m probes URL`: what a model server can do, and how that was seen."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import sys
from collections.abc import Sequence

import httpx

from probes.suite import AUTO, SUITES, ProbeResult, probe

TIME_LIMIT_S = 120.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Probe one server and print what was found; 0 when it is up, 1 when not."""
    parser = argparse.ArgumentParser(prog="python -m probes", description=__doc__)
    parser.add_argument("url", type=_base_url, help="base URL of the server, such as http://127.0.0.1:8100")
    parser.add_argument(
        "--kind", choices=[AUTO, *SUITES], default=AUTO, help="what the server is (default: find out)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    result = asyncio.run(probe(options.url, kind=options.kind, headers={}, time_limit_s=TIME_LIMIT_S))
    sys.stdout.write(_as_json(result) if options.json else _as_text(result))
    return 0 if result.up else 1


def _base_url(text: str) -> str:
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if url.scheme not in ("http", "https") or not url.host or url.userinfo:
        expected = "expected http://HOST:PORT or https://HOST, without user or password"
        raise argparse.ArgumentTypeError(expected)
    return text.rstrip("/").removesuffix("/v1")


def _as_json(result: ProbeResult) -> str:
    return json.dumps(dataclasses.asdict(result), indent=2) + "\n"


def _as_text(result: ProbeResult) -> str:
    state = "up" if result.up else f"down: {result.reason}"
    lines = [f"{result.kind} server, {state}"]
    lines += [
        f"{finding.support.value:8}{finding.capability.value:20}{finding.evidence}"
        for finding in result.findings
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
