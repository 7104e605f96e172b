/* The clients of one run, where its time went, and how far the clients of all runs pull apart. */

function renderClients() {
  const run = data.runs[view.client];
  const { clients, share, took_part: rounds, everyone, missing } = run.contribution;
  choices("client-run", "client-choice", data.runs.map((each) => each.label), view.client);
  byId("clients-of").textContent = data.runs.length > 1 ? `: ${run.label}` : "";
  const never = run.clients - everyone;
  byId("clients-note").textContent = [
    everyone > clients.length ? `${clients.length} of ${count(run.clients)} clients are shown: those that are missing, then those with the most examples, ${percent(share.reduce((sum, value) => sum + value, 0), 0)} of all.` : "",
    never > 0 ? `${count(never)} of ${count(run.clients)} clients have not taken part yet.` : "",
  ].filter(Boolean).join(" ");
  byId("missing-key").hidden = !missing.some(Boolean);
  renderOwn(run);
  bars("share", run, share, (i) => `${percent(share[i])} of the examples`, "Share of the examples by client");
  bars("part", run, rounds.map((value) => value / run.finished), (i) => `${count(rounds[i])} of ${count(run.finished)} rounds`, "Rounds taken part in by client");
  renderLabels(run);
  renderSpread(run);
  renderNorms(run);
  renderEvents(run);
}

const gone = (each) => (each ? `missing since round ${each.since}: ${each.why}` : "");

/* One bar for each client; above all bars it says who was missing at the end. */
function bars(id, run, values, say, name, inWords = percent, scale = 100, y = inPercent) {
  const { clients, missing } = run.contribution;
  const points = clients.map((client, i) => ({ client, y: scale * (values[i] ?? 0), known: there(values[i]), gone: missing[i],
    text: [`client ${client}: ${say(i)}`, gone(missing[i])].filter(Boolean).join("\n") }));
  const every = Math.ceil(clients.length / Math.max(4, (byId(id).clientWidth - 60) / 30));
  const known = values.filter(there);
  const away = points.filter((each) => each.gone);
  const ends = known.length ? `, from ${inWords(Math.min(...known))} to ${inWords(Math.max(...known))}` : "";
  const heights = points.map((each) => each.y);
  const [bottom, top] = [Math.min(0, ...heights), Math.max(0, ...heights) || 1];
  draw(id, {
    height: away.length ? 280 : 230, marginTop: away.length ? 62 : 12, y: { ...y, domain: [bottom, top], ticks: 5 },
    x: { type: "band", domain: clients, label: "client", padding: 0.25, ticks: clients.filter((_, i) => i % every === 0) },
    marks: [
      Plot.barY(points, { x: "client", y: "y", fill: colourOf(0), fillOpacity: (each) => (each.gone ? 0.35 : 1) }),
      Plot.ruleX(away, { x: "client", y1: bottom, y2: top, stroke: "var(--warn)", strokeDasharray: "2 3" }),
      Plot.text(away, { x: "client", frameAnchor: "top", text: () => "missing", rotate: -90, textAnchor: "start", dy: -6, lineAnchor: "middle", fill: "var(--warn)", fontWeight: 600 }),
      Plot.tip(points, Plot.pointerX({ x: "client", y: "y", title: "text" })),
    ],
  }, `${name}${ends}${away.length ? `; missing: ${away.map(({ client }) => client).join(", ")}` : ""}`, () => [
    [["client"], [name], ["state"]],
    points.map(({ client, gone: since }, i) => ({ cells: [rowHead(client), say(i), gone(since) || "there"] })),
  ]);
}

const HOW = {
  measured: "What each client measured last, on its own examples, of the model that it received.",
  mixed: "The model's accuracy on the server's test set, weighted as the client's own labels are: what it would be worth to this client. Nobody measured it there.",
};

function renderOwn(run) {
  const { accuracy, by } = run.contribution;
  const metric = data.metrics.find((each) => each.name === run.spread.metric);
  byId("own-figure").hidden = !by || (by === "measured" && !metric);
  if (byId("own-figure").hidden) return;
  byId("own-title").textContent = `${by === "measured" ? capital(metric.name) : "Accuracy"} by client`;
  byId("own-note").textContent = HOW[by];
  const shares = by !== "measured" || metric.percent;
  const inWords = shares ? percent : (value) => inUnits(metric, value);
  bars("own", run, accuracy, (i) => inWords(accuracy[i]), byId("own-title").textContent, inWords, shares ? 100 : 1, shares ? inPercent : {});
}

