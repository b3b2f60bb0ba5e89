// Labelled controls, each bound to one field of a tab's state.
//
//   slider(root, page, {field: "sigma", label: "sigma", min: 0.1, max: 9, step: 0.1, format: (value) => value.toFixed(1)})
//                                                          min and max may be functions of the state
//   number(root, page, {field, label, min, max, step})    text(root, page, {field, label, placeholder, maxLength})
//   choice(root, page, {field, label, options: ["a", "b"] or [["a", "shown as"], ..], also: (value, state) => ({other: 1})})
//   list(root, {label, onChange}) and fill(select, options, chosen)         a choice with options from an answer
//   checks(root, page, {field, label, options})            a list of names
//   presets(root, page, {label, presets: {"certain": {left: [..]}, ..}})       buttons that set several fields
//   button(root, {label, onClick})
//   shares(root, page, {field, labels, label, marked: (state) => index})       bars to drag, type or move by arrow keys; sum 1
//
// Each returns its outermost element, `list` its select. `element(name, {attribute: value}, ...children)` makes an element; strings become text, never HTML.

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

function labelled(root, label, ...inputs) {
  const made = element("label", { class: "control" }, element("span", { class: "name" }, label), ...inputs);
  root.append(made);
  return made;
}

// Follow the state, but never overwrite an input while the user types.
function follow(page, field, input, write) {
  page.watch((state) => { if (document.activeElement !== input || input.type === "range") write(state[field]); });
  input.addEventListener("blur", () => write(page.state[field]));
}

export function slider(root, page, { field, label, min, max, step, format = String }) {
  const input = element("input", { type: "range", step, name: field });
  const output = element("output");
  page.watch((state) => {
    input.min = typeof min === "function" ? min(state) : min;
    input.max = typeof max === "function" ? max(state) : max;
  });
  follow(page, field, input, (value) => { input.value = value; output.textContent = format(value); });
  input.addEventListener("input", () => page.set({ [field]: Number(input.value) }));
  return labelled(root, label, input, output);
}

export function number(root, page, { field, label, min, max, step = "any" }) {
  const input = element("input", { type: "number", min, max, step, name: field, inputmode: "decimal" });
  follow(page, field, input, (value) => { input.value = value ?? ""; });
  input.addEventListener("input", () => { if (input.value !== "") page.set({ [field]: Number(input.value) }); });
  return labelled(root, label, input);
}

export function text(root, page, { field, label, placeholder, maxLength }) {
  const input = element("input", { type: "text", name: field, placeholder, maxlength: maxLength, autocomplete: "off", spellcheck: "false" });
  follow(page, field, input, (value) => { input.value = value ?? ""; });
  input.addEventListener("input", () => page.set({ [field]: input.value }));
  return labelled(root, label, input);
}

export function choice(root, page, { field, label, options, also = () => ({}) }) {
  const pairs = options.map((option) => (Array.isArray(option) ? option : [option, String(option)]));
  const input = element("select", { name: field }, ...pairs.map(([, shown], index) => element("option", { value: index }, shown)));
  const same = (left, right) => JSON.stringify(left) === JSON.stringify(right);
  page.watch((state) => { input.selectedIndex = pairs.findIndex(([value]) => same(value, state[field])); });
  input.addEventListener("change", () => {
    const [value] = pairs[input.selectedIndex];
    page.set({ [field]: value, ...also(value, page.state) });
  });
  return labelled(root, label, input);
}

// A drop-down list with entries from the server; `choice` has fixed ones.
export function list(root, { label, onChange }) {
  const select = element("select", { name: label }, element("option", {}, "loading …"));
  select.addEventListener("change", () => onChange(select.value));
  labelled(root, label, select);
  return select;
}

// Set the entries if they changed (an open list would close), and the selection.
export function fill(select, options, chosen) {
  const listed = JSON.stringify(options);
  if (select.dataset.listed !== listed) {
    select.dataset.listed = listed;
    select.replaceChildren(...options.map((option) => {
      const { value, shown, disabled = false } = typeof option === "string" ? { value: option, shown: option } : option;
      return element("option", { value, disabled }, shown);
    }));
  }
  if (select.value !== chosen) select.value = chosen;
}

