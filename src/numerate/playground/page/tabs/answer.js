// A model's answer: its distribution over complete numbers beside the greedy answer, the answer of each decision rule, and the search.

import { button, element, fill, list, slider, text } from "../controls.js";
import { picture, shape, show as written, ticks } from "../draw.js";
import { percent } from "../tokens.js";
import { tree } from "../token_tree.js";

// Title, what the rule does, and how its answer is introduced.
const RULES = {
  greedy: ["greedy", "the most likely token at each step", "The greedy answer is"],
  median: ["median", "lowest expected absolute error", "The median is"],
  mean: ["mean", "lowest expected squared error", "The mean is"],
  relative: ["relative", "lowest expected relative error", "The lowest relative error is expected of"],
  within_5: ["within\u00a05\u00a0%", "most likely at most 5 % off", "Most likely within 5\u00a0% is"],
  within_10: ["within\u00a010\u00a0%", "most likely at most 10 % off", "Most likely within 10\u00a0% is"],
};
const MARKED = { greedy: "var(--c2)", median: "var(--c1)" }; // always in the picture; the chosen rule and the truth beside them
const SHARES = {
  exact: ["var(--c1)", "found, with exact probability"],
  drawn: ["var(--c3)", "found and sampled: prefixes beyond the beam width are subsampled without bias"],
  no_number: ["var(--c2)", "answers without a number"],
  more_digits: ["var(--c4)", "numbers with more digits than the search allows"],
  not_searched: ["var(--edge)", "prefixes not searched"],
};
const NAMES = {
  squared: "squared error (root)", exact: "exact answer", absolute_error: "absolute error", relative_error: "relative error", log10_error: "log10 error",
};
const name = (metric) => NAMES[metric] ?? metric.replace(/^within_(\d+)$/, "within\u00a0$1\u00a0%").replaceAll("_", " ");

let page = null, parts = null;

export const tab = {
  name: "answer",
  title: "A model's answer",

  mount(root, given) {
    page = given;
    root.append(element("p", { class: "lead" }, "A language model's answer is a distribution over complete numbers. Greedy decoding returns one of them; the median uses all. "
      + "Change the question, then switch the decision rule."));
    const asked = element("div", { class: "controls" });
    const model = list(asked, { label: "model", onChange: (value) => page.set({ model: value, cells: {}, line: "" }) });
    button(asked, { label: "Reset", onClick: () => page.set({ model: "", cells: {}, line: "" }) });
    const examples = element("div", { class: "presets", role: "group", "aria-label": "test rows" });
    const cells = element("div", { class: "controls cells" });
    const typed = element("div", { class: "controls" });
    text(typed, page, { field: "line", label: "or a complete prompt", placeholder: "as in training", maxLength: 500 });
    const limits = element("div", { class: "controls" });
    slider(limits, page, { field: "level", label: "interval", min: 0.5, max: 0.99, step: 0.01, format: (value) => percent(value) });
    const search = element("div", { class: "controls" });
    slider(search, page, { field: "width", label: "beam width", min: 1, max: 512, step: 1 });
    slider(search, page, { field: "covered", label: "target coverage", min: 0.5, max: 1, step: 0.01, format: (value) => percent(value) });
    const box = (className) => element("div", { class: className });
    parts = { model, examples, cells, prompt: element("code"), members: element("span"), rules: box("rules result"), lead: element("p", { class: "answer" }, "Loading the model …"), histogram: box("picture"),
      outside: element("p", { class: "note" }), tested: element("p", { class: "note" }), decisions: element("tbody"), stray: element("p", { class: "note" }),
      shares: box("picture"), key: element("ul", { class: "key shares-key" }), tree: box("tree"), card: element("pre", { class: "card" }) };
    parts.rules.setAttribute("role", "radiogroup");
    parts.rules.setAttribute("aria-label", "decision rule");
    parts.rules.append(...Object.entries(RULES).map(rule));
    const heads = ["metric", "best answer", "its expected score", "of the greedy answer"].map((head, index) => element("th", index ? {} : { class: "left-aligned" }, head));
    root.append(asked, examples, cells, typed,
      element("p", { class: "note result" }, "Prompt: ", parts.prompt, parts.members), parts.rules,
      element("div", { class: "result" }, parts.lead, parts.histogram, parts.outside), limits,
      element("div", { class: "result" }, parts.tested, element("article", { class: "two" },
        element("div", {}, element("h2", {}, "The best answer depends on the metric"),
          element("div", { class: "scroll" }, element("table", { class: "decisions" }, element("thead", {}, element("tr", {}, ...heads)), parts.decisions)), parts.stray),
        element("div", {}, element("h2", {}, "Where the probability is"), parts.shares, parts.key)),
      element("h2", {}, "The search tree")), search, element("div", { class: "result" },
      element("p", { class: "note" }, "The most likely prefixes of an answer, token by token. Grey: not searched. ~: sampled, stands for other prefixes too. A complete number is written out."),
      parts.tree,
      element("details", {}, element("summary", {}, "Model card"), parts.card)));
  },

  show(answer, state) {
    fill(parts.model, answer.models, answer.model);
    showQuestion(answer, state);
    showRules(answer);
    parts.lead.textContent = lead(answer, state);
    histogram(parts.histogram, answer, state);
    const outside = answer.bars.filter((bar) => bar.low === null || bar.high === null).map((bar) => `${bar.label}: ${percent(bar.p)}`);
    parts.outside.textContent = `${answer.values.toLocaleString("en")} numbers found.${outside.length ? ` Outside the picture: ${outside.join(", ")}.` : ""}`;
    parts.tested.textContent = tested(answer.measures);
    showDecisions(answer);
    showShares(answer);
    tree(parts.tree, branch(answer.tree, parts.tree.clientWidth < 520 ? 3 : 6));
    parts.card.textContent = answer.card;
  },
};

