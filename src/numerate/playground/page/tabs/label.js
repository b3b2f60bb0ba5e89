// A soft label: the tree of its tokens, and how often sampled answers take each branch.

import { button, choice, element, list, number, presets, slider, text } from "../controls.js";
import { END, listTokenizers, percent } from "../tokens.js";
import { tree } from "../token_tree.js";

const START = { kind: "number", target: "99900", unit: "percent", width: 5, shape: "gaussian" };
const PRESETS = {
  "99900, 5 %": START,
  "99900, exact": { ...START, width: 0 },
  "84.50 ± 0.25": { ...START, target: "84.50", unit: "absolute", width: 0.25 },
  "four raters": { kind: "raters", ratings: "3, 4, 4, 5" },
  "23:58 ± 3 minutes": { kind: "clock", target: "23:58", width: 3, shape: "gaussian" },
  "359° ± 2°": { kind: "angle", target: "359", width: 2, shape: "gaussian" },
};
const KINDS = [["number", "number"], ["raters", "ratings of several people"], ["clock", "time of day"], ["angle", "angle"]];
const FIRST = { number: "99900", clock: "23:58", angle: "359" };
const SHAPES = [["gaussian", "Gaussian"], ["laplace", "Laplace"], ["uniform", "uniform"]];
const DRAWS = [0, 1, 10, 100, 1000, 10000];

export const tab = {
  name: "label",
  title: "A soft label",

  mount(root, page) {
    root.classList.add("label");
    root.append(element("p", { class: "lead" }, "A noisy label is a distribution over numbers. As tokens it is a tree: each branch is the probability of a token "
      + "given its prefix, the soft target that a model is trained on. Sample answers, and watch their frequencies converge."));
    presets(root, page, { label: "examples", presets: PRESETS });
    const controls = element("div", { class: "controls" });
    root.append(controls);
    const withTarget = { watch: page.watch, set: ({ kind }) => page.set({ kind, ...(FIRST[kind] && { target: FIRST[kind] }) }) };
    choice(controls, withTarget, { field: "kind", label: "label", options: KINDS });
    const own = {
      target: text(controls, page, { field: "target", label: "target", maxLength: 400 }),
      ratings: text(controls, page, { field: "ratings", label: "ratings", maxLength: 1000 }),
      width: number(controls, page, { field: "width", label: "width", min: 0, step: "any" }),
      unit: choice(controls, page, { field: "unit", label: "in", options: [["percent", "% of the target"], ["absolute", "units of the target"]] }),
      shape: choice(controls, page, { field: "shape", label: "shape", options: SHAPES }),
    };
    page.watch(({ kind: now }) => {
      for (const [field, control] of Object.entries(own)) control.hidden = (field === "ratings") !== (now === "raters") || (field === "unit" && now !== "number");
      own.width.querySelector(".name").textContent = { clock: "width in minutes", angle: "width in degrees" }[now] ?? "width";
    });
    list(controls, { label: "tokenizer", onChange: (tokenizer) => page.set({ tokenizer }) });
    slider(controls, page, { field: "branches", label: "branches per level", min: 1, max: 8, step: 1 });
    choice(controls, page, { field: "given", label: "probabilities", options: [[false, "of the prefix"], [true, "given the prefix"]] });
    const draw = element("div", { class: "draw" });
    choice(draw, page, { field: "draws", label: "sampled answers", options: DRAWS.map((count) => [count, count ? count.toLocaleString("en") : "none"]) });
    button(draw, { label: "Sample", onClick: () => page.set(page.state.draws ? { seed: (page.state.seed + 1) % 1000000 } : { draws: 1 }) });
    button(draw, { label: "10 times as many", onClick: () => page.set({ draws: Math.min(10000, Math.max(1, 10 * page.state.draws)) }) });
    root.append(element("p", { class: "answer result" }), draw, element("p", { class: "drawn note result" }), element("div", { class: "tree result" }),
      element("p", { class: "note legend result" }));
  },

  show(answer, state, root) {
    listTokenizers(root.querySelector("select[name=tokenizer]"), answer.tokenizers, state);
    root.querySelector(".answer").textContent = summary(answer);
    const drawn = root.querySelector(".drawn"), more = state.draws > answer.drawn.length ? ", …" : "";
    drawn.textContent = answer.drawn.length ? `Sampled: ${answer.drawn.map(short).join(", ")}${more}` : "No answers sampled yet.";
    tree(root.querySelector(".tree"), answer.tree, { given: state.given, drawn: state.draws > 0 });
    root.querySelector(".legend").textContent = `Line width: probability of the prefix. Outlined: the path of the label itself. ${END} ends the answer; | separates tokens `
      + `that follow with certainty; … more follows.${answer.represented ? ` This wide distribution is approximated by ${answer.values} equally likely values.` : ""}`;
  },
};

const short = (number) => (number.length > 16 ? `${number.slice(0, 10)}…` : number);

function summary({ tree: top, values, numbers }) {
  const many = values === 1 ? "1 value" : `${values} values`;
  const middle = numbers && values > 1 ? `, median ${numbers.median}, 90\u00a0% interval ${numbers.low} to ${numbers.high}` : "";
  const options = top.branches.filter(({ others }) => !others).slice(0, 3).map((branch) => `${branch.tokens[0]} (${percent(branch.share)})`);
  const fixed = top.tokens.length ? `All start with ${top.tokens.filter((text) => text !== "end").join("")}${top.longer ? "…" : ""}. ` : "";
  const first = options.length ? `${fixed}The ${fixed ? "next" : "first"} token is ${options.join(", ")}.` : "Every token has a one-hot target: plain cross-entropy.";
  return `${many}${middle}. ${first}`;
}
