/* The charts: Observable Plot draws them as SVG, in the colours of page.css. Each has a sentence for those who cannot see
   it, and its figures in a table that is made when somebody unfolds it. */

const SERIES = 7;
const colourOf = (i) => `var(--series-${i % SERIES})`;
const dashOf = (i) => ["solid", "dash", "dot"][Math.floor(i / SERIES) % 3];
const strokeOf = (i) => ({ solid: null, dash: "7 4", dot: "2 3" })[dashOf(i)];
const swatch = (i) => el("span", { class: `swatch ${dashOf(i)}`, style: { borderTopColor: colourOf(i) } });

/* Put a chart where `id` is. `rows`: () -> [head, rows] of its table. */
function draw(id, { marks, x, y, ...options }, summary, rows) {
  const node = byId(id);
  const axis = { label: null, labelArrow: "none", labelAnchor: "center", line: false };
  node.setAttribute("aria-label", summary);
  const picture = Plot.plot({
    width: node.clientWidth, height: 280, marginLeft: 58, marginRight: 14, marginTop: 12, marginBottom: 40,
    style: { background: "none", overflow: "visible" }, color: { type: "identity" }, opacity: { type: "identity" },
    x: { ...axis, ...x }, y: { ...axis, grid: true, ...y }, marks, ...options,
  });
  picture.setAttribute("aria-hidden", "true"); // the summary says it, and the table has it all
  node.replaceChildren(picture);
  if (!node.nextElementSibling?.matches(".figures")) node.after(foldOut());
  const fold = node.nextElementSibling;
  fold.fill = () => {
    const box = el("div", { class: "table tall", role: "region", tabindex: "0", "aria-label": summary }, table(...rows()));
    fold.replaceChildren(fold.firstElementChild, box);
  };
  if (fold.open) fold.fill();
}

function foldOut() {
  return el("details", { class: "figures", ontoggle: (event) => { if (event.target.open) event.target.fill(); } },
    el("summary", {}, "The figures as a table"));
}

/* Have one figure for each chart ({ id, title, caption }) in this box; those that are there already stay. */
function figures(box, charts) {
  const ids = charts.map(({ id }) => id).join(" ");
  if (box.dataset.charts !== ids) {
    box.replaceChildren(...charts.map(({ id }) => el("figure", {}, el("h3", {}), el("div", { id, class: "chart", role: "img" }), el("figcaption", {}))));
    box.dataset.charts = ids;
  }
  charts.forEach(({ title, caption }, i) => {
    box.children[i].querySelector("h3").textContent = title;
    box.children[i].querySelector("figcaption").textContent = caption;
  });
}

/* All charts of a run over its rounds have the same ends, so that they can be read one below the other. */
const roundAxis = (last) => ({ label: "round", domain: [1, Math.max(2, last)], tickFormat: (value) => (Number.isInteger(value) ? count(value) : "") });

/* A logarithmic axis with a label at each of these values; Plot itself would leave some of them out. */
const logAxis = (values, domain) => ({
  y: { type: "log", domain, axis: null, grid: false },
  marks: [Plot.gridY(values), Plot.axisY(values, { text: (value) => figure(value, 3), label: null })],
});
const inPercent = { tickFormat: (value) => `${figure(value)} %` };

/* What a pointer is told at each x: [{ x, y, text }]. */
function tips(points) {
  return [
    Plot.ruleX(points, Plot.pointerX({ x: "x", stroke: "var(--muted)", strokeDasharray: "2 3" })),
    Plot.tip(points, Plot.pointerX({ x: "x", y: "y", title: "text" })),
  ];
}

/* A line through [[x, y]]; of few points each is marked. */
function line(points, colour, dash = null) {
  const given = { x: "0", y: "1", stroke: colour, strokeWidth: 2, strokeDasharray: dash };
  return [Plot.line(points, given), ...(points.length < 40 ? [Plot.dot(points.filter(([, y]) => there(y)), { x: "0", y: "1", fill: colour, r: 2.5 })] : [])];
}
const pairs = (x, y) => x.map((each, i) => [each, y[i]]);

