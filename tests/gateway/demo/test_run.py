from importlib.resources import as_file, files

from gateway.demo.measure import OTHER_KS, Way
from gateway.demo.run import DRAFTER, POLICY, K
from gateway.policy.load import load_policy
from gateway.policy.model import Mode

MODES = {Way.OFF: Mode.OFF, Way.SHADOW: Mode.SHADOW}


def test_the_policy_gives_each_way_its_mode_and_k_and_speculates_every_prod_request() -> None:
    with as_file(files("policies") / POLICY) as path:
        rules = {rule.name: rule for rule in load_policy(path).policy.rules}

    assert {name: rule.mode for name, rule in rules.items()} == {
        f"demo-{way}": MODES.get(way, Mode.PROD) for way in Way
    }
    assert all(rule.match.tenant == (name,) for name, rule in rules.items())
    for way in {*Way} - MODES.keys():
        rule = rules[f"demo-{way}"]
        assert (rule.draft, rule.k) == (DRAFTER, OTHER_KS.get(way, K))
        assert (rule.prod.share, rule.prod.control.fraction) == (1.0, 0)
    assert (rules["demo-shadow"].k, rules["demo-shadow"].shadow.sample) == (K, 1.0)