const away = (off) => (off ? `${written(100 * Math.abs(off), 2)}\u00a0% ${off < 0 ? "too low" : "too high"}` : "correct");

// A card of one decision rule: a radio button with its answer.
function rule([key, [title, what]]) {
  const input = element("input", { type: "radio", name: "rule", value: key });
  input.addEventListener("change", () => page.set({ rule: key }));
  page.watch((state) => { input.checked = state.rule === key; });
  return element("label", { class: "rule", title: what, "data-rule": key }, input, element("span", { class: "name" }, title),
    element("b", { class: "decided" }, "–"), element("span", { class: "off" }));
}

function showRules({ answers }) {
  for (const { rule: key, text: number, off } of answers) {
    const card = parts.rules.querySelector(`[data-rule=${key}]`);
    card.querySelector(".decided").textContent = number ?? "no number";
    card.querySelector(".off").textContent = off === null ? "" : away(off);
  }
}

function lead({ answers, interval: [low, high], target, truth }, { rule: key, level }) {
  const { text: number } = answers.find((one) => one.rule === key);
  const answered = number === null ? "The greedy answer has no number." : `${RULES[key][2]} ${number}.`;
  const known = truth ? ` The true ${target ?? "answer"}, ${truth.text}, is ${truth.inside ? "inside" : "outside"}.` : "";
  return `${answered} ${percent(level)} interval: ${low.text} to ${high.text}.${known}`;
}

// How good the model is, from its card: median errors by decision.
function tested(measures) {
  const rules = Object.keys(measures).filter((measure) => measure.startsWith("relative_error, ")).map((measure) => measure.split(", ")[1]);
  const each = rules.map((key) => `${key} ${percent(measures[`relative_error, ${key}`])}`);
  return each.length ? `One row proves little. Median relative error on the test rows, from the model card: ${each.join(", ")}.` : "";
}

// The fields of a question; built anew only when another model has other columns, so that somebody who types is left alone.
function showQuestion(answer, state) {
  parts.prompt.textContent = answer.prompt;
  parts.members.textContent = answer.members > 1 ? `. The model is a pool of ${answer.members} members; the greedy answer and the search tree are those of the first.` : "";
  const kept = JSON.stringify([answer.model, answer.columns]);
  if (parts.cells.dataset.kept !== kept) {
    parts.cells.dataset.kept = kept;
    parts.cells.replaceChildren(...answer.columns.map(field));
    parts.examples.replaceChildren(...(answer.examples.length ? [element("span", { class: "name" }, "test rows")] : []), ...answer.examples.map(example));
  }
  for (const input of parts.cells.querySelectorAll("[name]")) {
    const value = page.state.cells[input.name] ?? answer.cells[input.name] ?? ""; // the answer may be that to an earlier state
    if (document.activeElement !== input && input.value !== value) input.value = value;
  }
  parts.cells.first = answer.cells;
  const asked = state.line.trim() ? "" : JSON.stringify(answer.cells);
  for (const made of parts.examples.querySelectorAll("button")) made.setAttribute("aria-pressed", made.dataset.cells === asked);
  parts.cells.classList.toggle("unused", state.line.trim() !== "");
}

function field(column) {
  const given = column.choices.length ? element("select", { name: column.name }, ...column.choices.map((value) => element("option", { value }, value)))
    : element("input", { type: "text", name: column.name, maxlength: 200, size: 8, autocomplete: "off", inputmode: column.least === null ? "text" : "decimal",
      title: column.least === null ? undefined : `trained on ${column.least} to ${column.most}` });
  given.addEventListener(column.choices.length ? "change" : "input", () => {
    const before = Object.keys(page.state.cells).length ? page.state.cells : parts.cells.first;
    if (given.value.trim()) page.set({ cells: { ...before, [column.name]: given.value }, line: "" });
  });
  const range = column.least === null ? "" : ` (${column.least} to ${column.most})`;
  return element("label", { class: "control" }, element("span", { class: "name" }, `${column.name}${range}`), given);
}