const rowNames = ({ contribution: { clients, missing } }) => clients.map((client, i) => (missing[i] ? `${client} (missing)` : client));
const missingRows = ({ contribution: { missing } }) => missing.map((_, i) => i).filter((i) => missing[i]);

/* Who holds which labels: known in a simulation, and of sites that share it. */
function renderLabels(run) {
  const { clients, labels } = run.contribution;
  const known = labels.some(Boolean);
  byId("labels-figure").hidden = !known;
  if (!known) return;
  const { names } = run.classes;
  heat("labels", {
    columns: names, rows: rowNames(run),
    marked: missingRows(run), values: labels.map((row) => (row || []).map((value) => value || null)),
    say: (row, column) => `client ${clients[row]}: ${count(labels[row][column])} of class ${names[column]}`,
    x: { label: "class" }, y: { label: "client" }, height: Math.min(760, 90 + 19 * clients.length),
    table: () => [
      [["client"], ...names.map((name) => [name, "number"])],
      clients.map((client, i) => ({ cells: [rowHead(client), ...(labels[i] || names.map(() => null)).map((value) => numeric(there(value) ? count(value) : "–"))] })),
    ],
  }, `Examples by client and class; ${figure(labels.reduce((sum, row) => sum + (row || []).filter(Boolean).length, 0) / clients.length, 2)} classes a client on average`);
}

function renderSpread(run) {
  const { rounds, values } = run.spread;
  byId("spread-figure").hidden = !rounds.length;
  if (!rounds.length) return;
  const metric = data.metrics.find((each) => each.name === run.spread.metric);
  const scale = metric.percent ? 100 : 1;
  const words = (five) => `${inUnits(metric, five[0])} to ${inUnits(metric, five[4])}, middle ${inUnits(metric, five[2])}`;
  const points = rounds.map((x, i) => ({ x, y: scale * values[i][2], five: values[i].map((value) => scale * value), text: `round ${x}: ${words(values[i])}` }));
  const band = (low, high, opacity) => Plot.areaY(points, { x: "x", y1: ({ five }) => five[low], y2: ({ five }) => five[high], fill: colourOf(0), fillOpacity: opacity });
  byId("spread-metric").textContent = capital(metric.name);
  draw("spread", {
    x: roundAxis(run.finished), y: metric.percent ? inPercent : {},
    marks: [band(0, 4, 0.2), band(1, 3, 0.35), ...line(points.map(({ x, y }) => [x, y]), colourOf(1)), ...tips(points)],
  }, `${capital(metric.name)} by client; last round: ${words(values.at(-1))}`, () => [
    [["round", "number"], ...["least", "lower quarter", "middle", "upper quarter", "most"].map((name) => [name, "number"])],
    values.map((five, i) => ({ cells: [numeric(rounds[i]), ...five.map((value) => numeric(inUnits(metric, value)))] })),
  ]);
}

function renderNorms(run) {
  const { clients, rounds, norms } = run.contribution;
  heat("norms", {
    columns: rounds.map(count), at: rounds, rows: rowNames(run), marked: missingRows(run), values: norms,
    say: (row, column) => `client ${clients[row]}, round ${rounds[column]}: ${figure(norms[row][column], 3)}`,
    x: { label: "round", ticks: undefined, tickFormat: roundAxis(1).tickFormat }, y: { label: "client" }, height: Math.min(760, 90 + 17 * clients.length),
    table: () => [[["round", "number"], ...clients.map((client) => [`client ${client}`, "number"])],
      rounds.map((round, i) => ({ cells: [numeric(round), ...norms.map((row) => numeric(figure(row[i], 3)))] }))],
  }, "How far each client's training moved the model, by round");
  byId("norms-note").textContent = rounds.length < run.finished ? `${count(rounds.length)} of ${count(run.finished)} rounds are kept here, evenly spaced.` : "";
}

function renderEvents(run) {
  const events = [
    ...run.refused.map((each) => ({ ...each, text: each.why, what: `client ${each.client} refused` })),
    ...run.guards.map((each) => ({ ...each, what: "guard" })),
  ].sort((a, b) => a.round - b.round);
  byId("events").hidden = !events.length;
  byId("events").replaceChildren(...(events.length ? [table([["round", "number"], ["what"], ["why"]],
    events.map(({ round, what, text: why }) => ({ cells: [numeric(round), what, why] })))] : []));
  const cut = run.refused.length < run.refusals || run.guards.length < run.guarded;
  byId("events-note").textContent = !events.length ? "None: every update was used, and no guard had to act."
    : `${count(run.refusals)} updates refused, ${count(run.guarded)} rounds guarded${cut ? "; the newest are listed" : ""}.`;
}

