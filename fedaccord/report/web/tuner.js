/* How the tuner chose: what it favours in a round, where that went, what it earned, and why it moved. */

const tunedRuns = () => data.runs.filter((run) => run.tuner);
const tunedRun = () => tunedRuns()[view.tuned];

/* The heat map's place of the round that is shown: the newest kept one up to it. */
function place() {
  const { rounds } = tunedRun().tuner.maps;
  return view.round === null ? rounds.length - 1 : Math.max(0, rounds.findLastIndex((round) => round <= view.round));
}

function renderTuner() {
  const runs = tunedRuns();
  byId("untuned").hidden = runs.length > 0;
  byId("tuned").hidden = runs.length === 0;
  if (!runs.length) return;
  view.tuned = Math.min(view.tuned, runs.length - 1);
  const { tuner } = tunedRun();
  const { axes, maps } = tuner;
  view.pair = Math.min(view.pair, maps.pairs.length - 1);
  choices("tuner-run", "tuner-choice", runs.map((run) => run.label), view.tuned);
  choices("pair", "pair-choice", maps.pairs.map(({ x, y }) => `${axes[x].label} × ${axes[y].label}`), view.pair);
  byId("tuner-of").textContent = data.runs.length > 1 ? `: ${tunedRun().label}` : "";
  const slider = byId("round");
  slider.max = maps.rounds.length - 1;
  slider.value = place();
  slider.disabled = maps.rounds.length < 2;
  byId("map-note").textContent = (axes.length > 2 ? "What is not shown is summed over. " : "") +
    (maps.rounds.length < tuner.of ? `${count(maps.rounds.length)} of ${count(tuner.of)} rounds are kept here, evenly spaced.` : "");
  renderSentences(tuner);
  renderRound();
}

/* All that depends on the slider. */
function renderRound() {
  const run = tunedRun();
  const { axes, maps, notes } = run.tuner;
  const at = place();
  const round = maps.rounds[at];
  const note = notes.find((each) => each.round === round);
  const mean = axes.map((_, d) => meanAt(run.tuner, round, d));
  const named = (values) => axes.map((each, d) => `${each.label} ${figure(values[d])}`).join(", ");
  renderMap(run.tuner, at, round, named(note.choice));
  renderMeans(run.tuner, round);
  renderReward(run, round);
  byId("round-shown").textContent = round;
  byId("round").setAttribute("aria-valuetext", `round ${round}: ${named(note.choice)}`);
  const detail = (name, value) => [el("dt", {}, name), el("dd", {}, value)];
  byId("note").replaceChildren(
    el("dl", {}, ...detail("chosen", named(note.choice)), ...detail("mean", named(mean)),
      ...detail("probability", percent(note.p)), ...detail("reward", signed(note.reward))),
    ...note.why.split("; ").filter(Boolean).map((each) => el("p", { class: "why" }, `${capital(each)}.`)),
    ...(note.guard ? [el("p", { class: "guard" }, `Guard: ${note.guard}.`)] : []));
  for (const row of byId("sentences").querySelectorAll("tbody tr")) {
    row.classList.toggle("current", Number(row.dataset.round) === round);
  }
}

