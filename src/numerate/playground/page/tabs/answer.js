// A model's answer: its distribution over numbers, what each metric would decide, and how much of it was searched.

import { button, element, fill, list, slider, text } from "../controls.js";
import { picture, shape, show as written, ticks } from "../draw.js";
import { tree } from "../token_tree.js";

const percent = (share, digits = 3) => `${written(100 * share, digits)} %`;
const MARKS = { median: "var(--c1)", mean: "var(--c2)", mode: "var(--c3)", truth: "var(--ink)" };
const SHARES = {
  exact: ["var(--c1)", "numbers found, with their exact probability"],
  drawn: ["var(--c3)", "numbers found that stand for others as well: prefixes beyond the beam width are drawn"],
  no_number: ["var(--c2)", "answers that are no number"],
  more_digits: ["var(--c4)", "numbers with more digits than were looked for"],
  not_searched: ["var(--edge)", "prefixes that were not searched"],
};
const NAMES = {
  squared: "squared error", exact: "exact answer", absolute_error: "absolute error", relative_error: "relative error", log10_error: "log error",
};
const name = (metric) => NAMES[metric] ?? metric.replace(/^within_(\d+)$/, "within $1 %").replaceAll("_", " ");

let page = null, parts = null;

export const tab = {
  name: "answer",
  title: "A model's answer",

  mount(root, given) {
    page = given;
    root.append(element("p", { class: "lead" }, "A language model that answers with a number has a distribution over numbers. Here is the whole of it "
      + "for one question: which number is best to say depends on the metric. Change the question, or choose a row that the model has not seen."));
    const asked = element("div", { class: "controls" });
    const model = list(asked, { label: "model", onChange: (value) => page.set({ model: value, cells: {}, line: "" }) });
    button(asked, { label: "start over", onClick: () => page.set({ model: "", cells: {}, line: "" }) });
    const examples = element("div", { class: "presets", role: "group", "aria-label": "test rows" });
    const cells = element("div", { class: "controls cells" });
    const typed = element("div", { class: "controls" });
    text(typed, page, { field: "line", label: "or in your own words", placeholder: "the line as the model reads it", maxLength: 500 });
    const limits = element("div", { class: "controls" });
    slider(limits, page, { field: "level", label: "interval", min: 0.5, max: 0.99, step: 0.01, format: (value) => percent(value) });
    slider(limits, page, { field: "width", label: "beam width", min: 1, max: 512, step: 1 });
    slider(limits, page, { field: "covered", label: "share to search", min: 0.5, max: 1, step: 0.01, format: (value) => percent(value) });
    const box = (className) => element("div", { class: className });
    parts = { model, examples, cells, prompt: element("code"), lead: element("p", { class: "answer" }, "No answer yet: a model takes some seconds to load."), histogram: box("picture"),
      outside: element("p", { class: "note" }), decisions: element("tbody"), shares: box("picture"), key: element("ul", { class: "key shares-key" }),
      tree: box("tree"), tested: element("p", { class: "note" }), card: element("pre", { class: "card" }) };
    const heads = ["scored by", "best answer", "score it expects"].map((head, index) => element("th", index ? {} : { class: "left-aligned" }, head));
    root.append(asked, examples, cells, typed,
      element("div", { class: "result" }, element("p", { class: "note" }, "The model reads: ", parts.prompt), parts.lead, parts.histogram, parts.outside),
      limits, element("div", { class: "result" }, element("article", { class: "two" },
        element("div", {}, element("h2", {}, "What each metric would decide"),
          element("div", { class: "scroll" }, element("table", { class: "decisions" }, element("thead", {}, element("tr", {}, ...heads)), parts.decisions))),
        element("div", {}, element("h2", {}, "Where the probability is"), parts.shares, parts.key,
          element("p", { class: "note" }, "The score that a metric expects is the model's own belief. A relative error divides by the truth, so that a little "
            + "probability on a very small number, such as 1, can pull the best answer there."))),
      element("h2", {}, "The tree that was searched"),
      element("p", { class: "note" }, "Token by token, the likeliest prefixes of an answer. Grey branches were not searched; one marked ~ stands for others as well; a finished number is written whole."),
      parts.tree, parts.tested,
      element("details", {}, element("summary", {}, "Model card"), parts.card)));
  },

  show(answer, state) {
    fill(parts.model, answer.models, answer.model);
    showQuestion(answer, state);
    const [low, high] = answer.interval;
    const truth = answer.truth ? ` The true ${answer.target ?? "answer"} of this row is ${answer.truth.text}, ${answer.truth.inside ? "inside" : "outside"} of it.` : "";
    parts.lead.textContent = `Median ${answer.median.text}, mean ${answer.mean.text}, mode ${answer.mode.text}; `
      + `${percent(state.level)} of the probability between ${low.text} and ${high.text}.${truth}`;
    histogram(parts.histogram, answer, state);
    const outside = answer.bars.filter((bar) => bar.low === null || bar.high === null).map((bar) => `${bar.label}: ${percent(bar.p)}`);
    parts.outside.textContent = `${answer.values.toLocaleString("en")} numbers were found.${outside.length ? ` Outside of the picture: ${outside.join(", ")}.` : ""}`;
    showDecisions(answer);
    showShares(answer);
    tree(parts.tree, branch(answer.tree, parts.tree.clientWidth < 520 ? 3 : 6));
    parts.tested.textContent = tested(answer.measures);
    parts.card.textContent = answer.card;
  },
};

