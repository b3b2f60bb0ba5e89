// A complete number: two predictions of a target, token by token, and which of them each loss prefers.

import { choice, element, list, presets, slider, text } from "../controls.js";
import { show as written } from "../draw.js";
import { END, listTokenizers, place, token } from "../tokens.js";

const PRESETS = {
  "0.98: 1.01 or 1.98": { target: "0.98", first: "1.01", second: "1.98", tokenizer: "one" },
  "200: 199 or 190": { target: "200", first: "199", second: "190", tokenizer: "one" },
  "4500: 4501 or 5500": { target: "4500", first: "4501", second: "5500", tokenizer: "one" },
  "-5: -9 or 5": { target: "-5", first: "-9", second: "5", tokenizer: "one" },
  "98: 101 or 198, another length": { target: "98", first: "101", second: "198", tokenizer: "one" },
  "99900: 100000 or 89900, three digits per token": { target: "99900", first: "100000", second: "89900", tokenizer: "three" },
};
const SIDES = ["A", "B"];

export const tab = {
  name: "number",
  title: "A complete number",

  mount(root, page) {
    root.classList.add("number");
    root.append(element("p", { class: "lead" }, "Two models predict a number. Does a loss prefer the closer prediction, or the one that shares more tokens with the target? "
      + "Type other numbers, or change the tokenizer."));
    presets(root, page, { label: "examples", presets: PRESETS });
    const controls = element("div", { class: "controls" });
    root.append(controls);
    text(controls, page, { field: "target", label: "target", maxLength: 60 });
    text(controls, page, { field: "first", label: "prediction A", maxLength: 60 });
    text(controls, page, { field: "second", label: "prediction B", maxLength: 60 });
    list(controls, { label: "tokenizer", onChange: (tokenizer) => page.set({ tokenizer }) });
    slider(controls, page, { field: "certainty", label: "probability of each token", min: 0.5, max: 0.995, step: 0.005, format: (value) => value.toFixed(3) });
    choice(controls, page, { field: "every", label: "losses", options: [[false, "main"], [true, "all"]] });
    root.append(element("p", { class: "answer result" }), element("div", { class: "scroll result" }, element("table", { class: "tokens" })),
      element("div", { class: "notes result" }), element("p", { class: "note result" }, `Below each token: its place value. ${END} ends the number. Highlighted: tokens that differ from the target's. Losses compare position by `
        + "position along the target; at each, the predicted token has the probability set above, and all other number tokens share the rest."),
      element("details", { class: "formats result" }, element("summary", {}, "The target in each format"), element("table", {}),
        element("p", { class: "note" }, "How a number is written decides which digits share a token. Padded: to the width of the longest of the three numbers.")),
      element("div", { class: "losses result" }),
      element("p", { class: "note result" }, "Bold: the lower loss, averaged over tokens for token-level losses and over numbers for number-level ones. NTIL as published reads runs of single digits, "
        + "so a decimal point splits a number in two; its random noise is off here. NTIL on values reads points and place values."));
  },

  show(answer, state, root) {
    listTokenizers(root.querySelector("select[name=tokenizer]"), answer.tokenizers, state);
    root.querySelector(".answer").textContent = answer.summary;
    root.querySelector(".tokens").replaceChildren(...rows(answer));
    const notes = answer.predictions.filter(({ note }) => note).map(({ note }) => element("p", {}, note));
    root.querySelector(".notes").replaceChildren(...notes);
    root.querySelector(".formats table").replaceChildren(...answer.formats.map(({ kind, tokens }) => element("tr", {},
      element("th", { scope: "row" }, kind), element("td", {}, ...tokens.map((piece) => element("span", { class: "token" }, token(piece)))))));
    root.querySelector(".losses").replaceChildren(...answer.losses.filter((loss) => loss.values || !loss.part_of).map((loss) => lossRow(loss, answer)));
  },
};

function rows({ target, predictions }) {
  const length = Math.max(target.tokens.length, ...predictions.map(({ tokens }) => tokens.length));
  const row = (name, number, off, tokens) => element("tr", {},
    element("th", { scope: "row" }, `${name} `, element("b", {}, number), off === null ? "" : `, off by ${off}`),
    ...Array.from({ length }, (_, index) => cell(tokens[index], target.tokens[index], index)));
  const cell = (own, right, index) => {
    const seen = index < target.tokens.length, shown = own ?? (seen ? { text: "end", exponent: null } : null);
    if (shown === null) return element("td", { class: "unseen" });
    const kind = !seen ? "unseen" : shown.text !== right.text ? "differs" : false;
    return element("td", { class: kind, title: kind === "unseen" ? "no loss sees this token" : kind ? `the target has ${token(right.text)}` : false },
      element("span", { class: "token" }, token(shown.text)), element("span", { class: "place" }, place(shown.exponent)));
  };
  const short = (number) => (number.length > 20 ? `${number.slice(0, 12)}…` : number);
  return [row("target", short(target.text), null, target.tokens),
    ...predictions.map(({ text: number, off, tokens }, index) => row(SIDES[index], short(number), short(off), tokens))];
}

function lossRow({ name, title, part_of: partOf, values, prefers, sentence }, { nearer }) {
  const verdict = prefers === null || nearer === null ? "" : prefers === nearer ? " prefers-near" : " prefers-far";
  const most = Math.max(...(values ?? [1]).map(Math.abs));
  const cells = SIDES.map((side, index) => {
    const fill = element("div");
    fill.style.width = `${values && most ? (100 * Math.abs(values[index])) / most : 0}%`;
    return element("div", { class: `cell ${index ? "right" : "left"}${prefers === index ? " chosen" : ""}` },
      element("div", { class: "cost" }, element("span", { class: "which" }, side), element("span", { class: "value" }, written(values?.[index]))),
      element("div", { class: "meter", "aria-hidden": "true" }, fill));
  });
  return element("article", { class: `loss${partOf ? " part" : ""}${values ? "" : " unusable"}${verdict}`, "data-loss": name },
    element("div", { class: "about" }, element("h3", {}, title), element("p", { class: "sees" }, sentence)), ...cells);
}
