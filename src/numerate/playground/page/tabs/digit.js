// One digit: two distributions over ten digits, and the value and gradient of every loss on them.

import { choice, element, presets, shares } from "../controls.js";
import { arrows, show as written } from "../draw.js";

const DIGITS = [...Array(10).keys()].map(String);
const SIDES = { left: "A", right: "B" };

// Bars with the given shares at distances from the target; one beyond 0 or 9 goes to the other side of the target.
function around(target, parts) {
  const bars = Array(10).fill(0);
  for (const [distance, share] of parts) {
    const digit = target + distance;
    bars[digit >= 0 && digit <= 9 ? digit : target - distance] += share;
  }
  return bars;
}

const far = (target) => (target < 5 ? 9 : 0) - target;
const PRESETS = {
  certain: (target) => around(target, [[0, 1]]),
  neighbour: (target) => around(target, [[0, 0.4], [1, 0.6]]),
  far: (target) => around(target, [[0, 0.4], [far(target), 0.6]]),
  uniform: () => Array(10).fill(0.1),
  "two peaks": (target) => around(target, target > 0 && target < 9 ? [[-1, 0.5], [1, 0.5]] : [[0, 0.5], [2, 0.5]]),
};

export const tab = {
  name: "digit",
  title: "One digit",

  mount(root, page) {
    root.append(
      element("p", { class: "lead" }, "Two models predict the next digit. Drag the bars, type below them, or use the arrow keys, and watch every loss "
        + "and its gradient. Both start with the same probability on the target; the rest is near it in A and far from it in B."),
    );
    const controls = element("div", { class: "controls" });
    root.append(controls);
    choice(controls, page, { field: "target", label: "target digit", options: DIGITS.map((digit) => [Number(digit), digit]) });
    const two = element("div", { class: "sides" });
    for (const [field, name] of Object.entries(SIDES)) {
      const side = element("div", { class: `side ${field}` }, element("h2", {}, `Distribution ${name}`));
      const ready = Object.entries(PRESETS).map(([preset, bars]) => [preset, (state) => ({ [field]: bars(state.target) })]);
      presets(side, page, { label: "presets", presets: Object.fromEntries(ready) });
      shares(side, page, { field, labels: DIGITS, label: `distribution ${name}`, marked: (state) => state.target });
      two.append(side);
    }
    root.append(two, element("p", { class: "answer result" }), element("p", { class: "note result" },
      "Arrows: the negative gradient with respect to each logit. Up: a training step makes the digit more likely. "
      + "A and B share a scale within each loss. A bar of 0 counts as one in a million."),
      element("div", { class: "losses result" }));
  },

  show(answer, state, root) {
    root.querySelector(".answer").textContent = answer.sentence;
    const table = root.querySelector(".losses");
    if (table.children.length !== answer.losses.length) table.replaceChildren(...answer.losses.map(row));
    const width = table.querySelector(".loss:not(.unusable) .arrows").clientWidth; // once: reading it between changes forces a layout
    answer.losses.forEach((loss, index) => {
      const made = table.children[index];
      made.dataset.loss = loss.name;
      made.querySelector("h3").textContent = loss.name;
      made.querySelector(".sees").textContent = loss.reason ? `Not defined for one digit: ${loss.reason}` : loss.sees;
      made.classList.toggle("unusable", Boolean(loss.reason));
      if (loss.reason) return;
      const scale = Math.max(...Object.keys(SIDES).flatMap((side) => loss[side].gradient.map(Math.abs)));
      for (const [side, name] of Object.entries(SIDES)) {
        made.querySelector(`.${side} .value`).textContent = written(loss[side].value);
        arrows(made.querySelector(`.${side} .arrows`), {
          title: `${loss.name}, distribution ${name}: negative gradient with respect to each logit`,
          values: loss[side].gradient.map((slope) => -slope || 0), labels: DIGITS, scale, marked: answer.target, width,
        });
      }
    });
  },
};

function row() {
  const cell = ([side, name]) => element("div", { class: `cell ${side}` },
    element("div", { class: "cost" }, element("span", { class: "which" }, name), element("span", { class: "value" })), element("div", { class: "arrows" }));
  return element("article", { class: "loss" }, element("div", { class: "about" }, element("h3"), element("p", { class: "sees" })),
    ...Object.entries(SIDES).map(cell));
}