function renderMap({ axes, maps }, at, round, chosen) {
  const { x, y, p } = maps.pairs[view.pair];
  const [across, up] = [axes[x], axes[y]];
  const flat = axes.length === 1;
  const rows = flat ? [""] : up.values.map((value) => figure(value, 3));
  const width = across.values.length;
  const values = rows.map((_, row) => p[at].slice(row * width, (row + 1) * width));
  const point = (places) => [{ x: places[x], y: flat ? 0 : places[y] }];
  byId("map-title").textContent = `Which ${across.label}${across.label.endsWith("s") ? "" : "s"}${flat ? "" : ` and ${up.label}`} the tuner favours in round `;
  heat("map", {
    columns: across.values.map((value) => figure(value, 3)), rows, values, most: Math.max(...p.map((each) => Math.max(...each))),
    say: (row, column) => `${across.label} ${figure(across.values[column])}\n${flat ? "" : `${up.label} ${figure(up.values[row])}\n`}probability ${percent(values[row][column])}`,
    x: { label: across.label }, y: { label: flat ? null : up.label, domain: [-0.5, rows.length - 0.5] }, height: flat ? 130 : 340,
    marks: [
      Plot.dot(point(maps.mu[at]), { x: "x", y: "y", symbol: "diamond", r: 7, fill: "var(--panel)", stroke: "var(--text)", strokeWidth: 2 }),
      Plot.dot(point(maps.at[at]), { x: "x", y: "y", r: 6, fill: "var(--series-1)", stroke: "var(--text)" }),
    ],
    table: () => [
      [[across.label, "number"], ...(flat ? [] : [[up.label, "number"]]), ["probability", "number"]],
      values.flatMap((row, j) => row.map((value, i) => ({ value, cells: [figure(across.values[i]), ...(flat ? [] : [figure(up.values[j])]), percent(value)] })))
        .filter(({ value }) => value >= 0.001).sort((a, b) => b.value - a.value).map(({ cells }) => ({ cells: cells.map((each) => numeric(each)) })),
    ],
  }, `How likely each choice was in round ${round}; chosen: ${chosen}`);
}

function meanAt(tuner, round, d) {
  const { rounds, axes } = tuner.curves;
  return axes[d].mean[Math.max(0, rounds.findLastIndex((each) => each <= round))];
}

/* A line at the round that the slider shows. */
const here = (round) => Plot.ruleX([round], { stroke: "var(--muted)", strokeDasharray: "2 3" });

function renderMeans(tuner, round) {
  const caption = "Line: the mean of what the tuner favours. Band: one standard deviation to either side, as far as the grid goes. Dots: what was chosen.";
  figures(byId("means"), tuner.axes.map((each, d) => ({ id: `mean-${d}`, title: `${capital(each.label)}, round by round`, caption })));
  tuner.axes.forEach((each, d) => {
    const { mean, low, high, drawn } = tuner.curves.axes[d];
    const points = tuner.curves.rounds.map((x, i) => ({ x, y: mean[i], low: low[i], high: high[i], drawn: drawn[i],
      text: `round ${x}\nmean ${figure(mean[i])} (${figure(low[i])} to ${figure(high[i])})\nchosen ${figure(drawn[i])}` }));
    const ends = [each.values[0], each.values.at(-1)];
    const stops = each.values.filter((_, i) => i % Math.ceil(each.values.length / 6) === 0);
    const { y, marks } = each.log ? logAxis(stops, ends) : { y: { domain: ends, ticks: stops }, marks: [] };
    draw(`mean-${d}`, {
      height: 240, x: roundAxis(points.at(-1).x), y,
      marks: [
        ...marks,
        Plot.areaY(points, { x: "x", y1: "low", y2: "high", fill: colourOf(0), fillOpacity: 0.2 }),
        Plot.dot(points, { x: "x", y: "drawn", r: 2, fill: "var(--muted)", fillOpacity: 0.7 }),
        ...line(points.map(({ x, y }) => [x, y]), colourOf(0)), here(round), ...tips(points),
      ],
    }, `Mean of ${each.label} by round, from ${figure(mean[0])} to ${figure(mean.at(-1))}`, () => [
      [["round", "number"], ["mean", "number"], ["from", "number"], ["to", "number"], ["chosen", "number"]],
      points.map((point) => ({ cells: [point.x, ...[point.y, point.low, point.high, point.drawn].map((value) => figure(value))].map((value) => numeric(value)) })),
    ]);
  });
}