export function checks(root, page, { field, label, options }) {
  const boxes = options.map((option) => {
    const box = element("input", { type: "checkbox", name: field, value: option });
    box.addEventListener("change", () => {
      const kept = options.filter((other) => (other === option ? box.checked : page.state[field].includes(other)));
      page.set({ [field]: kept });
    });
    return box;
  });
  page.watch((state) => boxes.forEach((box) => { box.checked = state[field].includes(box.value); }));
  const made = element("fieldset", { class: "checks" }, element("legend", {}, label),
    ...boxes.map((box) => element("label", {}, box, element("span", {}, box.value))));
  root.append(made);
  return made;
}

export function button(root, { label, onClick }) {
  const made = element("button", { type: "button" }, label);
  made.addEventListener("click", onClick);
  root.append(made);
  return made;
}

export function presets(root, page, { label, presets: named }) {
  const made = element("div", { class: "presets", role: "group", "aria-label": label }, element("span", { class: "name" }, label));
  for (const [name, changes] of Object.entries(named)) {
    button(made, { label: name, onClick: () => page.set(typeof changes === "function" ? changes(page.state) : changes) });
  }
  root.append(made);
  return made;
}

const round = (value) => Math.round(value * 1e4) / 1e4;

// Set one bar; the others keep their proportions and share the rest.
export function withShare(bars, index, share) {
  const value = Math.min(1, Math.max(0, share));
  const others = bars.reduce((sum, bar, other) => (other === index ? sum : sum + bar), 0);
  const rest = (bar) => (others > 0 ? (bar / others) * (1 - value) : (1 - value) / (bars.length - 1));
  return bars.map((bar, other) => round(other === index ? value : rest(bar)));
}

const STEPS = { ArrowUp: 0.01, ArrowRight: 0.01, ArrowDown: -0.01, ArrowLeft: -0.01, PageUp: 0.1, PageDown: -0.1, Home: -1, End: 1 };

export function shares(root, page, { field, labels, label, marked = () => -1 }) {
  const change = (index, share) => page.set({ [field]: withShare(page.state[field], index, share) });
  const columns = labels.map((name, index) => {
    const fill = element("div", { class: "fill" });
    const bar = element("div", { class: "bar", role: "slider", tabindex: 0, "aria-label": `${label}, ${name}`, "aria-orientation": "vertical",
      "aria-valuemin": 0, "aria-valuemax": 1 }, fill);
    const input = element("input", { type: "text", inputmode: "decimal", "aria-label": `${label}, share of ${name}`, autocomplete: "off" });
    const drag = (event) => {
      const box = bar.getBoundingClientRect();
      change(index, round(Math.round((1 - (event.clientY - box.top) / box.height) * 100) / 100));
    };
    bar.addEventListener("pointerdown", (event) => { bar.setPointerCapture(event.pointerId); bar.focus(); drag(event); event.preventDefault(); });
    bar.addEventListener("pointermove", (event) => { if (bar.hasPointerCapture(event.pointerId)) drag(event); });
    bar.addEventListener("keydown", (event) => {
      const step = STEPS[event.key];
      if (step === undefined) return;
      event.preventDefault();
      change(index, page.state[field][index] + (event.shiftKey ? 10 * step : step));
    });
    input.addEventListener("change", () => {
      const share = Number(input.value.replace(",", "."));
      if (input.value.trim() === "" || !(share >= 0 && share <= 1)) page.say(`Expected a probability from 0 to 1, not "${input.value}".`);
      else change(index, share);
    });
    const column = element("div", { class: "share" }, bar, element("span", { class: "digit" }, name), input);
    page.watch((state) => {
      const value = state[field]?.[index] ?? 0;
      fill.style.height = `${Math.min(1, Math.max(0, value)) * 100}%`;
      bar.setAttribute("aria-valuenow", value);
      column.classList.toggle("target", marked(state) === index);
      if (document.activeElement !== input) input.value = String(Math.round(value * 1e3) / 1e3);
    });
    input.addEventListener("blur", () => { input.value = String(Math.round(page.state[field][index] * 1e3) / 1e3); });
    return column;
  });
  const made = element("div", { class: "shares", role: "group", "aria-label": label }, ...columns);
  root.append(made);
  return made;
}
