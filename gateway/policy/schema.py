"""The policy's JSON schema, for editors.

`python -m gateway.policy.schema > policies/schema.json` renews the file.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from gateway.policy.model import Policy


def policy_schema() -> dict[str, Any]:
    """The JSON schema of a policy file, as generated from the models that validate it."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "ACE gateway policy",
        **{key: part for key, part in Policy.model_json_schema().items() if key != "title"},
    }


def schema_text() -> str:
    """What policies/schema.json holds."""
    return json.dumps(policy_schema(), indent=2) + "\n"


if __name__ == "__main__":
    sys.stdout.write(schema_text())
