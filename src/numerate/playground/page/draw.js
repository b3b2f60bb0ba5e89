// Plots as SVG. Each function replaces the content of `root`, an element of the page, and takes its width.
// Colours are CSS variables, which follow the light or dark scheme. `title` describes the plot; the text alternative adds all values.
//
//   curves(root, {title, x, series: [{name, values, colour}], xLabel, yLabel, marked, height})      null in values: a gap
//   heatmap(root, {title, values: [[..]], labels, columnLabels, low, high, xLabel, yLabel})
//   arrows(root, {title, values, labels, scale, marked, width})     up for values above 0; scale: the longest arrow; marked: the index
//                                                                   that is right; width: of many pictures, measured once
//
// `colour(index)` is the colour of the n-th series. `show(value)` formats a number with four digits.

const SVG = "http://www.w3.org/2000/svg";
const FONT = 12;

export function show(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size >= 1e5 || size < 1e-4 ? value.toExponential(digits - 1) : String(Number(value.toPrecision(digits)));
}

export const colour = (index) => `var(--c${(index % 10) + 1})`;
const dash = (index) => ["none", "7 3", "2 3"][Math.floor(index / 10) % 3];

export function shape(parent, name, attributes = {}, style = {}, text = null) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  for (const [key, value] of Object.entries(style)) made.style.setProperty(key, value);
  if (text !== null) made.textContent = text;
  parent.append(made);
  return made;
}

// An empty plot of the root's width, with its text alternative.
export function picture(root, height, title, values, wide = root.clientWidth) {
  const width = Math.max(120, Math.floor(wide));
  root.replaceChildren();
  const made = shape(root, "svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `${title}. ${values}` });
  return [made, width];
}

const label = (parent, x, y, text, anchor = "middle", extra = {}) =>
  shape(parent, "text", { x, y, "text-anchor": anchor, "font-size": FONT, ...extra }, { fill: "var(--ink)" }, text);

const tip = (parent, text) => shape(parent, "title", {}, {}, text);

export function ticks(low, high, count = 5) {
  const span = high - low || Math.abs(high) || 1;
  const rough = span / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= rough);
  const found = [];
  for (let index = Math.ceil(low / step - 1e-9); index * step <= high + step * 1e-9; index += 1) found.push(Number((index * step).toPrecision(12)));
  return found;
}

const drawn = new WeakMap(); // the parts of an arrow plot that change; the rest is reused

export function arrows(root, { title, values, labels, scale, marked = -1, height = 74, width: wide = root.clientWidth }) {
  const told = labels.map((name, index) => `${name}: ${show(values[index])}`);
  const key = JSON.stringify([labels, marked, height, wide]);
  if (drawn.get(root)?.key !== key) drawn.set(root, { key, ...emptyArrows(root, { labels, marked, height, wide }) });
  const { svg, width, up, down, none, tips } = drawn.get(root);
  const most = scale ?? Math.max(...values.map(Math.abs), 1e-12);
  const step = width / values.length, middle = (height - 14) / 2;
  const paths = { up: "", down: "", none: "" };
  values.forEach((value, index) => {
    const x = (index + 0.5) * step, long = most > 0 ? (value / most) * (middle - 4) : 0;
    const tip = (middle - long).toFixed(1), head = Math.min(6, Math.abs(long)) * Math.sign(long), neck = (middle - long + head).toFixed(1);
    if (Math.abs(long) < 1) paths.none += `M${x - 1.5} ${middle - 1.5}h3v3h-3Z`;
    else paths[long > 0 ? "up" : "down"] += `M${x - 1.5} ${middle}V${neck}H${x - 5}L${x} ${tip}L${x + 5} ${neck}H${x + 1.5}V${middle}Z`;
    tips[index].textContent = told[index];
  });
  up.setAttribute("d", paths.up); down.setAttribute("d", paths.down); none.setAttribute("d", paths.none);
  svg.setAttribute("aria-label", `${title}. ${told.join(", ")}`);
  return svg;
}

function emptyArrows(root, { labels, marked, height, wide }) {
  const [svg, width] = picture(root, height, "", "", wide);
  const step = width / labels.length, middle = (height - 14) / 2;
  shape(svg, "line", { x1: 0, x2: width, y1: middle, y2: middle }, { stroke: "var(--pale)" });
  const [up, down, none] = ["--c3", "--c2", "--edge"].map((name) => shape(svg, "path", {}, { fill: `var(${name})` }));
  const tips = labels.map((name, index) => {
    label(svg, (index + 0.5) * step, height - 3, name, "middle", index === marked ? { "font-weight": 700 } : {});
    return tip(shape(svg, "rect", { x: index * step, y: 0, width: step, height }, { fill: "transparent" }), "");
  });
  return { svg, width, up, down, none, tips };
}

