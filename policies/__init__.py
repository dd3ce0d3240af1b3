"""YAML policies that ship with the gateway, and the generated JSON schema."""