function example({ cells }) {
  const made = element("button", { type: "button", "data-cells": JSON.stringify(cells) }, Object.values(cells).join(" "));
  made.addEventListener("click", () => page.set({ cells, line: "" }));
  return made;
}

// Bars over a number line, the interval below it, and lines for the greedy answer, the median, the truth and the chosen answer.
// The mark of the chosen answer moves to its place; bars grow when the question changes.
function histogram(root, answer, state) {
  const told = answer.bars.map((bar) => `${bar.label}: ${percent(bar.p)}`).join(", ");
  const number = (key) => answer.answers.find((one) => one.rule === key);
  const given = [...Object.entries(MARKED).map(([key, tint]) => [key, tint, number(key)]), ["truth", "var(--ink)", answer.truth]]
    .filter(([, , one]) => one && one.value !== null);
  const chosen = number(state.rule);
  const narrow = root.clientWidth < 520, line = 16, flag = 26, top = flag + given.length * line + 4, height = top + (narrow ? 205 : 255), floor = height - 54;
  const [svg, width] = picture(root, height, `The model's distribution over numbers, ${state.line.trim() || answer.prompt}`, told);
  const inside = answer.bars.filter((bar) => bar.low !== null && bar.high !== null);
  if (!inside.length) return;
  const points = inside.every((bar) => bar.low === bar.high);
  const ends = inside.flatMap((bar) => [bar.low, bar.high]), span = Math.max(...ends) - Math.min(...ends) || 1;
  const near = [...given.map(([, , one]) => one), chosen].map((one) => one.value)
    .filter((value) => value !== null && value > Math.min(...ends) - span && value < Math.max(...ends) + span); // others are at the edge
  let first = Math.min(...ends, ...near), last = Math.max(...ends, ...near);
  if (points) [first, last] = [first - (last - first || 1) * 0.06, last + (last - first || 1) * 0.06];
  const left = 6, right = width - 6;
  const across = (value) => Math.min(right, Math.max(left, left + ((value - first) / (last - first || 1)) * (right - left)));
  const seen = ({ text: written, value }) => (value > last ? `${written} →` : value < first ? `← ${written}` : written);
  const [low, high] = answer.interval.map((end) => across(end.value));
  const most = Math.max(...inside.map((bar) => bar.p), 1e-12);
  const bars = shape(svg, "g", { class: root.dataset.told === told ? "" : "grow" }, { "transform-origin": `0 ${floor}px` });
  root.dataset.told = told;
  for (const bar of inside) {
    const from = points ? across(bar.low) - 4 : across(bar.low), to = points ? across(bar.low) + 4 : across(bar.high);
    const tall = (bar.p / most) * (floor - top - 6);
    const made = shape(bars, "rect", { x: from, y: floor - tall, width: Math.max(1, to - from - 1), height: tall, class: "bar-of-answer" }, { fill: "var(--c1)", opacity: (from + to) / 2 < low || (from + to) / 2 > high ? 0.2 : 0.45 });
    shape(made, "title", {}, {}, `${bar.label}: ${percent(bar.p)}`);
  }
  shape(svg, "line", { x1: left, x2: right, y1: floor, y2: floor }, { stroke: "var(--edge)" });
  const put = (parent, x, y, content, anchor, tint, extra = {}) => shape(parent, "text", { x, y, "text-anchor": anchor, "font-size": 12, ...extra }, { fill: tint }, content);
  for (const value of ticks(first, last, Math.max(2, Math.floor(width / 110)))) {
    const x = across(value);
    put(svg, x, floor + 32, value.toLocaleString("en"), x < 30 ? "start" : x > width - 30 ? "end" : "middle", "var(--grey)");
    shape(svg, "line", { x1: x, x2: x, y1: floor + 16, y2: floor + 20 }, { stroke: "var(--edge)" });
  }
  shape(svg, "rect", { x: low, y: floor + 5, width: Math.max(2, high - low), height: 7, class: "interval" }, { fill: "var(--c1)" });
  const bounds = `${percent(state.level)} interval: ${answer.interval[0].text} to ${answer.interval[1].text}`, middle = (low + high) / 2, half = 3.6 * bounds.length;
  put(svg, Math.min(Math.max(middle, half), width - half), height - 1, bounds, "middle", "var(--ink)", { "font-weight": 600 });
  // From left to right and from top to bottom: a label goes over lines that begin below it.
  given.sort((one, other) => one[2].value - other[2].value);
  given.forEach(([mark, tint, one], index) => {
    const x = across(one.value);
    shape(svg, "line", { x1: x, x2: x, y1: flag + (index + 1) * line - 8, y2: floor }, { stroke: tint, "stroke-width": 2, "stroke-dasharray": mark === "truth" ? "4 3" : "none" });
  });
  if (chosen.value !== null) flagged(svg, across(chosen.value), seen(chosen), width, floor, root);
  given.forEach(([mark, tint, one], index) => {
    const x = across(one.value), content = `${mark} ${seen(one)}`, after = x + 7.5 * content.length < width;
    put(svg, after ? x + 5 : x - 5, flag + (index + 1) * line, content, after ? "start" : "end", tint, { "font-weight": 600, "data-mark": mark, class: "mark" });
  });
}

