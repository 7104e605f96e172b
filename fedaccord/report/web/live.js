/* The whole page: drawn when something it depends on has changed, and kept up to date while a run goes on. */

function render() {
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

let width = document.body.clientWidth;
let due = null;
addEventListener("resize", () => {
  clearTimeout(due);
  due = setTimeout(() => { if (document.body.clientWidth !== width) { width = document.body.clientWidth; render(); } }, 120);
});
addEventListener("beforeprint", () => { document.documentElement.dataset.paper = ""; render(); });
addEventListener("afterprint", () => { delete document.documentElement.dataset.paper; render(); });

/* What the model gets right of each class is noted after the last round. */
const done = () => data.runs.every((run) => (run.finished >= run.rounds || run.stopped) && (!run.classes || run.classes.round >= run.finished));

function say(words, kind) {
  byId("status").textContent = words;
  byId("status").className = `status ${kind}`;
}

async function poll() {
  let answer = null;
  let newer = "";
  try {
    answer = await fetch("data.json", { cache: "no-store" });
    newer = await answer.text();
  } catch {
    say("no answer from the server; this is the last that it sent", "trouble");
  }
  if (answer && !answer.ok) say(newer, "trouble");
  if (answer?.ok) {
    if (newer !== text) {
      text = newer;
      data = JSON.parse(text);
      render();
    }
    say(done() ? "finished" : "live: looks for new rounds every 2 s", done() ? "" : "live");
  }
  if (!done()) setTimeout(poll, 2000);
}

render();
if (document.body.dataset.live === "yes") poll();