// How good the model is, from its card: median errors by decision.
function tested(measures) {
  const rules = Object.keys(measures).filter((measure) => measure.startsWith("relative_error, ")).map((measure) => measure.split(", ")[1]);
  const each = rules.map((rule) => `${rule} ${percent(measures[`relative_error, ${rule}`])} (absolute ${written(measures[`absolute_error, ${rule}`])})`);
  return each.length ? `How far off the model typically is on test rows, by how its answer is decided: ${each.join(", ")}. From its card:` : "";
}

// The fields of a question; built anew only when another model has other columns, so that somebody who types is left alone.
function showQuestion(answer, state) {
  parts.prompt.textContent = answer.prompt;
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
  const made = element("button", { type: "button" }, Object.values(cells).join(" "));
  made.addEventListener("click", () => page.set({ cells, line: "" }));
  return made;
}

// Bars over a number line, the interval below it, and lines for median, mean, mode and the truth.
function histogram(root, answer, state) {
  const told = answer.bars.map((bar) => `${bar.label}: ${percent(bar.p)}`).join(", ");
  const given = Object.entries(MARKS).map(([mark, tint]) => [mark, tint, answer[mark]]).filter(([, , number]) => number && number.value !== null);
  const narrow = root.clientWidth < 520, line = 15, top = given.length * line + 4, height = top + (narrow ? 205 : 225), floor = height - 54;
  const [svg, width] = picture(root, height, `The model's distribution over numbers, ${state.line.trim() || answer.prompt}`, told);
  const inside = answer.bars.filter((bar) => bar.low !== null && bar.high !== null);
  if (!inside.length) return;
  const points = inside.every((bar) => bar.low === bar.high);
  const ends = [...inside.map((bar) => bar.low), ...inside.map((bar) => bar.high), ...given.map(([, , number]) => number.value)];
  let first = Math.min(...ends), last = Math.max(...ends);
  if (points) [first, last] = [first - (last - first || 1) * 0.06, last + (last - first || 1) * 0.06];
  const left = 6, right = width - 6;
  const across = (value) => left + ((value - first) / (last - first || 1)) * (right - left);
  const most = Math.max(...inside.map((bar) => bar.p), 1e-12);
  for (const bar of inside) {
    const from = points ? across(bar.low) - 4 : across(bar.low), to = points ? across(bar.low) + 4 : across(bar.high);
    const tall = (bar.p / most) * (floor - top - 6);
    const made = shape(svg, "rect", { x: from, y: floor - tall, width: Math.max(1, to - from - 1), height: tall, class: "bar-of-answer" }, { fill: "var(--c1)", opacity: 0.45 });
    shape(made, "title", {}, {}, `${bar.label}: ${percent(bar.p)}`);
  }
  shape(svg, "line", { x1: left, x2: right, y1: floor, y2: floor }, { stroke: "var(--edge)" });
  const put = (x, y, content, anchor, tint, extra = {}) => shape(svg, "text", { x, y, "text-anchor": anchor, "font-size": 12, ...extra }, { fill: tint }, content);
  for (const value of ticks(first, last, Math.max(2, Math.floor(width / 110)))) {
    const x = across(value);
    put(x, floor + 32, value.toLocaleString("en"), x < 30 ? "start" : x > width - 30 ? "end" : "middle", "var(--grey)");
    shape(svg, "line", { x1: x, x2: x, y1: floor + 16, y2: floor + 20 }, { stroke: "var(--edge)" });
  }
  const [low, high] = answer.interval.map((number) => Math.min(Math.max(across(number.value), left), right));
  shape(svg, "rect", { x: low, y: floor + 5, width: Math.max(2, high - low), height: 7, class: "interval" }, { fill: "var(--c1)" });
  put((low + high) / 2 > width / 2 ? right : left, height - 1, `${percent(state.level)}: ${answer.interval[0].text} to ${answer.interval[1].text}`,
    (low + high) / 2 > width / 2 ? "end" : "start", "var(--ink)");
  // From left to right and from top to bottom: a label goes over lines that begin below it.
  given.sort((one, other) => one[2].value - other[2].value);
  given.forEach(([mark, tint, number], index) => {
    const x = across(number.value);
    shape(svg, "line", { x1: x, x2: x, y1: (index + 1) * line - 8, y2: floor }, { stroke: tint, "stroke-width": 2, "stroke-dasharray": mark === "truth" ? "4 3" : "none" });
  });
  given.forEach(([mark, tint, number], index) => {
    const x = across(number.value), content = `${mark} ${number.text}`, after = x + 7.5 * content.length < width;
    put(after ? x + 5 : x - 5, (index + 1) * line, content, after ? "start" : "end", tint, { "font-weight": 600, "data-mark": mark, class: "mark" });
  });
}

function showDecisions(answer) {
  parts.decisions.replaceChildren(...answer.decisions.map((decision) => {
    const share = decision.higher_is_better || decision.metric === "relative_error";
    const expected = decision.expected === null ? "infinite" : share ? percent(decision.expected) : written(decision.expected);
    return element("tr", { "data-metric": decision.metric },
      element("td", { title: decision.what }, name(decision.metric)), element("td", { class: "decided" }, decision.text),
      element("td", {}, `${expected}${decision.metric === "squared" ? " (root)" : ""}`));
  }));
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
