from importlib import resources

from gateway.policy.model import Mode
from gateway.policy.schema import policy_schema, schema_text


def test_the_shipped_schema_is_the_generated_one() -> None:
    """Renew it with `python -m gateway.policy.schema > policies/schema.json`."""
    shipped = resources.files("policies").joinpath("schema.json").read_text(encoding="utf-8")
    assert shipped == schema_text()


def test_the_schema_takes_what_loading_takes() -> None:
    schema = policy_schema()
    definitions = schema["$defs"]
    assert schema["patternProperties"] == {"^x-": {}}
    assert definitions["Mode"]["enum"] == list(Mode)
    assert {"const": False, "type": "boolean"} in definitions["Rule"]["properties"]["mode"]["anyOf"]
    assert {"type": "null"} not in definitions["Match"]["properties"]["model"]["anyOf"]
    assert "string" in [kind["type"] for kind in definitions["Control"]["properties"]["block"]["anyOf"]]


def test_no_level_takes_unknown_keys() -> None:
    schema = policy_schema()
    levels = [schema, *(part for part in schema["$defs"].values() if part["type"] == "object")]
    assert all(level["additionalProperties"] is False for level in levels)
