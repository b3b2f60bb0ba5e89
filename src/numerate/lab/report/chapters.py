"""Collect everything the report says about each setup."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from numerate.lab.evaluation.decisions import GREEDY
from numerate.lab.report import answer as words
from numerate.lab.report.analysis import RunCost, Score, Setup, costs, scores
from numerate.lab.report.decisions import Decisions, decisions
from numerate.lab.report.examples import MAX_EXAMPLES, DifferingExamples, differing
from numerate.lab.report.figures import figures
from numerate.lab.report.figures.drawing import FigurePlan, Styles, drawing, styles
from numerate.lab.report.figures.members import by_members
from numerate.lab.report.figures.overview import NARROW, overall, overview
from numerate.lab.report.figures.sizes import by_size
from numerate.lab.report.figures.svg import to_svg
from numerate.lab.report.format_scores import Formats, format_sentence, formats
from numerate.lab.report.key_figures import KeyFigure, of_baselines
from numerate.lab.report.levels import Levels, levels
from numerate.lab.report.member_scores import MemberScores, disagreement_sentence, member_sentence, members, which_is_which
from numerate.lab.report.recommended import RecommendationCheck, check_recommendation
from numerate.lab.report.records import ExperimentRecord
from numerate.lab.report.summary import Summary, overall_figures, overall_sentence, summarise
from numerate.lab.wording.measures import Measure

FIGURES = ("predictions", "errors", "places", "lengths", "calibration", "curves")
"""Figures with a section of their own, in the order of the page."""

_COLUMNS = 6  # losses per table of all metrics, beside the baseline
_MAX_EXAMPLES = 48  # of all setups together
_COST_HEADINGS = {
    "ms_per_step": "ms per step",
    "time_ratio": "Time ratio",
    "peak_mib": "Peak MiB",
    "memory_ratio": "Memory ratio",
    "tokens_per_second": "Tokens per second",
    "train_seconds": "Training, s",
}


@dataclass(frozen=True)
class FirstScreen:
    """What the page begins with: the answer in a sentence, figures to remember, and a picture."""

    sentence: str
    note: str
    verdict: words.Verdict
    figures: Sequence[KeyFigure]
    picture: FigurePlan | None


@dataclass(frozen=True)
class Chapter:
    """Everything the report says about one setup."""

    anchor: str
    setup: Setup
    summary: Summary
    answer: words.Answer
    scores: Sequence[Score]
    costs: Sequence[RunCost]
    figures: Mapping[str, FigurePlan]  # drawn
    missing: Sequence[str]
    differing: DifferingExamples | None
    decisions: Decisions | None
    recommendation: RecommendationCheck | None
    levels: Levels | None = None
    formats: Formats | None = None
    members: MemberScores | None = None

    @property
    def screen(self) -> FirstScreen:
        """The answer for this setup."""
        found = self.summary
        return FirstScreen(found.sentence, found.note, found.verdict, found.figures, self.figures.get("overview"))

    @property
    def headline(self) -> list[Score]:
        """Scores of the headline metric, with every decision."""
        return [score for score in self.scores if score.measure == self.setup.headline]

    @property
    def compared(self) -> bool:
        """Whether there is a baseline to compare with."""
        return any(score.comparison is not None for score in self.headline)

    @property
    def timed(self) -> bool:
        """Whether the time per step of a loss can be compared with the baseline's; that of stacked runs is not measured."""
        return self.compared and any(cost.time_ratio is not None for cost in self.costs)

    @property
    def stacked(self) -> bool:
        """Whether some runs were trained as one."""
        return any("stacked" in run.cost for run in self.setup.runs())

    @property
    def tested(self) -> bool:
        """Whether there are enough seeds for a test."""
        return any(score.tested for score in self.headline)

    @property
    def same_seeds(self) -> bool:
        """Whether all losses were run with the same seeds."""
        return all(tuple(cells) == self.setup.seeds for cells in self.setup.cells.values())

    def rows(self, split: str, decision: str) -> list[Score]:
        """Return the scores of the headline metric on a split with a decision."""
        return [score for score in self.headline if (score.split, score.decision) == (split, decision)]

    def cost(self, label: str) -> RunCost:
        """Return the cost of a loss."""
        return next(cost for cost in self.costs if cost.label == label)

    def cost_columns(self) -> list[tuple[str, str]]:
        """Return the name and heading of each cost that was measured."""
        measured = {name for cost in self.costs for name in _COST_HEADINGS if getattr(cost, name) is not None}
        return [(name, heading) for name, heading in _COST_HEADINGS.items() if name in measured]

    def columns(self) -> list[tuple[str, ...]]:
        """Split the losses into tables that fit the page, with the baseline in each."""
        first, *others = self.setup.labels
        return [(first, *others[start : start + _COLUMNS]) for start in range(0, max(1, len(others)), _COLUMNS)]

    def described(self) -> list[Measure]:
        """Return the metrics whose name does not explain them."""
        measures = dict.fromkeys(measure for split in self.setup.splits for measure in self.setup.measures(split))
        return [measure for measure in measures if measure.description and not measure.name.startswith("within_")]

    def contents(self) -> list[tuple[str, str]]:
        """Return the sections in the order of the page: anchor and title."""
        sections = {"detail": "In detail", "scores": "Scores"}
        sections |= {} if self.formats is None else {"formats": "Losses and formats"}
        sections |= {} if self.levels is None else {"levels": "How good are these models?"}
        sections |= {} if self.decisions is None else {"decided": "Losses and decisions"}
        sections |= {} if self.members is None else {"members": "Losses and members"}
        sections |= {f"{name}-title": self.figures[name].title for name in FIGURES if name in self.figures}
        sections |= {"costs": "Cost"} if self.cost_columns() else {}
        sections |= {"measures": "All metrics"}
        sections |= {} if self.differing is None else {"examples": "Examples"}
        return [(f"{self.anchor}-{name}", title) for name, title in sections.items()]

    def score(self, label: str, split: str, measure: Measure) -> Score:
        """Return one of the scores."""
        return next(score for score in self.scores if (score.label, score.split, score.measure) == (label, split, measure))


