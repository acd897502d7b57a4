// Charts of the selected runs: of learning and speed, or of lag and staleness.

const CURVES = [
  { title: "Score", large: true, perGame: true, names: [["evaluation/mean", "strong", "evaluation"], ["train/online_score_mean", "thin", "training, mean of the last 100 games"]] },
  { title: "Agent steps per second", names: [["train/agent_steps_per_s", "strong"]] },
  { title: "Updates per second", names: [["train/updates_per_s", "strong"]] },
  { title: "Loss", names: [["train/loss", "strong"]] },
  { title: "Entropy", note: "nats", names: [["train/entropy", "strong"]] },
  { title: "Gradient norm", names: [["train/gradient_norm", "strong"]] },
  { title: "Learning rate", names: [["train/learning_rate", "strong"]] },
];
const LAGS = [
  { title: "Lag", large: true, note: "updates between the parameters that acted and those that learn", names: [["train/lag_mean", "strong", "mean"], ["train/lag_max", "dotted", "largest"]] },
  { title: "Staleness", note: "updates while a gradient was on its way", names: [["train/staleness_mean", "strong", "mean"], ["train/staleness_max", "dotted", "largest"]] },
  { title: "Lag of actors", note: "updates by which the actors’ parameters are behind", names: [["train/actor_lag_mean", "strong", "mean"], ["train/actor_lag_max", "dotted", "largest"]] },
  { title: "Exchange", note: "ms from sending a gradient to having new parameters", names: [["train/exchange_ms", "strong"]] },
  { title: "Computing", note: "ms per gradient", names: [["train/compute_ms", "strong"]] },
  { title: "Gradients dropped", note: "in all", names: [["train/gradients_dropped", "strong"]] },
];

/** Scores of different games have nothing to do with each other. */
function ofGame(spec, game) {
  return { ...spec, title: `${spec.title} on ${game}`, game, large: false, tall: true };
}

/** Runs whose settings differ in the seed alone as one, with the color of the first. */
function merged(runs) {
  const groups = new Map();
  for (const run of runs) groups.set(run.group, [...(groups.get(run.group) ?? []), run]);
  return [...groups.values()].map((members) => (members.length > 1 ? { ...members[0], name: `${members[0].name} and ${plural(members.length - 1, "other seed")}`, members } : members[0]));
}

class ChartsPane {
  /** @param specs charts to begin with; `free` says that others can be added */
  constructor(board, specs, free) {
    this.board = board;
    this.specs = specs;
    this.free = free;
    this.charts = new Map();
    this.bar = element("div", { className: "bar" });
    this.grid = element("div", { className: "grid" });
    this.body = element("div", {}, this.bar, this.grid);
  }

  /** Names of the series that the charts need. */
  names() {
    const axes = [...Object.values(TRAIN_AXES), ...Object.values(EVALUATION_AXES)];
    return [...new Set([...axes, ...this.#all().flatMap((spec) => spec.names.map(([name]) => name))])];
  }

  async draw() {
    const { board } = this;
    const { turn } = board;
    const runs = await board.loaded(this.names());
    if (turn !== board.turn) return; // something else was chosen meanwhile
    this.#drawBar(runs);
    const games = [...new Set(runs.map((run) => run.game))];
    const specs = this.#all().flatMap((spec) => (spec.perGame && games.length > 1 ? games.map((game) => ofGame(spec, game)) : [spec]));
    const wanted = new Set(specs.map((spec) => spec.title));
    for (const [title, chart] of this.charts) {
      if (wanted.has(title)) continue;
      chart.destroy();
      chart.body.remove();
      this.charts.delete(title);
    }
    for (const spec of specs) {
      const drawn = runs.filter((run) => !spec.game || spec.game === run.game);
      const measured = drawn.some((run) => spec.names.some(([name]) => (run.columns[name] ?? []).some((value) => value !== null)));
      if (!measured && !spec.large && !spec.game) {
        this.charts.get(spec.title)?.body.remove();
        continue;
      }
      const chart = this.#chart(spec);
      if (!chart.body.isConnected) this.#place(chart, specs);
      chart.draw(board.state.mean ? merged(drawn) : drawn, board.state.axis, board.state.smooth);
    }
  }

  /** After a change of theme or of the pane, lines are drawn anew. */
  forget() {
    this.charts.forEach((chart) => chart.destroyPlot());
  }

  #all() {
    const extra = this.free ? this.board.state.extra : [];
    return [...this.specs, ...extra.map((name) => ({ title: words(name), names: [[name, "strong"]], extra: name }))];
  }

  #chart(spec) {
    if (!this.charts.has(spec.title)) {
      const close = spec.extra ? () => { this.board.state.extra = this.board.state.extra.filter((name) => name !== spec.extra); this.board.changed(); } : null;
      this.charts.set(spec.title, new Chart(spec, close));
    }
    return this.charts.get(spec.title);
  }

  #place(chart, specs) {
    const after = specs.slice(specs.findIndex((spec) => spec.title === chart.spec.title) + 1);
    const next = after.map((spec) => this.charts.get(spec.title)?.body).find((body) => body?.isConnected);
    this.grid.insertBefore(chart.body, next ?? null);
  }

  #drawBar(runs) {
    const { state } = this.board;
    const names = this.free ? this.board.names().filter((name) => !this.names().includes(name)) : [];
    const grouped = merged(runs).length < runs.length;
    const key = JSON.stringify([state.axis, grouped, names]);
    if (key === this.key) return;
    this.key = key;
    const axis = segments(Object.entries(AXES), state.axis, "Horizontal axis", (value) => { state.axis = value; this.board.changed(); });
    const range = element("input", { type: "range", min: 0, max: 0.98, step: 0.02, value: state.smooth, oninput: () => { state.smooth = Number(range.value); this.board.changed(); } });
    const more = element("select", { aria: { label: "Add a chart" }, onchange: () => { state.extra = [...state.extra, more.value]; this.board.changed(); } },
      element("option", { textContent: "Add a chart …", value: "" }), ...names.map((name) => element("option", { value: name, textContent: words(name) })));
    const mean = element("input", { type: "checkbox", checked: state.mean, onchange: () => { state.mean = mean.checked; this.board.changed(); } });
    this.bar.replaceChildren(axis, element("label", {}, "Smoothing", range), ...(grouped ? [element("label", { title: "One line for runs whose settings differ in the seed alone; the band is their range" }, mean, "Mean over seeds")] : []), ...(names.length ? [more] : []),
      element("span", { className: "muted hint" }, "Drag to zoom, double-click to go back"));
  }
}
