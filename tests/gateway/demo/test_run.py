from importlib.resources import as_file, files

from gateway.demo.measure import MODES
from gateway.demo.run import POLICY, K
from gateway.policy.load import load_policy
from gateway.policy.model import Mode


def test_the_policy_gives_each_tenant_its_mode_and_speculates_every_prod_request_with_k() -> None:
    with as_file(files("policies") / POLICY) as path:
        rules = {rule.name: rule for rule in load_policy(path).policy.rules}

    assert {name: rule.mode for name, rule in rules.items()} == {f"demo-{mode}": Mode(mode) for mode in MODES}
    assert all(rule.match.tenant == (name,) for name, rule in rules.items())
    prod = rules["demo-prod"]
    assert (prod.k, prod.prod.share, prod.prod.control.fraction) == (K, 1.0, 0)
    assert (rules["demo-shadow"].k, rules["demo-shadow"].shadow.sample) == (K, 1.0)