export function curves(root, { title, x, series, xLabel, yLabel, marked = null, height = 340 }) {
  const told = series.map(({ name, values }) => `${name}: ${x.map((at, index) => `${show(at)} ${show(values[index])}`).join(", ")}`).join("; ");
  const [svg, width] = picture(root, height, title, told);
  const all = series.flatMap(({ values }) => values).filter((value) => value !== null);
  const low = Math.min(0, ...all), high = Math.max(...all, low + 1e-12);
  const rows = ticks(low, high, 5);
  const left = 14 + Math.max(...rows.map((value) => show(value).length)) * 7 + 14, right = width - 10, top = 10, bottom = height - 40;
  const first = x[0], last = x[x.length - 1];
  const across = (value) => left + ((value - first) / (last - first || 1)) * (right - left);
  const up = (value) => bottom - ((value - low) / (high - low)) * (bottom - top);
  for (const value of rows) {
    shape(svg, "line", { x1: left, x2: right, y1: up(value), y2: up(value) }, { stroke: "var(--pale)" });
    label(svg, left - 6, up(value) + 4, show(value), "end");
  }
  for (const value of ticks(first, last, Math.min(10, Math.floor((right - left) / 50)))) label(svg, across(value), bottom + 17, show(value));
  shape(svg, "line", { x1: left, x2: right, y1: up(0), y2: up(0) }, { stroke: "var(--edge)" });
  label(svg, (left + right) / 2, height - 5, xLabel);
  label(svg, 0, 0, yLabel, "middle", { transform: `translate(11 ${(top + bottom) / 2}) rotate(-90)` });
  if (marked !== null) {
    shape(svg, "line", { x1: across(marked), x2: across(marked), y1: top, y2: bottom }, { stroke: "var(--edge)", "stroke-dasharray": "4 4" });
  }
  const few = x.length <= 20;
  series.forEach(({ name, values, colour: tint }, index) => {
    const parts = values.map((value, at) => (value === null ? "" : `${at && values[at - 1] !== null ? "L" : "M"}${across(x[at]).toFixed(2)} ${up(value).toFixed(2)}`));
    const line = shape(svg, "path", { d: parts.join(""), "data-series": name },
      { fill: "none", stroke: tint ?? colour(index), "stroke-width": 2.2, "stroke-dasharray": dash(index), "stroke-linejoin": "round" });
    tip(line, name);
    values.forEach((value, at) => {
      if (value === null || !few) return;
      tip(shape(svg, "circle", { cx: across(x[at]), cy: up(value), r: 3.5 }, { fill: tint ?? colour(index) }), `${name} at ${show(x[at])}: ${show(value)}`);
    });
  });
  const key = document.createElement("ul");
  key.className = "key";
  series.forEach(({ name, colour: tint }, index) => {
    const item = document.createElement("li");
    const swatch = document.createElementNS(SVG, "svg");
    swatch.setAttribute("width", 26); swatch.setAttribute("height", 8); swatch.setAttribute("aria-hidden", "true");
    shape(swatch, "line", { x1: 1, x2: 25, y1: 4, y2: 4 }, { stroke: tint ?? colour(index), "stroke-width": 3, "stroke-dasharray": dash(index) });
    item.append(swatch, name);
    key.append(item);
  });
  root.append(key);
  return svg;
}

export function heatmap(root, { title, values, labels, columnLabels = labels, low = 0, high = 1, xLabel = "", yLabel = "", most = 420 }) {
  const told = values.map((row, index) => `${labels[index]}: ${row.map((value) => show(value)).join(" ")}`).join("; ");
  const width = Math.min(most, Math.max(120, Math.floor(root.clientWidth)));
  const left = 34, bottom = 36;
  const cell = Math.min((width - left - 4) / columnLabels.length, 44);
  const height = Math.ceil(cell * labels.length + bottom + 4);
  const [svg] = picture(root, height, title, told);
  const shade = (value) => Math.min(1, Math.max(0, (value - low) / (high - low || 1)));
  values.forEach((row, down) => row.forEach((value, right) => {
    const y = 4 + (labels.length - 1 - down) * cell, x = left + right * cell;
    const box = shape(svg, "rect", { x, y, width: cell + 0.4, height: cell + 0.4 },
      { fill: `color-mix(in oklab, var(--c1) ${(shade(value) * 100).toFixed(1)}%, var(--paper))` });
    tip(box, `${labels[down]} and ${columnLabels[right]}: ${show(value)}`);
  }));
  const every = Math.ceil(24 / cell);
  labels.forEach((name, index) => {
    if (index % every === 0) label(svg, left - 5, 8 + (labels.length - 0.5 - index) * cell, name, "end");
  });
  columnLabels.forEach((name, index) => {
    if (index % every === 0) label(svg, left + (index + 0.5) * cell, height - bottom + 15, name);
  });
  shape(svg, "rect", { x: left, y: 4, width: cell * columnLabels.length, height: cell * labels.length }, { fill: "none", stroke: "var(--edge)" });
  if (xLabel) label(svg, left + (cell * columnLabels.length) / 2, height - 4, xLabel);
  if (yLabel) label(svg, 0, 0, yLabel, "middle", { transform: `translate(11 ${4 + (cell * labels.length) / 2}) rotate(-90)` });
  return svg;
}