def loss_styles(experiment: ExperimentRecord, setups: Sequence[Setup]) -> Styles:
    """Return the style of each loss, the same in all figures of a report."""
    return styles(sorted({label for setup in setups for label in setup.labels}), [experiment.baseline])


def chapters(experiment: ExperimentRecord, setups: Sequence[Setup]) -> list[Chapter]:
    """Compute scores, answer, figures and examples of each setup."""
    by_label = loss_styles(experiment, setups)
    limit = max(3, min(MAX_EXAMPLES, _MAX_EXAMPLES // len(setups)))
    contents: list[Chapter] = []
    told: set[str] = set()
    for number, setup in enumerate(setups, 1):
        found = levels(setup, experiment.directory)
        if found is not None and not found.learned:
            setup = replace(setup, judged=False)
        all_scores, all_costs = scores(setup), costs(setup)
        headline = [score for score in all_scores if score.measure == setup.headline]
        where = words.subject(setup) if len(setups) == 1 else setup.title
        result = words.answer(setup, headline, all_costs, where)
        decided, advice = decisions(setup), check_recommendation(setup, headline)
        more = [experiment.note, *result.more, words.identical(setup), words.exploded_sentence(setup)]
        more += [] if found is None else found.sentences
        more += [words.error_sizes(setup, all_scores), words.derailed_sentence(setup, all_scores)]
        more += [] if decided is None else [words.decision_sentence(setup, decided)]
        written, pools = formats(setup, headline), members(setup, decided)
        more += [] if written is None else [format_sentence(setup, written)]
        if pools is not None:
            more += [member_sentence(setup, pools), which_is_which(setup), disagreement_sentence(setup, pools)]
        if advice is not None and advice.sentence not in told:  # what was not run is said once
            more.append(advice.sentence)
            told.add(advice.sentence)
        examples = differing(setup, [score for score in headline if score.decision == GREEDY], limit)
        summary = summarise(setup, all_costs, advice, found, pools)
        plans = [overview(setup, summary), *figures(setup, headline, by_label, decided)]
        if pools is not None:
            rated = [] if found is None else found.of(setup.splits[0])
            plans.append(by_members(pools, by_label, of_baselines(pools.measure, rated)))
        drawn, missing = _draw(plans, f"s{number}")
        if examples is None:
            missing.append("examples (no example is scored differently by two losses with the same seed)")
        result = replace(result, more=tuple(filter(None, more)))
        parts = (all_scores, all_costs, drawn, missing, examples, decided, advice, found, written, pools)
        contents.append(Chapter(f"s{number}", setup, summary, result, *parts))
    return contents


def across(experiment: ExperimentRecord, contents: Sequence[Chapter]) -> list[FigurePlan]:
    """Draw the figures that compare setups: of models of several sizes."""
    by_label = loss_styles(experiment, [chapter.setup for chapter in contents])
    plans = by_size(((chapter.setup, chapter.headline) for chapter in contents), by_label)
    with drawing():
        return [replace(plan, svg=to_svg(plan.draw(plan.data), f"sizes{at}", plan.title)) for at, plan in enumerate(plans, 1)]


def first_screen(contents: Sequence[Chapter]) -> FirstScreen:
    """Return the answer for all setups."""
    if len(contents) == 1:
        return contents[0].screen
    setups, summaries = [chapter.setup for chapter in contents], [chapter.summary for chapter in contents]
    kind, titles = words.apart(setups)
    verdicts = {summary.verdict for summary in summaries}
    verdict = next(way for way in ("better", "worse", "noise", "untested") if way in verdicts)
    drawn, _ = _draw([overall([*zip(setups, summaries, strict=True)], titles)], "all")
    what = list(dict.fromkeys(name for setup in setups for name in setup.dimensions()))
    told = overall_sentence(titles, kind, summaries, str(setups[0].baseline), what or ["loss"])
    return FirstScreen(told, "", verdict, overall_figures(summaries), drawn.get("overall"))


def _draw(plans: Iterable[FigurePlan], anchor: str) -> tuple[dict[str, FigurePlan], list[str]]:
    """Draw the figures that have data; say why the others are missing."""
    drawn: dict[str, FigurePlan] = {}
    missing: list[str] = []
    with drawing():
        for plan in plans:
            if not plan.data.rows:
                missing.append(f"{plan.title[0].lower()}{plan.title[1:]} ({plan.missing})")
                continue
            svg = to_svg(plan.draw(plan.data), f"{anchor}-{plan.name}", plan.title)
            small = ""
            if plan.name in ("overview", "overall"):
                small = to_svg(plan.draw(plan.data, width=NARROW), f"{anchor}-{plan.name}-narrow", plan.title)
            drawn[plan.name] = replace(plan, svg=svg, narrow=small)
    return drawn, missing
