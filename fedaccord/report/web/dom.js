/* Words, numbers and elements. Text from a run goes into the page by textContent alone. */

const byId = (id) => document.getElementById(id);
const there = (value) => value !== null && value !== undefined;
const figure = (value, digits = 4) => (there(value) ? String(Number(value.toPrecision(digits))) : "–");
const percent = (value, digits = 2) => (there(value) ? `${(100 * value).toFixed(digits)} %` : "–");
const signed = (value) => (there(value) ? `${value > 0 ? "+" : ""}${figure(100 * value, 3)} %` : "–");
const inUnits = (metric, value) => (metric.percent ? percent(value) : figure(value));
const tested = (metric) => (metric.name.startsWith("test") ? metric.name : `test ${metric.name}`);
const count = (value) => value.toLocaleString("en");
const size = (bytes) => (bytes < 1e6 ? `${figure(bytes / 1e3, 3)} kB` : `${figure(bytes / 1e6, 3)} MB`);
const capital = (word) => word.charAt(0).toUpperCase() + word.slice(1);
const sentence = (words) => capital(words) + (/[.!?]$/.test(words) ? "" : ".");
const total = (run) => run.time.parts.reduce((sum, part) => sum + part.total, 0);
const onPaper = () => "paper" in document.documentElement.dataset;

function duration(seconds) {
  if (seconds < 59.5) return `${figure(seconds, 3)} s`;
  const short = seconds < 3570;
  const whole = Math.round(short ? seconds : seconds / 60);
  return `${Math.floor(whole / 60)} ${short ? "min" : "h"} ${whole % 60} ${short ? "s" : "min"}`;
}

function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "style") Object.assign(node.style, value);
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value);
  }
  node.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return node;
}

/* A table whose rows become cards on a narrow screen, where each cell carries its column's name. That takes the display
   of a table away, and with it what a screen reader is told, so the roles are said. */
function table(head, rows) {
  const isCell = (value) => value instanceof Node && ["TD", "TH"].includes(value.tagName);
  const cell = (value, column) => {
    const node = isCell(value) ? value : el("td", {}, value);
    node.setAttribute("role", node.tagName === "TH" ? "rowheader" : "cell");
    if (node.tagName === "TD") node.dataset.name = head[column][0];
    return node;
  };
  const row = ({ cells, ...attributes }) => el("tr", { role: "row", ...attributes }, ...cells.map(cell));
  const names = head.map(([name, kind]) => el("th", { scope: "col", role: "columnheader", class: kind || "" }, name));
  return el("table", { role: "table" },
    el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, ...names)),
    el("tbody", { role: "rowgroup" }, ...rows.map(row)));
}
const numeric = (value, kind = "") => el("td", { class: `number ${kind}` }, value);
const rowHead = (...children) => el("th", { scope: "row" }, ...children);

function choices(id, label, names, chosen) {
  byId(id).replaceChildren(...names.map((name, i) => el("option", { value: i }, name)));
  byId(id).value = chosen;
  byId(label).hidden = names.length < 2;
}
