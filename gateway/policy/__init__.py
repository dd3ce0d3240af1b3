"""Policy: from YAML to a decision with its reasons."""
