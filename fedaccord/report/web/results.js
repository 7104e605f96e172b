/* What came out: the sentences on top, the table of the runs, the curves, the classes. */

function renderHeader() {
  const runs = data.runs;
  const facts = [];
  const fact = (name, value, kind = "") => facts.push(el("div", { class: kind }, el("dt", {}, name), el("dd", {}, value)));
  const shared = (name) => runs.every((run) => run[name] === runs[0][name]);
  const words = { task: "task", method: "method", split: "split", clients: "clients", fraction: "clients a round", seed: "seed" };
  for (const [name, word] of Object.entries(words)) {
    if (shared(name) && !(name === "task" && runs[0].task === "python")) fact(word, name === "fraction" ? percent(runs[0][name], 0) : runs[0][name]);
  }
  if (runs.length === 1) {
    const [run] = runs;
    fact("rounds finished", `${count(run.finished)} of ${count(run.rounds)}${run.stopped ? ", ended early" : ""}`);
    data.metrics.forEach((metric, m) => fact(tested(metric), inUnits(metric, run.metrics[m].last), "result"));
    fact("loss", figure(run.loss), "result");
    if (there(run.best)) fact("best round", count(run.best));
    if (run.bytes) fact("sent a round", size(run.bytes / run.finished));
  } else {
    fact("runs", runs.length);
  }
  byId("summary").replaceChildren(...data.summary.map((each) => el("p", {}, each)));
  byId("facts").replaceChildren(...facts);
  byId("names").replaceChildren(...data.names.flatMap(([name, about]) => [el("dt", {}, name), el("dd", {}, sentence(about))]));
  const away = runs.flatMap((run) => run.absent.map((each) => (runs.length > 1 ? `${run.label}: ${each}.` : `${capital(each)}.`)));
  const more = away.length > 6 ? [`There are ${count(away.length - 5)} more such notes; the charts of the clients have them all.`] : [];
  const absent = [...away.slice(0, more.length ? 5 : 6), ...more];
  byId("absent").hidden = !absent.length;
  if (byId("absent").dataset.said !== absent.join()) { // it is read out whenever it changes
    byId("absent").dataset.said = absent.join();
    byId("absent").replaceChildren(...absent.map((each) => el("p", {}, each)));
  }
  byId("empty").hidden = runs.some((run) => run.finished);
  for (const id of ["results", "tuner", "method", "clients", "time", "nav"]) byId(id).hidden = !runs.some((run) => run.finished);
}

/* Whether this run is in the charts that show all runs. */
function toggle(i) {
  const box = el("input", { type: "checkbox", title: "show this run in the charts", onchange: () => {
    view.hidden.delete(i) || view.hidden.add(i);
    renderCurves();
    renderClasses();
    renderScalars();
    renderDivergence();
  } });
  box.checked = !view.hidden.has(i);
  return box;
}

function renderResults() {
  const several = data.runs.length > 1;
  const last = (run, m) => run.metrics[m]?.last ?? null;
  const tops = data.metrics.map(({ higher }, m) => {
    const known = data.runs.map((run) => last(run, m)).filter(there);
    return known.length ? Math[higher ? "max" : "min"](...known) : undefined;
  });
  byId("overview").hidden = !several;
  byId("overview").replaceChildren(...(several ? [table(
    [["run"], ["rounds", "number"], ...data.metrics.flatMap((metric) => [[tested(metric), "number"], ["best", "number"]]), ["loss", "number"], ["sent a round", "number"], ["time", "number"]],
    data.runs.map((run, i) => ({ cells: [
      rowHead(el("label", {}, toggle(i), swatch(i), run.label)),
      numeric(`${count(run.finished)} of ${count(run.rounds)}`),
      ...data.metrics.flatMap((metric, m) => [
        numeric(inUnits(metric, last(run, m)), last(run, m) === tops[m] ? "best" : ""), numeric(inUnits(metric, run.metrics[m]?.best)),
      ]),
      numeric(figure(run.loss)), numeric(run.bytes ? size(run.bytes / run.finished) : "–"), numeric(duration(total(run))),
    ] })))] : []));
  renderCurves();
  renderClasses();
}

