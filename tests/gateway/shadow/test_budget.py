from __future__ import annotations

from gateway.shadow.budget import TokenBudget


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_rule_may_spend_its_tokens_once_a_minute() -> None:
    clock = Clock()
    budget = TokenBudget(clock)
    assert budget.spend("chat", 60, 100)
    clock.now = 30.0
    assert not budget.spend("chat", 41, 100)
    assert budget.spend("chat", 40, 100)
    clock.now = 60.0
    assert not budget.spend("chat", 61, 100)
    assert budget.spend("chat", 60, 100)


def test_rules_do_not_share() -> None:
    budget = TokenBudget(Clock())
    assert budget.spend("chat", 100, 100)
    assert budget.spend("code", 100, 100)


def test_a_rule_without_a_limit_may_spend_anything() -> None:
    assert TokenBudget(Clock()).spend("chat", 10**9, None)


def test_an_answer_longer_than_the_budget_is_never_replayed() -> None:
    assert not TokenBudget(Clock()).spend("chat", 101, 100)


def test_workers_together_spend_no_more_than_the_limit() -> None:
    workers = [TokenBudget(Clock(), workers=4) for _ in range(4)]
    assert sum(worker.spend("chat", 25, 100) for worker in workers for _ in range(3)) == 4
    assert not TokenBudget(Clock(), workers=4).spend("chat", 26, 100)


def test_rules_that_a_policy_no_longer_has_take_no_memory() -> None:
    clock = Clock()
    budget = TokenBudget(clock)
    for number in range(1000):
        assert budget.spend(f"rule-{number}", 1, 100)
        clock.now += 1.0
    assert len(budget._spent) <= 60
