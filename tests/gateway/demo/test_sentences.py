from random import Random

from gateway.demo.report import Report
from gateway.demo.results import Evidence, make_report
from gateway.demo.sentences import sentences
from tests.fakes.trials import evidence, replay, replayed, stage, stages_of, trial, without_loop


def report_of(found: Evidence) -> Report:
    return make_report(found, {"cpu": "abacus", "cores": 2, "pass_seconds": {"1": 0.02}}, Random(1))


def test_sentences_say_where_speculation_pays_and_where_it_loses() -> None:
    trials = [trial("code", str(n)) for n in range(6)]
    trials += [trial("chat", str(n), prod_seconds=2.5) for n in range(6)]
    trials += [trial("rag", str(n), prod_seconds=(1.5, 2.5)[n % 2]) for n in range(6)]

    said = sentences(report_of(evidence(trials)))

    assert said[0].startswith(
        "code: speculation pays, 2.00x (2.00 to 2.00, 6 pairs). Shadow predicts most from K="
    )
    assert said[1].startswith("chat: speculation loses, 0.80x (0.80 to 0.80, 6 pairs): leave it off.")
    assert said[2].startswith("rag: no clear gain, 1.0")


def test_sentences_count_what_was_not_measured_with_its_reasons() -> None:
    trials = [trial(name=str(n)) for n in range(6)]
    stages = stages_of(trials) | {
        "shadow-code-0": stage("skip", reason="runner_unavailable"),
        "shadow-code-1": stage("skip", reason="queue_full"),
        "shadow-code-2": replayed(not_replayed={"suffix": "replay_failed"}),
        "prod-code-0": stage("bypass", reason="no_executor"),
    }

    said = sentences(report_of(evidence(trials, stages=stages)))

    assert "code: 2 of 6 shadow answers were not replayed (runner_unavailable 1, queue_full 1)." in said
    assert "code: 1 of 6 shadow answers were not replayed for suffix (replay_failed 1)." in said
    assert "code: 1 of 6 prod (in_engine) answers were not speculated (no_executor 1)." in said


def test_sentences_name_the_checks_that_did_not_hold() -> None:
    said = sentences(report_of(evidence([trial(name=str(n), prod_seconds=1.5) for n in range(6)])))

    assert said[-2] == "3 of 5 checks held. Not held: prod_ge_1_8_code, predicted_within_15pct_code."


def test_sentences_end_with_the_machine() -> None:
    assert sentences(report_of(evidence([trial()])))[-1] == "Measured on: cpu abacus, cores 2."


def test_sentences_name_the_best_drafter_where_there_are_several() -> None:
    trials = [trial(workload, str(n)) for workload in ("code", "chat") for n in range(6)]
    better = replay(accepted_tokens=18, passes_by_drafts={k: {0: 6, k: 4} for k in range(1, 9)})
    none_gains = replay(accepted_tokens=0, passes_by_drafts={k: {k: 41} for k in range(1, 9)})
    stages = stages_of(trials)
    for one in trials:
        if one.prompt.workload == "code":
            stages[one.shadow.request_id] = replayed(compared={"suffix": better})
        else:
            passes = none_gains.passes_by_drafts
            stages[one.shadow.request_id] = replayed(passes_by_drafts=passes, compared={"suffix": none_gains})

    said = sentences(report_of(evidence(trials, stages=stages)))

    assert "code: best drafter suffix, 3.98x at K=1 predicted from 6 answers (ngram 2.00x)." in said
    assert "chat: no drafter is predicted to gain." in said


def test_a_demo_without_the_loop_says_so_once() -> None:
    trials = [without_loop(trial(workload, str(n))) for workload in ("code", "chat") for n in range(6)]

    said = sentences(report_of(evidence(trials)))

    assert [one for one in said if "gateway_loop" in one] == [
        "gateway_loop: not measured, a quick demo leaves it out."
    ]
