// A drop-down list whose entries come with an answer of the server, where `choice` of controls.js has fixed ones.

import { element } from "./controls.js";

export function list(root, { label, onChange }) {
  const select = element("select", { name: label }, element("option", {}, "loading …"));
  select.addEventListener("change", () => onChange(select.value));
  const made = element("label", { class: "control" }, element("span", { class: "name" }, label), select);
  root.append(made);
  return select;
}

// Set the entries, if they are others than before, and the one that is chosen.
export function fill(select, options, chosen) {
  const before = [...select.options].map((option) => option.value);
  if (before.length !== options.length || before.some((value, index) => value !== options[index])) {
    select.replaceChildren(...options.map((value) => element("option", { value }, value)));
  }
  if (select.value !== chosen) select.value = chosen;
}
