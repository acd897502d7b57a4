// The page: what is selected, which pane is shown, and the loop that keeps both up to date.

const READING_MS = 300; // while the server reads long runs, some with each answer
const LIVE_MS = 2000;
const QUIET_MS = 6000; // while nothing runs
const FIRST = 6; // runs that are selected to begin with
const MOST_CHIPS = 16;

class BoardPage {
  constructor(title, source) {
    this.source = source;
    this.state = { runs: new Map(), slots: new Map(), sort: { key: "began", descending: true }, filter: "", states: new Set(), pane: "curves", axis: "agent_steps", smooth: 0, mean: false, extra: [] };
    this.wanted = this.#restore();
    this.series = new Map();
    this.details = new Map();
    this.table = new RunTable(this.state, () => this.changed());
    this.panes = {
      curves: ["Curves", new ChartsPane(this, CURVES, true)], time: ["Time", new TimePane(this)], lag: ["Lag and staleness", new ChartsPane(this, LAGS, false)],
      settings: ["Settings", new SettingsPane(this)], videos: ["Videos", new VideosPane(this)], events: ["Events and log", new EventsPane(this)],
    };
    if (!(this.state.pane in this.panes)) this.state.pane = "curves";
    byId("roots").textContent = title;
    byId("tabs").append(...Object.entries(this.panes).map(([name, [text]]) => element("button", { role: "tab", textContent: text, id: `tab-${name}`, onclick: () => { this.state.pane = name; this.changed(); } })));
    byId("theme").onclick = () => this.#turnTheme();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#themed());
    addEventListener("keydown", (event) => {
      if (event.key === "/" && !/^(INPUT|SELECT)$/.test(event.target.tagName)) { event.preventDefault(); byId("filter").focus(); }
    });
    addEventListener("scroll", () => { byId("tip").hidden = true; }, { passive: true });
  }

  /** Asks, shows, and asks again. */
  async follow() {
    for (;;) {
      if (!document.hidden) await this.refresh();
      if (!this.source.live) return;
      const running = [...this.state.runs.values()].some((run) => run.state === "running");
      const pause = this.lost ? LIVE_MS : this.reading ? READING_MS : running ? LIVE_MS : QUIET_MS;
      await new Promise((resolve) => { setTimeout(resolve, pause); });
    }
  }

  async refresh() {
    const since = Math.max(0, ...[...this.state.runs.values()].map((run) => run.version));
    try {
      const answer = await this.source.runs(since);
      const present = new Set(answer.ids);
      for (const id of this.state.runs.keys()) if (!present.has(id)) this.#forget(id);
      for (const run of answer.runs) this.state.runs.set(run.id, run);
      this.reading = answer.reading;
      this.#selectFirst();
      await this.changed();
      this.lost = false;
      this.#status(true);
    } catch (error) {
      console.info(String(error));
      this.lost = true;
      this.#status(false);
    }
  }

  /** Shows what the state says. */
  async changed() {
    this.table.draw();
    this.#drawChips();
    this.#keep();
    const turn = (this.turn = (this.turn ?? 0) + 1);
    const [, pane] = this.panes[this.state.pane];
    for (const name of Object.keys(this.panes)) byId(`tab-${name}`).setAttribute("aria-selected", String(name === this.state.pane));
    const host = byId("pane");
    if (!this.state.slots.size) {
      host.replaceChildren(element("p", { className: "card empty", textContent: this.state.runs.size ? "Select runs in the table to see them here." : "No runs yet." }));
      return;
    }
    if (host.firstChild !== pane.body) host.replaceChildren(pane.body);
    await pane.draw();
    if (turn === this.turn) document.documentElement.dataset.ready = "yes";
  }

  /** The selected runs in the order of their colors: {id, name, game, group, slot}. */
  selected() {
    return [...this.state.slots].sort(([, one], [, other]) => one - other).map(([id, slot]) => {
      const { name, game, group } = this.state.runs.get(id);
      return { id, slot, name, game, group: `${game} ${group}` };
    });
  }

  /** The selected runs with these columns; what the page has already is not asked for again. */
  async loaded(names) {
    const runs = this.selected();
    const missing = runs.filter(({ id }) => {
      const has = this.series.get(id);
      return !has || has.row !== this.state.runs.get(id).version || !names.every((name) => name in has.columns);
    });
    if (missing.length) {
      const rows = new Map(missing.map(({ id }) => [id, this.state.runs.get(id).version]));
      const answer = await this.source.series(missing.map(({ id }) => id), names);
      for (const [id, found] of Object.entries(answer)) if (found) this.series.set(Number(id), { row: rows.get(Number(id)), ...found });
    }
    return runs.map((run) => ({ ...run, columns: this.series.get(run.id)?.columns ?? {} }));
  }

