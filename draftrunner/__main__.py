"""Command line of the draft side. The `ace` command hands `draft-runner` and `embedded-backend` on to it."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from draftrunner.errors import StartError

if TYPE_CHECKING:
    from draftrunner.drafters.loading import DraftModel

TOKEN_VARIABLE = "ACE_RUNNER_TOKEN"
STOPPED_BY_CTRL_C = 130
DRAFT_EXTRA = frozenset({"accelerate", "gguf", "torch", "transformers"})
"""What the distribution's extra `draft` installs, as modules."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command that `arguments` (default: the process's own) name, until it is stopped."""
    asked = _parser().parse_args(arguments)
    try:
        asked.run(asked)
    except StartError as error:
        sys.exit(f"ace {asked.command}: {error}")
    except KeyboardInterrupt:
        sys.exit(STOPPED_BY_CTRL_C)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ace", description="The services that draft and verify tokens.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    runner = commands.add_parser("draft-runner", help="replay finished answers for a gateway; needs no torch")
    runner.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    runner.add_argument("--port", type=_port, default=8090, help="0 takes a free one (default: %(default)s)")
    runner.add_argument("--gateway", type=_base_url, metavar="URL", help="gateway to join and stay joined to")
    runner.add_argument(
        "--token-file",
        type=Path,
        metavar="PATH",
        help=f"file with the runner token (default: ${TOKEN_VARIABLE})",
    )
    _add_draft_model(runner)
    runner.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="where the draft model computes (auto: CUDA where there is one)",
    )
    runner.set_defaults(run=_draft_runner)

    backend = commands.add_parser("embedded-backend", help="serve a small model, with speculation inside")
    backend.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    backend.add_argument("--port", type=_port, default=8100, help="0 takes a free one (default: %(default)s)")
    backend.add_argument(
        "--model",
        default="demo",
        metavar="PATH|demo",
        help="folder of a causal LM, or the demo model (default)",
    )
    backend.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    backend.add_argument(
        "--served-model-name", metavar="NAME", help="model id to serve (default: the folder's name)"
    )
    _add_draft_model(backend)
    backend.set_defaults(run=_embedded_backend, device="cpu")
    return parser


def _add_draft_model(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--draft-model",
        metavar="PATH|demo",
        help="folder of a model to draft with, of the target's tokenizer; or the demo's (needs torch)",
    )
    command.add_argument(
        "--draft-memory",
        type=_gibibytes,
        default=4.0,
        metavar="GIB",
        help="most memory that the draft model may take (default: %(default)g)",
    )


def _port(text: str) -> int:
    if text.isascii() and text.isdigit() and int(text) <= 65535:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a port. Allowed: 0 to 65535")


def _gibibytes(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < (size := float(text)) < float("inf"):
            return size
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of gibibytes above 0")


def _base_url(text: str) -> str:
    with contextlib.suppress(ValueError):
        parts = urlsplit(text)
        if parts.scheme in {"http", "https"} and parts.hostname:
            return text
    raise argparse.ArgumentTypeError(f"{text!r} is not a URL like http://127.0.0.1:8080")


def _draft_runner(asked: argparse.Namespace) -> None:
    from draftrunner import service

    token = _runner_token(asked.token_file)
    service.run(
        host=asked.host, port=asked.port, gateway=asked.gateway, token=token, draft_model=_draft_model(asked)
    )


def _runner_token(path: Path | None) -> str:
    if path is None:
        token, source = os.environ.get(TOKEN_VARIABLE, "").strip(), TOKEN_VARIABLE
    else:
        token, source = _first_line(path), str(path)
    if not token:
        raise StartError(
            f"no runner token in {source}. Set {TOKEN_VARIABLE}, or name the file that holds it with "
            "--token-file (the gateway writes runner.token into its data directory)."
        )
    if not re.fullmatch("[!-~]+", token):
        raise StartError(f"the runner token in {source} holds characters other than visible ASCII.")
    return token


def _first_line(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            return lines.readline().strip()
    except OSError as error:
        raise StartError(
            f"cannot read the runner token from {path}: {error.strerror}. "
            "The gateway writes runner.token into its data directory at its first start."
        ) from error


def _draft_model(asked: argparse.Namespace) -> DraftModel | None:
    if asked.draft_model is None:
        return None
    with _needs_draft_extra():
        from draftrunner.drafters.loading import load_draft_model
    return load_draft_model(asked.draft_model, device=asked.device, memory_gib=asked.draft_memory)


def _embedded_backend(asked: argparse.Namespace) -> None:
    with _needs_draft_extra():
        from draftrunner.embedded.server import run
    run(
        host=asked.host,
        port=asked.port,
        model=asked.model,
        dtype=asked.dtype,
        served_model_name=asked.served_model_name,
        draft_model=_draft_model(asked),
    )


@contextlib.contextmanager
def _needs_draft_extra() -> Iterator[None]:
    """For imports that load torch; says what to install where it is missing."""
    # Read once, when torch is loaded: for how long its threads spin while they wait for one another. By
    # default they spin for milliseconds, and on cores that other processes use too, a forward then takes
    # ten times as long. This is enough for the waits of a forward that has its cores for itself.
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in DRAFT_EXTRA:
            raise
        raise StartError(f"{error.name} is not installed. Run: pip install 'ace-gateway[draft]'") from error


if __name__ == "__main__":
    main()