function renderDivergence() {
  const drawn = data.runs.some((run) => run.divergence.rounds);
  byId("divergence-figure").hidden = !drawn;
  if (drawn) {
    const values = data.runs.flatMap((run) => run.divergence.values || []).filter((value) => value > 0);
    const [least = 1, most = 10] = d3.extent(values);
    const all = [-3, -2, -1, 0, 1, 2, 3, 4, 5, 6].flatMap((ten) => [1, 2, 5].map((one) => one * 10 ** ten));
    const ends = [all.findLast((value) => value <= least) ?? least, all.find((value) => value >= most && value > least) ?? most];
    const { y, marks } = logAxis(all.filter((value) => value >= ends[0] && value <= ends[1]), ends);
    overlay("divergence", (run) => run.divergence.rounds && { x: run.divergence.rounds, y: run.divergence.values }, (value) => figure(value, 3), "How much the clients pull apart", y, { marks });
  }
  const reasons = new Map();
  for (const run of data.runs) {
    const { missing } = run.divergence;
    if (run.finished && missing) reasons.set(missing, [...(reasons.get(missing) || []), run.label]);
  }
  byId("divergence-note").textContent = [...reasons].map(([reason, labels]) =>
    `How much the clients pull apart is not known${data.runs.length > 1 ? ` for ${labels.join(", ")}` : ""}: ${reason}.`).join(" ");
}

function renderTime() {
  const names = [...new Set(data.runs.flatMap((run) => run.time.parts.map((part) => part.name)))];
  const several = data.runs.length > 1;
  const shares = (run) => el("div", { class: "bar", "aria-hidden": "true" }, ...run.time.parts.map((part) =>
    el("span", { style: { width: `${total(run) ? (100 * part.total) / total(run) : 0}%`, background: colourOf(names.indexOf(part.name)) } })));
  byId("totals").replaceChildren(table(
    [...(several ? [["run"]] : []), ["total", "number"], ...names.map((name) => [name, "number"]), ["shares"]],
    data.runs.map((run, i) => {
      const all = total(run);
      const of = (name) => run.time.parts.find((part) => part.name === name)?.total ?? 0;
      return { cells: [
        ...(several ? [rowHead(swatch(i), run.label)] : []), numeric(duration(all)),
        ...names.map((name) => numeric(`${duration(of(name))} (${percent(all ? of(name) / all : 0, 1)})`)), shares(run),
      ] };
    })));
  const run = data.runs[view.client];
  byId("time-run").textContent = several ? `: ${run.label}` : "";
  const { rounds, parts } = run.time;
  const points = parts.flatMap(({ name, seconds }) => rounds.map((x, i) => ({ x, y: seconds[i] ?? 0, name })));
  const told = rounds.map((x, i) => ({ x, y: parts.reduce((sum, { seconds }) => sum + (seconds[i] ?? 0), 0),
    text: `round ${x}\n${parts.map(({ name, seconds }) => `${name} ${figure(seconds[i], 3)} s`).join("\n")}` }));
  draw("seconds", {
    height: 230, x: roundAxis(run.finished), y: { tickFormat: (value) => `${figure(value)} s`, zero: true },
    marks: [
      rounds.length > 1 ? Plot.areaY(points, { x: "x", y: "y", z: "name", fill: ({ name }) => colourOf(names.indexOf(name)) })
        : Plot.rectY(points, { x1: 1, x2: 2, y: "y", fill: ({ name }) => colourOf(names.indexOf(name)) }),
      ...tips(told),
    ],
  }, `Seconds a round by part: ${parts.map((part) => `${part.name} ${duration(part.total)} in all`).join(", ")}`, () => [
    [["round", "number"], ...parts.map(({ name }) => [name, "number"])],
    rounds.map((x, i) => ({ cells: [numeric(x), ...parts.map(({ seconds }) => numeric(`${figure(seconds[i], 3)} s`))] })),
  ]);
  byId("parts").replaceChildren(...names.map((name, n) => el("span", {}, el("span", { class: "dot", style: { background: colourOf(n), borderRadius: "2px" } }), ` ${name}`)));
}

function renderSettings() {
  const several = data.runs.length > 1;
  byId("settings-note").textContent = several ? "Those that differ between the runs come first." : "";
  byId("settings-table").replaceChildren(table(
    [["setting"], ...data.runs.map((run) => [several ? run.label : "value"])],
    data.settings.map((row) => ({
      ...(row.differs ? { class: "differs" } : {}),
      cells: [rowHead(el("code", {}, row.name), el("small", {}, row.help)), ...row.values],
    }))));
}

byId("client-run").addEventListener("change", (event) => { view.client = Number(event.target.value); renderClients(); renderTime(); });
