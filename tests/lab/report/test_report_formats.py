"""Losses x formats in the report: each format against plain text with the same loss and decision."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tests.lab.report.simulated import headline_of, setup_in_memory, write_cell, write_experiment

from numerate.lab.report import write_report
from numerate.lab.report.format_scores import format_sentence, formats
from numerate.lab.report.recommended import check_recommendation

GOLDS = tuple(map(str, range(40)))
SUMS = {"operations": "+"}
EXACT = {"ce": 0.5, "ce padded": 0.9, "ce padded:6": 0.9, "soft": 0.6, "soft padded": 0.6, "emd reversed": 0.2}


def config(label):
    loss, _, kind = label.partition(" ")
    soft = {"loss": "ce", "soft": {"path": "drawn"}} if loss == "soft" else {"loss": loss}
    return {**soft, **({"format": kind} if kind else {})}


LABELS = ("ce", "ce padded", "soft", "soft padded", "emd reversed")


def made(labels=LABELS, seeds=4, model="tiny", exact=EXACT, **settings):
    def measures(label, rule, seed, split):
        rng = np.random.default_rng([seed, split, sum(map(ord, label))])
        right = (rng.random(len(GOLDS)) < {**EXACT, **exact}[label]).astype(float)
        return {"exact": right}

    pairs = [(label, "greedy") for label in labels]
    known = {"headline": "exact", "seeds": seeds, "model": model, "task": "arithmetic"}
    return setup_in_memory(pairs, measures, GOLDS, **known, config=lambda label: {**config(label), "task_settings": settings})


def test_each_format_is_compared_with_plain_text_of_the_same_loss():
    setup = made()
    found = formats(setup, headline_of(setup))
    assert found.formats == ("plain", "padded", "reversed")
    assert found.losses == ("ce", "soft", "emd")
    for loss, kind in (("ce", "padded"), ("soft", "padded")):
        score, plain = found.cell(loss, kind, "interpolate", "greedy"), found.cell(loss, "plain", "interpolate", "greedy")
        difference = (setup.values(f"{loss} {kind}", "interpolate", "exact") - setup.values(loss, "interpolate", "exact")).mean()
        assert score.gain.estimate == pytest.approx(difference)
        assert score.family == 2
        assert plain.comparison is None
    assert found.cell("emd", "reversed", "interpolate", "greedy").comparison is None  # there is no emd in plain text
    assert found.cell("emd", "plain", "interpolate", "greedy") is None


def test_the_sentence_names_what_is_significant():
    setup = made()
    told = format_sentence(setup, formats(setup, headline_of(setup)))
    assert told.startswith("Significantly better than plain text with the same loss: ce padded")
    assert "soft padded" not in told
    alone = "emd is not run in plain text: the difference from ce is that of loss and format together. Add --format plain"
    assert told.endswith(f"{alone} to separate them.")
    assert format_sentence(made(seeds=1), formats(made(seeds=1), headline_of(made(seeds=1)))).startswith(alone)
    alike = made(("ce", "soft", "soft padded"))
    assert format_sentence(alike, formats(alike, headline_of(alike))) == (
        "No format differs significantly from plain text with the same loss."
    )
    assert formats(made(("ce", "soft")), headline_of(made(("ce", "soft")))) is None


def checked(**setting):
    setup = made(**setting)
    return check_recommendation(setup, headline_of(setup))


@pytest.mark.parametrize("padded", ["ce padded", "ce padded:6"])
def test_padded_numbers_are_recommended_for_sums(padded):
    check = checked(labels=("ce", padded, "soft"), seeds=8, **SUMS)
    assert check.pair == (padded, "greedy")
    assert check.agreement == "agrees"
    assert check.sentence.startswith(f"This agrees with what numerate recommends for sums: {padded} with greedy answers is ")


def test_padded_numbers_can_be_worse():
    check = checked(labels=("ce", "ce padded", "soft"), seeds=8, exact={"soft": 1.0}, **SUMS)
    assert check.agreement == "contradicts"
    assert check.sentence.startswith(
        "numerate recommends ce padded with greedy answers for sums; here soft with greedy answers is significantly better: "
    )


def test_sums_in_plain_text_alone():
    check = checked(labels=("ce", "soft", "soft padded"), **SUMS)
    assert check.agreement == "not run"
    assert check.sentence == (
        "numerate recommends ce padded with greedy answers for sums, which this comparison does not include: run it with "
        "--loss ce --format padded."
    )


@pytest.mark.parametrize("other", [{}, {"operations": "+-"}, {"operations": "*"}, {**SUMS, "model": "smollm2"}], ids=str)
def test_a_format_is_recommended_only_where_it_was_measured(other):
    """Other expressions and pre-trained models are recommended in plain text, so that a better format is a better pair."""
    check = checked(seeds=8, **other)
    assert check.pair == ("ce", "greedy")
    assert check.agreement == "contradicts"
    assert "recommends ce with greedy answers for " in check.sentence
    assert "ce padded" in check.sentence


def test_the_page_and_the_data_have_formats(tmp_path):
    write_experiment(tmp_path)
    for label in ("ce", "ce padded"):
        for seed in range(3):
            rows = [
                {"split": "interpolate", "index": i, "prompt": "?", "gold": "7", "output": "7", "answer": "7", "nll": 1.0}
                | {"measures": {"exact": float((i + seed) % (2 if label == "ce" else 5) > 0)}, "digits": []}
                for i in range(30)
            ]
            written = {"format": "padded"} if label == "ce padded" else {}
            of_run = {"task": "arithmetic", "loss": "ce", "label": label, "seed": seed, **written}
            write_cell(tmp_path / "cells" / f"{label}-{seed}", of_run, rows, "exact")
    page = write_report(tmp_path)
    data = json.loads(page.with_suffix(".json").read_text())
    by_format = {row["format"]: row for row in data["formats"]}
    assert by_format["plain"]["difference"] is None
    assert by_format["padded"]["difference"] == pytest.approx(by_format["padded"]["value"] - by_format["plain"]["value"])
    assert by_format["padded"]["better"] is True
    text = page.read_text()
    assert "Losses and formats" in text
    assert "1 loss, 2 formats and 3 seeds" in text
    assert '<th scope="col" class="left">Format</th>' in text
