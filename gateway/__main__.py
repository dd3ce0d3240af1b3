"""Command line `ace`: names its commands and loads the one that was typed, nothing else."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from gateway import __version__
from gateway.errors import GatewayError

COMMANDS = {
    "serve": ("gateway.cli.serve:serve", "Run the gateway."),
    "draft-runner": ("gateway.cli.runner:draft_runner", "Run a draft runner: scores answers for shadow."),
    "embedded-backend": ("gateway.cli.runner:embedded_backend", "Serve a small real model."),
    "backends": ("gateway.cli.backends:backends", "Register, show, probe and remove model servers."),
    "fleet": ("gateway.cli.fleet:fleet", "Check and try fleet files."),
    "keys": ("gateway.cli.keys:keys", "Make, list and revoke API keys."),
    "stages": ("gateway.cli.stages:stages", "Show the newest stage records."),
    "policy": ("gateway.cli.policy:policy", "Check, try, compare and roll back policies."),
    "kill": ("gateway.cli.overlays:kill", "Stop all speculation, or one tenant's, model's or backend's."),
    "overlays": ("gateway.cli.overlays:overlays", "Demote rules and shorten drafts beside the policy."),
    "init": ("gateway.cli.policy:init", "Write a first policy."),
    "doctor": ("gateway.cli.doctor:doctor", "Say what is wrong, why, and what to type next."),
    "support-bundle": ("gateway.cli.bundle:support_bundle", "Pack what a supporter needs, without secrets."),
    "demo": ("gateway.cli.demo:demo", "Measure speculation on this machine, end to end."),
}
"""Each command's object and its line in `ace --help`, so that help imports no command."""


class LazyGroup(click.Group):
    """Imports a command when it is called; failures of ours end as one message and exit status 1."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 click's signature
        """Every command, in the table's order."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The command of that name."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command = getattr(import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{module}:{attribute} is no command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """The list of commands in `ace --help`."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except GatewayError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=LazyGroup)
@click.version_option(__version__, prog_name="ace")
def main() -> None:
    """ACE: a policy gateway that measures and drives speculative decoding before your model servers."""


if __name__ == "__main__":
    main()