  /** The selected runs with their details. */
  async detailed() {
    const runs = this.selected();
    const missing = runs.filter(({ id }) => this.details.get(id)?.row !== this.state.runs.get(id).version).map(({ id }) => id);
    if (missing.length) {
      const rows = new Map(missing.map((id) => [id, this.state.runs.get(id).version]));
      for (const each of await this.source.details(missing)) this.details.set(each.id, { ...each, row: rows.get(each.id) });
    }
    return runs.filter(({ id }) => this.details.has(id)).map((run) => ({ ...run, details: this.details.get(run.id) }));
  }

  /** Series that some selected run has. */
  names() {
    return [...new Set(this.selected().flatMap(({ id }) => this.series.get(id)?.names ?? []))].sort();
  }

  /** What the address names, or else what runs, or else the newest. */
  #selectFirst() {
    const runs = [...this.state.runs.values()];
    if (this.chosen || !runs.length) return;
    this.chosen = true;
    const named = this.wanted.map((name) => runs.find((run) => run.name === name)).filter(Boolean);
    const newest = this.table.shown().sort((one, other) => (other.state === "running") - (one.state === "running"));
    (named.length ? named : newest.slice(0, FIRST)).forEach((run) => select(this.state, run.id));
  }

  #forget(id) {
    [this.state.runs, this.state.slots, this.series, this.details].forEach((map) => map.delete(id));
  }

  /** The selected runs with their colors: the key to all charts. */
  #drawChips() {
    const charts = this.panes[this.state.pane][1] instanceof ChartsPane;
    const first = new Map(this.selected().toReversed().map((run) => [run.group, run.slot]));
    const runs = this.selected().map((run) => (this.state.mean && charts ? { ...run, slot: first.get(run.group) } : run));
    const key = JSON.stringify(runs);
    if (key === this.chips) return;
    this.chips = key;
    const chips = runs.slice(0, MOST_CHIPS).map((run) => element("span", { className: "chip", title: run.name }, runMark(run.slot), element("span", { textContent: run.name }),
      element("button", { textContent: "×", aria: { label: `Deselect ${run.name}` }, onclick: () => { this.state.slots.delete(run.id); this.changed(); } })));
    if (runs.length > MOST_CHIPS) chips.push(element("span", { className: "muted", textContent: `and ${runs.length - MOST_CHIPS} more` }));
    byId("chips").replaceChildren(...chips);
  }

  #status(answered) {
    const status = byId("status");
    const running = [...this.state.runs.values()].filter((run) => run.state === "running").length;
    status.className = !answered ? "status lost" : running && this.source.live ? "status live" : "status";
    const reading = this.reading ? `reading, ${plural(this.reading, "run")} to go` : "";
    const live = reading || (running ? `${running} running` : "nothing is running");
    status.textContent = !answered ? "no answer from ddrl board; trying again" : this.source.live ? live : "a saved snapshot";
  }

  /** The state in the address, behind the #, where no server sees it. */
  #keep() {
    const { pane, axis, smooth, mean, extra, filter, sort } = this.state;
    const kept = new URLSearchParams({ pane, axis, smooth, mean, filter, sort: `${sort.descending ? "-" : ""}${sort.key}` });
    extra.forEach((name) => kept.append("chart", name));
    if (this.state.slots.size <= MOST_CHIPS) this.selected().forEach(({ name }) => kept.append("run", name));
    if (`#${kept}` === location.hash || !this.chosen) return;
    try {
      history.replaceState(null, "", `#${kept}`);
    } catch (error) { // a viewer that shows the page without an address of its own
      console.info(String(error));
    }
  }

  #restore() {
    const kept = new URLSearchParams(location.hash.slice(1));
    const { state } = this;
    state.pane = kept.get("pane") ?? state.pane;
    if (kept.get("axis") in AXES) state.axis = kept.get("axis");
    state.smooth = Math.min(0.98, Math.max(0, Number(kept.get("smooth")) || 0));
    state.mean = kept.get("mean") === "true";
    state.filter = kept.get("filter") ?? "";
    state.extra = kept.getAll("chart");
    const sort = kept.get("sort") ?? "";
    if (COLUMNS.some((column) => column.key === sort.replace("-", ""))) state.sort = { key: sort.replace("-", ""), descending: sort.startsWith("-") };
    return kept.getAll("run");
  }

  #turnTheme() {
    const root = document.documentElement;
    const dark = root.style.colorScheme ? root.style.colorScheme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.style.colorScheme = dark ? "light" : "dark";
    this.#themed();
  }

  #themed() {
    resolved.clear();
    Object.values(this.panes).forEach(([, pane]) => pane.forget?.());
    this.changed();
  }
}

const given = JSON.parse(byId("data").textContent);
new BoardPage(given.title, given.content ? new WrittenSource(given.content) : new ServedSource()).follow();