// The mark of the chosen answer, which moves from where it was.
function flagged(svg, x, content, width, floor, root) {
  const half = 4.4 * content.length + 9, middle = Math.min(Math.max(x, half + 1), width - half - 1);
  const mark = shape(svg, "g", { class: "chosen", "data-chosen": content });
  shape(mark, "line", { x1: 0, x2: 0, y1: 20, y2: floor }, { stroke: "var(--ink)", "stroke-width": 3.5, opacity: 0.8 });
  shape(mark, "path", { d: "M-7 20H7L0 29Z" }, { fill: "var(--ink)" });
  const label = shape(mark, "g", {}, { transform: `translateX(${middle - x}px)` });
  shape(label, "rect", { x: -half, y: 0, width: 2 * half, height: 21, rx: 4 }, { fill: "var(--ink)" });
  shape(label, "text", { x: 0, y: 15.5, "text-anchor": "middle", "font-size": 14, "font-weight": 700 }, { fill: "var(--paper)" }, content);
  mark.style.transform = `translateX(${root.at ?? x}px)`;
  mark.getBoundingClientRect(); // so that the change below is a transition
  mark.style.transform = `translateX(${x}px)`;
  root.at = x;
}

function showDecisions({ decisions, stray }) {
  parts.decisions.replaceChildren(...decisions.map((decision) => {
    const share = decision.higher_is_better || decision.metric === "relative_error";
    const score = (value) => (value === null ? "–" : share ? percent(value) : written(value));
    return element("tr", { "data-metric": decision.metric },
      element("td", { title: decision.what }, name(decision.metric)), element("td", { class: "decided" }, decision.text),
      element("td", {}, score(decision.expected)), element("td", {}, score(decision.expected_of_greedy)));
  }));
  const notes = ["Scores expected under the model's own distribution: the lower the better for errors, the higher for “within”."];
  if (stray) {
    const all = stray.relative_error === null ? "infinite" : percent(stray.relative_error);
    notes.push(`They ignore stray values, as the rules do: ${percent(stray.share)} of the probability, far from the rest, such as on ${stray.top}. `
      + `With them, the expected relative error would be ${all}, because an error is large relative to a truth of ${stray.top}.`);
  }
  if (!decisions.some(({ metric }) => metric === "exact")) notes.push("The best exact answer is unknown: most of the probability is sampled.");
  parts.stray.textContent = notes.join(" ");
}

function showShares(answer) {
  const { covered, drawn, ...others } = answer.shares;
  const masses = { exact: Math.max(0, covered - drawn), drawn, ...others };
  const [svg, width] = picture(parts.shares, 30, "Where the model's probability is", Object.entries(masses).map(([share, mass]) => `${share}: ${percent(mass)}`).join(", "));
  let x = 0;
  for (const [share, [tint]] of Object.entries(SHARES)) {
    const wide = masses[share] * width;
    shape(svg, "rect", { x, y: 2, width: wide, height: 26 }, { fill: tint });
    x += wide;
  }
  shape(svg, "rect", { x: 0.5, y: 2, width: width - 1, height: 26 }, { fill: "none", stroke: "var(--edge)" });
  parts.key.replaceChildren(...Object.entries(SHARES).map(([share, [tint, sentence]]) => {
    const swatch = element("span", { class: "swatch", "aria-hidden": "true" });
    swatch.style.background = tint;
    return element("li", { "data-share": share }, swatch, element("b", {}, percent(masses[share])), ` ${sentence}`);
  }));
}

// The tree as token_tree.js takes it, its first levels.
function branch(node, deep) {
  const branches = deep ? node.children.map((child) => branch(child, deep - 1)) : [];
  if (branches.length && node.others) branches.push({ others: node.others, probability: node.others_p, branches: [] });
  const seen = (node.ends > node.p / 2 ? node.text : node.piece).replaceAll("\n", "⏎");
  return { tokens: node.piece ? [`${node.drawn ? "~" : ""}${seen}`] : [], probability: node.p, unsearched: !node.searched, branches };
}
