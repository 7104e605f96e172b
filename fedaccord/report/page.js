/* The report page. `data` is what page_data() made; `view` is what the reader chose; render() draws both, from nothing,
   whenever either changes. Text from a run goes into the page by textContent, and into charts through plain(). */
"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const live = document.body.dataset.live === "yes";
  const view = { tuned: 0, client: 0, pair: 0, round: null, hidden: new Set() }; // round null: the last, and follow it
  let text = byId("data").textContent;
  let data = JSON.parse(text);
  let colours = {};
  let playing = null;

  // words and numbers

  const plain = (value) => String(value).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const figure = (value, digits = 4) => (value === null || value === undefined ? "–" : String(Number(value.toPrecision(digits))));
  const percent = (value, digits = 2) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(digits)} %`);
  const signed = (value) => (value === null || value === undefined ? "–" : `${value > 0 ? "+" : ""}${figure(100 * value, 3)} %`);
  const count = (value) => value.toLocaleString("en");
  function duration(seconds) {
    if (seconds < 59.5) return `${figure(seconds, 3)} s`;
    const whole = Math.round(seconds < 3570 ? seconds : seconds / 60);
    return `${Math.floor(whole / 60)} ${seconds < 3570 ? "min" : "h"} ${whole % 60} ${seconds < 3570 ? "s" : "min"}`;
  }
  const size = (bytes) => (bytes < 1e6 ? `${figure(bytes / 1e3, 3)} kB` : `${figure(bytes / 1e6, 3)} MB`);
  const total = (run) => run.time.parts.reduce((sum, part) => sum + part.total, 0);
  const onPaper = () => "paper" in document.documentElement.dataset;
  const capital = (word) => word.charAt(0).toUpperCase() + word.slice(1);
  const sentence = (words) => capital(words) + (/[.!?]$/.test(words) ? "" : ".");
  const inUnits = (metric, value) => (metric.percent ? percent(value) : figure(value));

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

  function table(head, rows) {
    const cell = (value) => (value instanceof Node && ["TD", "TH"].includes(value.tagName) ? value : el("td", {}, value));
    return el("table", {},
      el("thead", {}, el("tr", {}, ...head.map(([name, kind]) => el("th", { scope: "col", class: kind || "" }, name)))),
      el("tbody", {}, ...rows.map(({ cells, ...attributes }) => el("tr", attributes, ...cells.map(cell)))));
  }
  const numeric = (value, kind = "") => el("td", { class: `number ${kind}` }, value);

  // charts

  function readColours() {
    const style = getComputedStyle(document.documentElement);
    const get = (name) => style.getPropertyValue(`--${name}`).trim();
    colours = {
      text: get("text"), muted: get("muted"), line: get("line"), grid: get("grid"), panel: get("panel"), warn: get("warn"),
      series: [0, 1, 2, 3, 4, 5, 6].map((i) => get(`series-${i}`)),
      map: [0, 1, 2, 3].map((i) => [i / 3, get(`map-${i}`)]),
      font: getComputedStyle(document.body).fontFamily,
    };
  }
  const colourOf = (i) => colours.series[i % colours.series.length];
  const dashOf = (i) => ["solid", "dash", "dot"][Math.floor(i / colours.series.length) % 3];
  const faint = (colour) => colour + "33";

  function axis(title, more) {
    return {
      title: { text: title, standoff: 8, font: { color: colours.muted, size: 12 } },
      gridcolor: colours.grid, zerolinecolor: colours.grid, linecolor: colours.line, tickcolor: colours.line,
      tickfont: { color: colours.muted }, automargin: true, ...more,
    };
  }

  /* All charts of a run over its rounds have the same ends, so that they can be read one below the other. */
  function roundAxis(last, more) {
    const pad = Math.max(0.5, 0.012 * last);
    return axis("round", { zeroline: false, range: [1 - pad, last + pad], unifiedhovertitle: { text: "round %{x}" }, ...more });
  }

  /* 1, 2, 5, 10 ...: Plotly's own labels on a logarithmic axis leave out the zeros. */
  function decades() {
    const tickvals = [];
    for (let ten = 1; ten <= 1e9; ten *= 10) tickvals.push(ten, 2 * ten, 5 * ten);
    return { type: "log", tickvals, ticktext: tickvals.map(count), zeroline: false };
  }

  function draw(id, traces, layout, summary) {
    const node = byId(id);
    node.setAttribute("aria-label", summary);
    const touch = matchMedia("(pointer: coarse)").matches;
    Plotly.react(node, traces, {
      width: node.clientWidth, height: 290, margin: { l: 48, r: 10, t: 10, b: 40 }, showlegend: false,
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", dragmode: touch ? false : "zoom",
      font: { family: colours.font, size: 12, color: colours.text }, uirevision: "stay",
      hoverlabel: { bgcolor: colours.panel, bordercolor: colours.line, font: { family: colours.font, size: 12, color: colours.text }, align: "left" },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: colours.muted, activecolor: colours.text },
      ...layout,
    }, {
      // named one by one: Plotly's own set has a button that sends the chart's data to its makers' server
      modeBarButtons: [["toImage", "resetScale2d"]], plotlyServerURL: "", displaylogo: false, displayModeBar: touch ? false : "hover",
    });
  }

  /* Have one figure for each chart ({ id, title, caption }) in this box; those that are there already stay. */
  function figures(box, charts) {
    const ids = charts.map(({ id }) => id).join(" ");
    if (box.dataset.charts !== ids) {
      for (const old of box.querySelectorAll(".chart")) Plotly.purge(old);
      box.replaceChildren(...charts.map(({ id }) => el("figure", {}, el("h3", {}), el("div", { id, class: "chart", role: "img" }), el("figcaption", {}))));
      box.dataset.charts = ids;
    }
    charts.forEach(({ title, caption }, i) => {
      const [heading, , below] = box.children[i].children;
      heading.textContent = title;
      below.textContent = caption;
    });
  }

  /* One line a run. `of` gives a run's rounds and values, or nothing if it has none. */
  function overlay(id, of, yaxis, format, name, layout) {
    const traces = [];
    const said = [];
    data.runs.forEach((run, i) => {
      const { x, y } = of(run) || {};
      if (!x || !x.length) return;
      const last = y.findLast((value) => value !== null);
      said.push(`${run.label} ${figure(last)}`);
      if (view.hidden.has(i)) return;
      traces.push({
        x, y, name: plain(run.label), type: "scatter", mode: x.length < 40 ? "lines+markers" : "lines", marker: { size: 5 },
        line: { color: colourOf(i), dash: dashOf(i), width: 2 }, hovertemplate: `%{y:${format}}<extra>%{fullData.name}</extra>`,
      });
    });
    const unified = traces.length > 1 && traces.length <= 10;
    const solo = traces.length === 1 ? { hovertemplate: `round %{x}: %{y:${format}}<extra></extra>` } : {};
    draw(id, traces.map((trace) => ({ ...trace, ...solo })), {
      xaxis: roundAxis(Math.max(...data.runs.map((run) => run.finished))),
      yaxis: axis("", yaxis), hovermode: unified ? "x unified" : "closest", ...layout,
    }, `${name} by round; last value: ${said.join(", ")}`);
    return traces.length;
  }

  // the parts of the page

  function renderHeader() {
    const runs = data.runs;
    const facts = [];
    const fact = (name, value, kind = "") => facts.push(el("div", { class: kind }, el("dt", {}, name), el("dd", {}, value)));
    const shared = (name) => runs.every((run) => run[name] === runs[0][name]);
    const words = { task: "task", method: "method", split: "split", clients: "clients", fraction: "C", seed: "seed" };
    for (const [name, word] of Object.entries(words)) if (shared(name)) fact(word, runs[0][name]);
    if (runs.length === 1) {
      const [run] = runs;
      fact("rounds finished", `${count(run.finished)} of ${count(run.rounds)}`);
      data.metrics.forEach((metric, m) => fact(`test ${metric.name}`, inUnits(metric, run.metrics[m].last), "result"));
      fact("loss", figure(run.loss), "result");
      if (run.bytes) fact("sent a round", size(run.bytes / run.finished));
    } else {
      fact("runs", runs.length);
    }
    byId("facts").replaceChildren(...facts);
    const absent = runs.flatMap((run) => run.absent.map((each) => el("p", {}, runs.length > 1 ? `${run.label}: ${each}.` : `${capital(each)}.`)));
    byId("absent").hidden = !absent.length;
    byId("absent").replaceChildren(...absent);
    byId("empty").hidden = runs.some((run) => run.finished);
    for (const id of ["results", "tuner", "method", "clients", "time", "nav"]) byId(id).hidden = !runs.some((run) => run.finished);
  }

  const swatch = (i) => el("span", { class: `swatch ${dashOf(i)}`, style: { borderTopColor: colourOf(i) } });

  /* Whether this run is in the charts that show all runs. */
  function toggle(i) {
    const box = el("input", { type: "checkbox", title: "show this run in the charts", onchange: () => {
      view.hidden.delete(i) || view.hidden.add(i);
      renderCurves();
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
      const known = data.runs.map((run) => last(run, m)).filter((value) => value !== null);
      return known.length ? Math[higher ? "max" : "min"](...known) : undefined;
    });
    byId("overview").replaceChildren(...(several ? [table(
      [["run"], ["rounds", "number"], ...data.metrics.flatMap(({ name }) => [[`test ${name}`, "number"], ["best", "number"]]), ["loss", "number"], ["sent a round", "number"], ["time", "number"]],
      data.runs.map((run, i) => ({ cells: [
        el("th", { scope: "row" }, el("label", {}, toggle(i), swatch(i), run.label)),
        numeric(`${count(run.finished)} of ${count(run.rounds)}`),
        ...data.metrics.flatMap((metric, m) => [
          numeric(inUnits(metric, last(run, m)), last(run, m) === tops[m] ? "best" : ""), numeric(inUnits(metric, run.metrics[m]?.best)),
        ]),
        numeric(figure(run.loss)), numeric(run.bytes ? size(run.bytes / run.finished) : "–"), numeric(duration(total(run))),
      ] })))] : []));
    renderCurves();
  }

  function renderCurves() {
    const own = data.runs.some((run) => run.spread.rounds.length);
    const tested = own ? "By the clients where they measured it themselves (their mean), otherwise the server's model on the test set."
      : "The server's model on the test set, in the rounds in which it was tested.";
    figures(byId("curves"), [
      ...data.metrics.map(({ name, higher }, m) => ({ id: `metric-${m}`, title: `Test ${name}`, caption: `${tested} ${higher ? "Higher" : "Lower"} is better.` })),
      { id: "loss", title: "Loss", caption: "L of the server's model after each round. The tuner's reward is by how much it fell." },
    ]);
    data.metrics.forEach((metric, m) => overlay(`metric-${m}`,
      ({ metrics: { [m]: curve } }) => curve && { x: curve.rounds, y: curve.values.map((value) => (metric.percent ? 100 * value : value)) },
      { ticksuffix: metric.percent ? " %" : "", zeroline: false }, metric.percent ? ".2f" : ".4~g", `Test ${metric.name}${metric.percent ? " in percent" : ""}`));
    overlay("loss", (run) => ({ x: run.curves.rounds, y: run.curves.loss }), { zeroline: false }, ".4~f", "Loss");
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
    }, { zeroline: false }, ".4~g", name, { height: 210 }));
  }

  const tunedRuns = () => data.runs.filter((run) => run.tuner);
  const tunedRun = () => tunedRuns()[view.tuned];

  /* The heat map's place of the round that is shown: the newest kept one up to it. */
  function place() {
    const { rounds } = tunedRun().tuner.maps;
    return view.round === null ? rounds.length - 1 : Math.max(0, rounds.findLastIndex((round) => round <= view.round));
  }

  function choices(id, label, names, chosen) {
    byId(id).replaceChildren(...names.map((name, i) => el("option", { value: i }, name)));
    byId(id).value = chosen;
    byId(label).hidden = names.length < 2;
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
    byId("tuner-of").textContent = data.runs.length > 1 && runs.length === 1 ? `: ${tunedRun().label}` : "";
    const slider = byId("round");
    slider.max = maps.rounds.length - 1;
    slider.value = place();
    slider.disabled = maps.rounds.length < 2;
    byId("map-note").textContent = (axes.length > 2 ? "The axes that are not shown are summed out. " : "") +
      (maps.rounds.length < tuner.of ? `${count(maps.rounds.length)} of ${count(tuner.of)} rounds are kept here, evenly spaced.` : "");
    renderMeans(tuner);
    renderReward(tunedRun());
    renderSentences(tuner);
    renderRound();
  }

  /* All that depends on the slider alone. */
  function renderRound() {
    const { tuner } = tunedRun();
    const { axes, maps } = tuner;
    const at = place();
    const round = maps.rounds[at];
    const note = tuner.notes.find((each) => each.round === round);
    const { x, y, p } = maps.pairs[view.pair];
    const [across, up] = [axes[x], axes[y]];
    const flat = axes.length === 1;
    const rows = flat ? [null] : up.values;
    const z = rows.map((_, row) => p[at].slice(row * across.values.length, (row + 1) * across.values.length));
    const hover = rows.map((value, row) => across.values.map((other, column) =>
      `${across.label} ${figure(other)}<br>${flat ? "" : `${up.label} ${figure(value)}<br>`}P = ${percent(z[row][column])}`));
    const mark = (places, text, marker) => ({
      x: [places[x]], y: [flat ? 0 : places[y]], type: "scatter", mode: "markers", marker, hoverinfo: "text", text: [text],
    });
    const named = (values) => axes.map((each, d) => `${each.label} ${figure(values[d])}`).join(", ");
    const width = byId("map").clientWidth;
    const ticks = (values, room) => {
      const every = Math.ceil(values.length / room);
      const kept = values.map((_, i) => i).filter((i) => i % every === 0);
      return { tickvals: kept, ticktext: kept.map((i) => figure(values[i], 3)) };
    };
    const mean = axes.map((each, d) => meanAt(tuner, round, d));
    draw("map", [
      {
        z, type: "heatmap", colorscale: colours.map, zmin: 0, zmax: Math.max(...p.map((values) => Math.max(...values))), xgap: 1, ygap: 1,
        hoverinfo: "text", text: hover,
        colorbar: { thickness: 10, outlinewidth: 0, tickformat: ".0~%", tickfont: { color: colours.muted }, title: { text: "P", font: { color: colours.muted } } },
      },
      mark(maps.mu[at], `mean μ: ${plain(named(mean))}`, { symbol: "diamond", size: 11, color: colours.panel, line: { color: colours.text, width: 2 } }),
      mark(maps.at[at], `chosen: ${plain(named(note.choice))}`, { size: 12, color: colours.series[1], line: { color: colours.text, width: 1 } }),
    ], {
      height: flat ? 150 : 340, margin: { l: 48, r: 10, t: 6, b: 40 }, hovermode: "closest", uirevision: `${view.tuned}/${view.pair}`,
      xaxis: axis(across.label, { showgrid: false, zeroline: false, range: [-0.5, across.values.length - 0.5], ...ticks(across.values, width / 55) }),
      yaxis: axis(flat ? "" : up.label, { showgrid: false, zeroline: false, range: [-0.5, rows.length - 0.5], ...(flat ? { visible: false } : ticks(rows, 12)) }),
    }, `Heat map of the probability of each choice in round ${round}; chosen: ${named(note.choice)}`);

    byId("round-shown").textContent = round;
    byId("round").setAttribute("aria-valuetext", `round ${round}: ${named(note.choice)}`);
    const detail = (name, value) => [el("dt", {}, name), el("dd", {}, value)];
    byId("note").replaceChildren(
      el("dl", {}, ...detail("chosen", axes.map((each, d) => `${each.label} ${figure(note.choice[d])}`).join(", ")),
        ...detail("mean μ", named(mean)), ...detail("probability", percent(note.p)), ...detail("reward", signed(note.reward))),
      ...note.why.split("; ").filter(Boolean).map((sentence) => el("p", { class: "why" }, `${capital(sentence)}.`)),
      ...(note.guard ? [el("p", { class: "guard" }, `Guard: ${note.guard}.`)] : []));
    for (const id of [...axes.map((_, d) => `mean-${d}`), "reward"]) {
      Plotly.relayout(byId(id), { shapes: [{ type: "line", x0: round, x1: round, yref: "paper", y0: 0, y1: 1, layer: "below", line: { color: colours.muted, width: 1, dash: "dot" } }] });
    }
    for (const row of byId("sentences").querySelectorAll("tbody tr")) {
      row.classList.toggle("current", Number(row.dataset.round) === round);
    }
  }

  function meanAt(tuner, round, d) {
    const { rounds, axes } = tuner.curves;
    return axes[d].mean[Math.max(0, rounds.findLastIndex((each) => each <= round))];
  }

  function renderMeans(tuner) {
    const caption = "Line: the mean μ. Band: one standard deviation to either side, as far as the grid goes. Dots: what was chosen.";
    figures(byId("means"), tuner.axes.map((each, d) => ({ id: `mean-${d}`, title: capital(each.label), caption })));
    tuner.axes.forEach((each, d) => {
      const { mean, low, high, drawn } = tuner.curves.axes[d];
      const x = tuner.curves.rounds;
      const colour = colourOf(0);
      const edge = { x, type: "scatter", mode: "lines", line: { width: 0, color: colour }, hoverinfo: "skip" };
      const stops = each.values.filter((_, i) => i % Math.ceil(each.values.length / 6) === 0);
      const ends = [each.values[0], each.values.at(-1)].map((value) => (each.log ? Math.log10(value) : value));
      const pad = 0.05 * (ends[1] - ends[0]);
      draw(`mean-${d}`, [
        { ...edge, y: low },
        { ...edge, y: high, fill: "tonexty", fillcolor: faint(colour) },
        { x, y: drawn, type: "scatter", mode: "markers", marker: { size: 4, color: colours.muted, opacity: 0.55 }, hovertemplate: "chosen %{y:.4~g}<extra></extra>" },
        { x, y: mean, customdata: x.map((_, i) => [figure(low[i]), figure(high[i])]), type: "scatter", mode: "lines", line: { color: colour, width: 2 },
          hovertemplate: "mean %{y:.4~g} (%{customdata[0]} to %{customdata[1]})<extra></extra>" },
      ], {
        height: 250, hovermode: "x unified", uirevision: view.tuned,
        xaxis: roundAxis(x.at(-1)),
        yaxis: axis("", { type: each.log ? "log" : "linear", range: [ends[0] - pad, ends[1] + pad], zeroline: false, tickvals: stops, ticktext: stops.map((value) => figure(value, 3)) }),
      }, `Mean of ${each.label} by round, from ${figure(mean[0])} to ${figure(mean.at(-1))}`);
    });
  }

  function renderReward(run) {
    const { rounds, reward, baseline } = run.tuner.curves;
    const per = (values) => values.map((value) => (value === null ? null : 100 * value));
    const known = new Map(rounds.map((round, i) => [round, reward[i]]));
    byId("guard-key").hidden = run.guards.length === 0;
    draw("reward", [
      { x: rounds, y: per(reward), type: "scatter", mode: "markers", marker: { size: 4, color: colourOf(0), opacity: 0.7 }, hovertemplate: "reward %{y:.3~f} %<extra></extra>" },
      { x: rounds, y: per(baseline), type: "scatter", mode: "lines", line: { color: colourOf(1), width: 2 }, hovertemplate: "baseline %{y:.3~f} %<extra></extra>" },
      { x: run.guards.map(({ round }) => round), y: run.guards.map(({ round }) => 100 * (known.get(round) ?? 0)), text: run.guards.map((guard) => plain(guard.text)),
        type: "scatter", mode: "markers", marker: { symbol: "x", size: 9, color: colours.warn }, hovertemplate: "guard: %{text}<extra></extra>" },
    ], {
      height: 260, hovermode: "x unified", uirevision: view.tuned,
      xaxis: roundAxis(run.finished),
      yaxis: axis("", { ticksuffix: " %", zerolinecolor: colours.muted }),
    }, `Reward and baseline by round; guards acted in ${run.guarded} rounds`);
  }

  function renderSentences(tuner) {
    let listed = tuner.notes.filter((note) => note.listed);
    const every = Math.ceil(listed.length / 20);
    if (onPaper()) listed = listed.filter((_, i) => i % every === 0);
    byId("sentences").replaceChildren(table(
      [["round"], ...tuner.axes.map((each) => [each.label, "number"]), ["reward", "number"], ["sentence"]],
      listed.map((note) => ({
        "data-round": note.round,
        cells: [
          el("button", { type: "button", title: "show this round above", onclick: () => { show(note.round); byId("map").scrollIntoView({ block: "center" }); } }, note.round),
          ...note.choice.map((value) => numeric(figure(value))), numeric(signed(note.reward)),
          el("td", { class: "sentence" }, ...note.why.split("; ").filter(Boolean).map((sentence) => el("span", {}, capital(sentence))),
            ...(note.guard ? [el("span", { class: "guard" }, `Guard: ${note.guard}`)] : [])),
        ],
      }))));
    const all = `${count(tuner.moved)} of ${count(tuner.of)} rounds changed the tuner or were guarded`;
    byId("sentences-note").textContent = listed.length < tuner.moved ? `${all}; ${count(listed.length)} of them are listed, evenly spaced.` : `${all}.`;
  }

  function renderClients() {
    const run = data.runs[view.client];
    const { clients, share, took_part: rounds, seen, norms } = run.contribution;
    choices("client-run", "client-choice", data.runs.map((each) => each.label), view.client);
    const never = run.clients - seen;
    byId("clients-note").textContent = [
      seen > clients.length ? `${clients.length} of ${count(seen)} clients are shown: those with the most examples, ${percent(share.reduce((sum, value) => sum + value, 0), 0)} of all.` : "",
      never > 0 ? `${count(never)} of ${count(run.clients)} clients have not taken part yet.` : "",
    ].filter(Boolean).join(" ");
    const names = axis("client", { type: "category", showgrid: false, nticks: Math.ceil(byId("share").clientWidth / 36), tickangle: 0 });
    const bars = (id, y, text, summary) => draw(id, [{ x: clients.map(plain), y, text, type: "bar", textposition: "none", marker: { color: colourOf(0) }, hovertemplate: "%{text}<extra></extra>" }], {
      height: 240, bargap: 0.25, xaxis: names, yaxis: axis("", { ticksuffix: " %", rangemode: "tozero" }), uirevision: view.client,
    }, summary);
    bars("share", share.map((value) => 100 * value), clients.map((client, i) => plain(`client ${client}: ${percent(share[i])} of the examples`)),
      `Share of the examples by client${clients.length ? `, from ${percent(Math.min(...share))} to ${percent(Math.max(...share))}` : ""}`);
    bars("part", rounds.map((value) => (100 * value) / run.finished), clients.map((client, i) => plain(`client ${client}: ${count(rounds[i])} of ${count(run.finished)} rounds`)),
      `Rounds taken part in by client, of ${run.finished}`);
    renderSpread(run);
    draw("norms", [{
      x: run.contribution.rounds, y: clients.map(plain), z: norms, type: "heatmap", colorscale: colours.map, zmin: 0, hoverongaps: false,
      hovertemplate: "client %{y}, round %{x}: %{z:.3~g}<extra></extra>",
      colorbar: { thickness: 10, outlinewidth: 0, tickfont: { color: colours.muted } },
    }], {
      height: Math.min(760, 110 + 17 * clients.length), uirevision: view.client,
      xaxis: roundAxis(run.finished, { showgrid: false }), yaxis: axis("client", { type: "category", showgrid: false, autorange: "reversed" }),
    }, "Length of each client's update by round");
    byId("norms-note").textContent = run.contribution.rounds.length < run.finished
      ? `${count(run.contribution.rounds.length)} of ${count(run.finished)} rounds are kept here, evenly spaced.` : "";

    const events = [
      ...run.refused.map((each) => ({ ...each, text: each.why, what: `client ${each.client} refused` })),
      ...run.guards.map((each) => ({ ...each, what: "guard" })),
    ].sort((a, b) => a.round - b.round);
    byId("events").replaceChildren(...(events.length ? [table([["round", "number"], ["what"], ["why"]],
      events.map(({ round, what, text: why }) => ({ cells: [numeric(round), what, why] })))] : []));
    const cut = run.refused.length < run.refusals || run.guards.length < run.guarded;
    byId("events-note").textContent = !events.length ? "None: every update was used, and no guard had to act."
      : `${count(run.refusals)} updates refused, ${count(run.guarded)} rounds guarded${cut ? "; the newest are listed" : ""}.`;
  }

  function renderSpread(run) {
    const { rounds, values } = run.spread;
    byId("spread-figure").hidden = !rounds.length;
    if (!rounds.length) return;
    const metric = data.metrics.find((each) => each.name === run.spread.metric);
    const scale = metric.percent ? 100 : 1;
    const column = (k) => values.map((five) => scale * five[k]);
    const band = (low, high, colour) => [
      { x: rounds, y: column(low), type: "scatter", mode: "lines", line: { width: 0 }, hoverinfo: "skip" },
      { x: rounds, y: column(high), type: "scatter", mode: "lines", line: { width: 0 }, fill: "tonexty", fillcolor: colour, hoverinfo: "skip" },
    ];
    byId("spread-metric").textContent = capital(metric.name);
    draw("spread", [
      ...band(0, 4, faint(colourOf(0))), ...band(1, 3, `${colourOf(0)}66`),
      { x: rounds, y: column(2), type: "scatter", mode: rounds.length < 40 ? "lines+markers" : "lines", line: { color: colourOf(1), width: 2 },
        text: values.map((five) => `${inUnits(metric, five[0])} to ${inUnits(metric, five[4])}, middle ${inUnits(metric, five[2])}`),
        hovertemplate: "round %{x}: %{text}<extra></extra>" },
    ], { xaxis: roundAxis(run.finished), yaxis: axis("", { ticksuffix: metric.percent ? " %" : "" }), uirevision: view.client },
      `${capital(metric.name)} by client; last round: ${inUnits(metric, values.at(-1)[0])} to ${inUnits(metric, values.at(-1)[4])}, middle ${inUnits(metric, values.at(-1)[2])}`);
  }

  function renderDivergence() {
    const drawn = data.runs.some((run) => run.divergence.rounds);
    byId("divergence-figure").hidden = !drawn;
    if (drawn) {
      overlay("divergence", (run) => ({ x: run.divergence.rounds, y: run.divergence.values }), decades(), ".3~f", "Divergence of the updates");
    }
    const reasons = new Map();
    for (const run of data.runs) {
      const { missing } = run.divergence;
      if (run.finished && missing) reasons.set(missing, [...(reasons.get(missing) || []), run.label]);
    }
    byId("divergence-note").textContent = [...reasons].map(([reason, labels]) =>
      `No divergence of the updates${data.runs.length > 1 ? ` for ${labels.join(", ")}` : ""}: ${reason}.`).join(" ");
  }

  function renderTime() {
    const names = [...new Set(data.runs.flatMap((run) => run.time.parts.map((part) => part.name)))];
    const several = data.runs.length > 1;
    byId("totals").replaceChildren(table(
      [...(several ? [["run"]] : []), ["total", "number"], ...names.map((name) => [name, "number"]), ["share"]],
      data.runs.map((run, i) => {
        const all = total(run);
        const of = (name) => run.time.parts.find((part) => part.name === name)?.total ?? 0;
        return { cells: [
          ...(several ? [el("th", { scope: "row" }, swatch(i), run.label)] : []), numeric(duration(all)),
          ...names.map((name) => numeric(`${duration(of(name))} (${percent(all ? of(name) / all : 0, 1)})`)),
          el("td", {}, el("div", { class: "bar", role: "img", "aria-label": "the same as a bar" }, ...names.map((name, n) =>
            el("span", { title: name, style: { width: `${all ? (100 * of(name)) / all : 0}%`, background: colourOf(n) } })))),
        ] };
      })));
    const run = data.runs[view.client];
    byId("time-run").textContent = several ? `: ${run.label}` : "";
    draw("seconds", run.time.parts.map((part, n) => ({
      x: run.time.rounds, y: part.seconds, name: plain(part.name), type: "scatter", mode: "lines", stackgroup: "all", line: { width: 0.5, color: colourOf(names.indexOf(part.name)) },
      fillcolor: colourOf(names.indexOf(part.name)), hovertemplate: "%{y:.3~g} s",
    })), {
      height: 240, hovermode: "x unified", uirevision: view.client,
      xaxis: roundAxis(run.finished), yaxis: axis("", { ticksuffix: " s", rangemode: "tozero" }),
    }, `Seconds a round by part: ${run.time.parts.map((part) => `${part.name} ${duration(part.total)} in all`).join(", ")}`);
    byId("parts").replaceChildren(...names.map((name, n) => el("span", {}, el("span", { class: "dot", style: { background: colourOf(n), borderRadius: "2px" } }), ` ${name}`)));
  }

  function renderSettings() {
    const several = data.runs.length > 1;
    byId("settings-note").textContent = several ? "Those that differ between the runs come first." : "";
    byId("settings-table").replaceChildren(table(
      [["setting"], ...data.runs.map((run) => [several ? run.label : "value"])],
      data.settings.map((row) => ({
        ...(row.differs ? { class: "differs" } : {}),
        cells: [el("th", { scope: "row" }, el("code", {}, row.name), el("small", {}, row.help)), ...row.values],
      }))));
  }

  function render() {
    readColours();
    renderHeader();
    if (data.runs.some((run) => run.finished)) {
      if (!data.runs[view.client]?.finished) view.client = data.runs.findIndex((run) => run.finished);
      renderResults();
      renderTuner();
      renderMethod();
      renderClients();
      renderDivergence();
      renderTime();
    }
    renderSettings();
  }

  // what the reader does

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
  }

  function play() {
    if (playing) return stop();
    if (view.round === null) show(tunedRun().tuner.maps.rounds[0]);
    byId("play").textContent = "Pause";
    playing = setInterval(() => {
      const { rounds } = tunedRun().tuner.maps;
      show(rounds[Math.min(place() + 1, rounds.length - 1)]);
      if (view.round === null) stop();
    }, 150);
  }

  byId("play").addEventListener("click", play);
  byId("round").addEventListener("input", (event) => { stop(); show(tunedRun().tuner.maps.rounds[Number(event.target.value)]); });
  byId("pair").addEventListener("change", (event) => { view.pair = Number(event.target.value); renderRound(); });
  byId("tuner-run").addEventListener("change", (event) => {
    stop();
    Object.assign(view, { tuned: Number(event.target.value), round: null, pair: 0 });
    renderTuner();
  });
  byId("client-run").addEventListener("change", (event) => { view.client = Number(event.target.value); renderClients(); renderTime(); });

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", render);
  let width = document.body.clientWidth;
  let due = null;
  addEventListener("resize", () => {
    clearTimeout(due);
    due = setTimeout(() => { if (document.body.clientWidth !== width) { width = document.body.clientWidth; render(); } }, 120);
  });
  addEventListener("beforeprint", () => { document.documentElement.dataset.paper = ""; render(); });
  addEventListener("afterprint", () => { delete document.documentElement.dataset.paper; render(); });

  // a run that goes on

  const done = () => data.runs.every((run) => run.finished >= run.rounds);

  function say(words, kind) {
    byId("status").textContent = words;
    byId("status").className = `status ${kind}`;
  }

  async function poll() {
    try {
      const answer = await fetch("data.json", { cache: "no-store" });
      const newer = await answer.text();
      if (answer.ok && newer !== text) {
        text = newer;
        data = JSON.parse(text);
        render();
      }
      if (answer.ok) say(done() ? "finished" : "live: looks for new rounds every 2 s", done() ? "" : "live");
      else say(newer, "trouble");
    } catch {
      say("no answer from the server; this is the last that it sent", "trouble");
    }
    if (!done()) setTimeout(poll, 2000);
  }

  render();
  if (live) poll();
})();