/* One line a run. `of` gives a run's rounds and values, or nothing if it has none; `say` puts a value in words. */
function overlay(id, of, say, name, y, { marks = [], ...options } = {}) {
  const drawn = [];
  const said = [];
  data.runs.forEach((run, i) => {
    const { x, y: values } = of(run) || {};
    if (!x || !x.length) return;
    said.push(`${run.label} ${say(values.findLast(there))}`);
    if (!view.hidden.has(i)) drawn.push({ run, i, points: pairs(x, values) });
  });
  const rounds = new Map();
  for (const { run, points } of drawn) {
    for (const [x, value] of points) {
      if (!there(value)) continue;
      const at = rounds.get(x) || { x, y: value, text: `round ${x}`, values: new Map() };
      at.text += `\n${drawn.length > 1 ? `${run.label}: ` : ""}${say(value)}`;
      rounds.set(x, at.values.set(run, value) && at);
    }
  }
  const listed = [...rounds.values()].sort((a, b) => a.x - b.x);
  draw(id, {
    x: roundAxis(Math.max(...data.runs.map((run) => run.finished))), y,
    marks: [...marks, ...drawn.flatMap(({ i, points }) => line(points, colourOf(i), strokeOf(i))), ...tips(listed)], ...options,
  }, `${name} by round; last value: ${said.join(", ")}`, () => [
    [["round", "number"], ...drawn.map(({ run }) => [run.label, "number"])],
    listed.map(({ x, values }) => ({ cells: [numeric(x), ...drawn.map(({ run }) => numeric(say(values.get(run))))] })),
  ]);
}

/* The width in pixels that the longest of these names takes below an axis. */
const widthOf = (names) => Math.max(34, 12 + 7 * Math.max(...names.map((name) => name.length)));

/* A grid of rectangles, the stronger their colour the more. `columns` and `rows`: names; `at`: the columns' places, where they are not
   0, 1, 2 ...; `values`: by row; `marked`: rows whose name is always there; `say`: (row, column) -> words. */
function heat(id, { columns, rows, at = columns.map((_, i) => i), values, marked = [], most, say, x, y, marks = [], table: made, ...options }, summary) {
  const edge = (i) => (i <= 0 ? at[0] - 0.5 : i >= at.length ? at.at(-1) + 0.5 : (at[i - 1] + at[i]) / 2);
  const cells = rows.flatMap((_, row) => at.map((place, column) => ({ row, place, column, value: values[row]?.[column] }))).filter(({ value }) => there(value));
  const top = most ?? Math.max(...cells.map(({ value }) => value), 0);
  const named = (names, room) => {
    const every = Math.max(1, Math.ceil(names.length / room));
    return names.map((_, i) => i).filter((i) => i % every === 0);
  };
  const widest = Math.max(...rows.map((name) => name.length), 1);
  const across = named(columns, byId(id).clientWidth / Math.max(60, widthOf(columns)));
  draw(id, {
    marginLeft: Math.min(140, 30 + 7.2 * widest + (y?.label ? 14 : 0)),
    x: { domain: [edge(0), edge(at.length)], ticks: across.map((i) => at[i]), tickFormat: (place) => columns[at.indexOf(place)], ...x },
    y: { grid: false, domain: [rows.length - 0.5, -0.5], ticks: [...new Set([...named(rows, 14), ...marked])], tickFormat: (row) => rows[row], ...y },
    marks: [
      Plot.rect(cells, {
        x1: ({ column }) => edge(column), x2: ({ column }) => edge(column + 1), y1: ({ row }) => row - 0.5, y2: ({ row }) => row + 0.5,
        fill: "var(--heat)", fillOpacity: ({ value }) => (top ? 0.04 + 0.96 * (value / top) : 0.04), inset: at.length > 60 ? 0 : 0.5,
      }),
      ...marks,
      Plot.tip(cells, Plot.pointer({ x: "place", y: "row", title: ({ row, column }) => say(row, column) })),
    ],
    ...options,
  }, summary, made);
}
