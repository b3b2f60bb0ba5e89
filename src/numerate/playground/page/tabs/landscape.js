// Loss curves: the loss of each answer, one curve per loss, and SMMD's gram.

import { button, checks, choice, element, slider } from "../controls.js";
import { curves, heatmap } from "../draw.js";

const MOST = { "0-9": 9, "0-99": 99, "0-999": 999 };
const most = (state) => MOST[state.tokens] ?? 9;
const boxes = new Map();
let current = null; // the page of this tab, for the controls that come with an answer

export const tab = {
  name: "landscape",
  title: "Loss curves",

  mount(root, page) {
    current = page;
    root.append(element("p", { class: "lead" }, "The loss of each answer, by its value. A curve that rises away from the target "
      + "tells the model which wrong answers are closer. Change the settings of a loss and watch its curve."));
    const row = element("div", { class: "controls" });
    root.append(row);
    slider(row, page, { field: "target", label: "target", min: 0, max: most, step: 1 });
    slider(row, page, { field: "width", label: "width of the prediction", min: 0, max: (state) => (most(state) + 1) * 0.3, step: 0.1,
      format: (value) => (value ? Number(value).toFixed(1) : "certain") });
    choice(row, page, { field: "tokens", label: "tokens", options: Object.keys(MOST),
      also: (value, state) => ({ target: Math.min(state.target, MOST[value]), width: Math.min(state.width, (MOST[value] + 1) * 0.3) }) });
    choice(row, page, { field: "scale", label: "scale", options: [["value", "loss"], ["share", "share of the maximum"]] });
    root.append(element("div", { class: "which-losses" }, "loading …"), element("div", { class: "answer list result" }),
      element("div", { class: "landscape" },
        element("div", { class: "result" }, element("div", { class: "plot" }), element("div", { class: "grams" })),
        element("div", { class: "settings" })));
  },

  show(answer, state, root) {
    const which = root.querySelector(".which-losses");
    if (!which.firstElementChild) which.replaceChildren();
    if (!which.firstChild) checks(which, current, { field: "losses", label: "losses", options: answer.names });
    const drawn = answer.series.filter((one) => !one.reason);
    const told = answer.series.filter((one) => one.reason).map((one) => `${one.name} is not shown: ${one.reason}`);
    root.querySelector(".answer").replaceChildren(...[...answer.sentences, ...told].map((sentence) => element("p", {}, sentence)));
    const plot = root.querySelector(".plot");
    if (drawn.length) {
      curves(plot, { title: `Loss of each answer for the target ${state.target}`, x: answer.x, series: drawn, marked: state.target,
        xLabel: "predicted value", yLabel: state.scale === "share" ? "share of the maximum loss" : "loss" });
    } else plot.replaceChildren(element("p", {}, "Choose a loss above."));
    grams(root.querySelector(".grams"), answer.grams);
    settings(root.querySelector(".settings"), answer.controls);
  },
};

// A heat map has many cells: it is drawn again only if its values or its width changed.
function grams(root, all) {
  const key = JSON.stringify([root.clientWidth, all]);
  if (root.dataset.key === key) return;
  root.dataset.key = key;
  const places = all.map(() => element("div", { class: "gram" }));
  root.replaceChildren(...all.map((gram, index) =>
    element("div", {}, element("h2", {}, `Gram of ${gram.name}: similarity of two values, from 0 to 1`), places[index])));
  all.forEach((gram, index) => heatmap(places[index], {
    title: `Gram of ${gram.name}`, values: gram.values, labels: gram.labels, xLabel: "value of a token", yLabel: "value of another token" }));
}

// Controls of the chosen losses, each built once, so that a slider keeps the focus.
function settings(root, controls) {
  for (const [loss, ones] of Object.entries(controls)) {
    if (!boxes.has(loss)) boxes.set(loss, box(loss, ones));
  }
  const shown = Object.keys(controls).filter((loss) => Object.keys(controls[loss]).length).map((loss) => boxes.get(loss));
  if (shown.length !== root.children.length || shown.some((one, index) => one !== root.children[index])) root.replaceChildren(...shown);
}

function box(loss, ones) {
  const made = element("fieldset", { class: "loss-settings" }, element("legend", {}, loss));
  for (const [setting, control] of Object.entries(ones)) {
    const view = settingPage(loss, setting, control);
    if (control.options) choice(made, view, { field: setting, label: setting, options: control.options });
    else {
      const isDefault = () => current.state.settings[loss]?.[setting] === undefined;
      slider(made, view, { field: setting, label: setting, min: control.low, max: control.high, step: control.step,
        format: (value) => (isDefault() ? control.default : String(Number(Number(value).toPrecision(3)))) });
    }
  }
  button(made, { label: "Reset", onClick: () => {
    const { [loss]: _, ...others } = current.state.settings;
    current.set({ settings: others });
  } });
  return made;
}

// A page whose state is one setting of one loss.
function settingPage(loss, setting, control) {
  const value = (state) => state.settings[loss]?.[setting] ?? (control.options ? control.default : control.start);
  return {
    get state() { return { [setting]: value(current.state) }; },
    set(changes) {
      const { settings: all } = current.state;
      current.set({ settings: { ...all, [loss]: { ...all[loss], ...changes } } });
    },
    watch(update) { current.watch((state) => update({ [setting]: value(state) })); },
  };
}