function renderReward(run, round) {
  const { rounds, reward, baseline } = run.tuner.curves;
  const per = (value) => (there(value) ? 100 * value : null);
  const known = new Map(rounds.map((each, i) => [each, per(reward[i])]));
  const points = rounds.map((x, i) => ({ x, y: per(reward[i]), base: per(baseline[i]), text: `round ${x}\nreward ${signed(reward[i])}\nbaseline ${signed(baseline[i])}` }));
  const guards = run.guards.map(({ round: x }) => ({ x, y: known.get(x) ?? 0 }));
  byId("guard-key").hidden = guards.length === 0;
  draw("reward", {
    height: 250, x: roundAxis(run.finished), y: inPercent,
    marks: [
      Plot.ruleY([0], { stroke: "var(--muted)" }),
      Plot.dot(points.filter(({ y }) => there(y)), { x: "x", y: "y", r: 2.2, fill: colourOf(0), fillOpacity: 0.8 }),
      Plot.line(points, { x: "x", y: "base", stroke: colourOf(1), strokeWidth: 2 }),
      Plot.dot(guards, { x: "x", y: "y", symbol: "times", r: 5, stroke: "var(--warn)", strokeWidth: 2 }),
      here(round), ...tips(points.filter(({ y }) => there(y))),
    ],
  }, `Reward and baseline by round; guards acted in ${run.guarded} rounds`, () => [
    [["round", "number"], ["reward", "number"], ["baseline", "number"]],
    rounds.map((x, i) => ({ cells: [numeric(x), numeric(signed(reward[i])), numeric(signed(baseline[i]))] })),
  ]);
}

function renderSentences(tuner) {
  let listed = tuner.notes.filter((note) => note.listed);
  const every = Math.ceil(listed.length / 20);
  if (onPaper()) listed = listed.filter((_, i) => i % every === 0);
  const jump = (note) => el("button", { type: "button", title: "show this round above", "aria-label": `show round ${note.round} above`,
    onclick: () => { show(note.round); byId("map").scrollIntoView({ block: "center" }); } }, note.round);
  byId("sentences").replaceChildren(table(
    [["round"], ...tuner.axes.map((each) => [each.label, "number"]), ["reward", "number"], ["why"]],
    listed.map((note) => ({
      "data-round": note.round,
      cells: [
        jump(note), ...note.choice.map((value) => numeric(figure(value))), numeric(signed(note.reward)),
        el("td", { class: "sentence" }, el("div", {}, ...note.why.split("; ").filter(Boolean).map((each) => el("span", {}, capital(each))),
          ...(note.guard ? [el("span", { class: "guard" }, `Guard: ${note.guard}`)] : []))),
      ],
    }))));
  const all = `${count(tuner.moved)} of ${count(tuner.of)} rounds changed the tuner or were guarded`;
  byId("sentences-note").textContent = listed.length < tuner.moved ? `${all}; ${count(listed.length)} of them are listed, evenly spaced.` : `${all}.`;
}

// what the reader does

let playing = null;

function show(round) {
  const { rounds } = tunedRun().tuner.maps;
  view.round = round >= rounds.at(-1) ? null : round;
  byId("round").value = place();
  renderRound();
}

function stop() {
  clearInterval(playing);
  playing = null;
  byId("play").textContent = "Play";
  byId("note").setAttribute("aria-live", "polite");
}

function play() {
  if (playing) return stop();
  if (view.round === null) show(tunedRun().tuner.maps.rounds[0]);
  byId("play").textContent = "Pause";
  byId("note").setAttribute("aria-live", "off"); // nobody can listen that fast
  playing = setInterval(() => {
    const { rounds } = tunedRun().tuner.maps;
    show(rounds[Math.min(place() + 1, rounds.length - 1)]);
    if (view.round === null) stop();
  }, matchMedia("(prefers-reduced-motion: reduce)").matches ? 1000 : 150);
}

byId("play").addEventListener("click", play);
byId("round").addEventListener("input", (event) => { stop(); show(tunedRun().tuner.maps.rounds[Number(event.target.value)]); });
byId("pair").addEventListener("change", (event) => { view.pair = Number(event.target.value); renderRound(); });
byId("tuner-run").addEventListener("change", (event) => {
  stop();
  Object.assign(view, { tuned: Number(event.target.value), round: null, pair: 0 });
  renderTuner();
});