function renderCurves() {
  const best = data.runs.map((run, i) => ({ i, x: run.best })).filter(({ i, x }) => there(x) && !view.hidden.has(i));
  const marks = best.map(({ i, x }) => Plot.ruleX([x], { stroke: colourOf(i), strokeDasharray: "2 3" }));
  const own = data.runs.some((run) => run.spread.rounds.length);
  const measured = own ? "By the clients where they measured it themselves (their mean), otherwise the server's model on the test set."
    : "The server's model on the test set, in the rounds in which it was tested.";
  figures(byId("curves"), [
    ...data.metrics.map((metric, m) => ({ id: `metric-${m}`, title: capital(tested(metric)), caption: `${measured} ${metric.higher ? "Higher" : "Lower"} is better.` })),
    { id: "loss", title: "Loss", caption: `How wrong the model is: on the server's own small set after each round or, where the clients report it, on their examples as they received it, before the round. Lower is better.${best.length ? " A dotted line marks the best round." : ""}` },
  ]);
  data.metrics.forEach((metric, m) => {
    const scale = metric.percent ? 100 : 1;
    overlay(`metric-${m}`, ({ metrics: { [m]: curve } }) => curve && { x: curve.rounds, y: curve.values.map((value) => scale * value) },
      (value) => (there(value) ? inUnits(metric, value / scale) : "–"), capital(tested(metric)), metric.percent ? inPercent : {}, { marks });
  });
  overlay("loss", (run) => ({ x: run.curves.rounds, y: run.curves.loss }), figure, "Loss", {}, { marks });
}

/* The handed-out model, class by class: one dot for each run. */
function renderClasses() {
  const known = data.runs.map((run, i) => ({ run, i })).filter(({ run }) => run.classes?.accuracy.length);
  byId("classes-figure").hidden = !known.length;
  if (!known.length) return;
  const names = [...new Set(known.flatMap(({ run }) => run.classes.names))];
  const visible = known.filter(({ i }) => !view.hidden.has(i));
  const room = byId("classes").clientWidth / names.length;
  const beside = Math.min(11, (0.7 * room) / Math.max(1, visible.length)); // side by side: equal values would hide each other
  const dots = visible.flatMap(({ run, i }) => run.classes.names.map((name, k) => ({
    name, run, i, y: there(run.classes.accuracy[k]) ? 100 * run.classes.accuracy[k] : null, of: run.classes.tested[k],
  }))).filter(({ y }) => y !== null);
  const every = Math.ceil(widthOf(names) / room);
  const worst = (run) => dots.filter((each) => each.run === run).sort((a, b) => a.y - b.y)[0];
  const said = known.filter(({ run }) => worst(run)).map(({ run }) => `${data.runs.length > 1 ? `${run.label}: ` : ""}lowest for ${worst(run).name}, ${figure(worst(run).y, 3)} %`);
  byId("classes-note").textContent = said.length ? `${said.map(capital).join("; ")}.` : "";
  draw("classes", {
    x: { type: "point", domain: names, label: "class", ticks: names.filter((_, i) => i % every === 0) },
    y: { domain: [0, 100], ...inPercent },
    marks: [
      Plot.ruleX(names, { stroke: "var(--grid)" }),
      ...visible.map(({ i }, n) => Plot.dot(dots.filter((each) => each.i === i), { x: "name", y: "y", fill: colourOf(i), r: 4.5, dx: beside * (n - (visible.length - 1) / 2) })),
      Plot.tip(dots, Plot.pointer({ x: "name", y: "y", title: ({ name, run, y, of }) => `${run.label}, class ${name}: ${figure(y, 4)} % of ${count(of)}` })),
    ],
  }, `Test accuracy by class; ${said.join("; ")}`, () => [
    [["class"], ...known.map(({ run }) => [run.label, "number"]), ["test examples", "number"]],
    names.map((name) => ({ cells: [rowHead(name), ...known.map(({ run }) => numeric(percent(run.classes.accuracy[run.classes.names.indexOf(name)]))),
      numeric(count(known.map(({ run }) => run.classes.tested[run.classes.names.indexOf(name)]).find(there)))] })),
  ]);
}

function renderMethod() {
  const said = data.runs.flatMap((run) => run.sentences.map((each) => el("li", {}, data.runs.length > 1 ? `${run.label}: ${sentence(each)}` : sentence(each))));
  const any = said.length > 0 || data.runs.some((run) => run.scalars.length);
  byId("method").hidden = byId("method-link").hidden = !any;
  byId("method-sentences").replaceChildren(...said);
  renderScalars();
}

function renderScalars() {
  const names = [...new Set(data.runs.flatMap((run) => run.scalars.map(({ name }) => name)))];
  byId("scalars-note").hidden = !names.length;
  figures(byId("scalars"), names.map((name, n) => ({ id: `scalar-${n}`, title: name, caption: "" })));
  names.forEach((name, n) => overlay(`scalar-${n}`, (run) => {
    const curve = run.scalars.find((each) => each.name === name);
    return curve && { x: curve.rounds, y: curve.values };
  }, figure, name, {}, { height: 210 }));
}
