"""The ace command's subcommands."""
