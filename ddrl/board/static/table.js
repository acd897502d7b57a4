// The table of runs: sorted, filtered, kept up to date row by row.

const STATES = ["running", "finished", "stopped", "interrupted", "failed"];
const SPARK = { width: 92, height: 22 };

/** Columns: key of the row, heading, text of a cell or what fills it; numbers stand at the right. */
const COLUMNS = [
  { key: "name", title: "Run", fill: (cell, run) => cell.replaceChildren(run.name, element("small", {}, ...underName(run))) },
  { key: "algorithm", title: "Algorithm" },
  { key: "game", title: "Game" },
  { key: "state", title: "State", fill: (cell, run) => cell.replaceChildren(stateMark(run)) },
  { key: "evaluation", title: "Evaluation", number: true, text: (run) => score(run.evaluation), hint: evaluationHint },
  { key: "training", title: "Training", number: true, text: (run) => score(run.training), hint: () => "mean of the last 100 training games" },
  { key: "spark", title: "Score", fixed: true, fill: (cell, run) => cell.replaceChildren(sparkline(run.spark ?? [])) },
  { key: "progress", title: "Progress", fill: (cell, run) => cell.replaceChildren(progressBar(run)) },
  { key: "agent_steps", title: "Agent steps", number: true, text: (run) => compact(run.agent_steps) },
  { key: "agent_steps_per_s", title: "Steps/s", number: true, text: (run) => compact(run.agent_steps_per_s) },
  { key: "update_per_s", title: "Updates/s", number: true, text: (run) => compact(run.update_per_s) },
  { key: "wall_seconds", title: "Time", number: true, text: (run) => duration(run.wall_seconds) },
  { key: "began", title: "Started", number: true, text: (run) => ago(run.began), hint: (run) => moment(run.began) },
];

function evaluationHint(run) {
  return run.evaluation === undefined ? "" : `${run.final ? "final evaluation: " : ""}mean of ${plural(run.games, "game")} with frozen parameters; best so far ${score(run.best ?? run.evaluation)}`;
}

function stateText(run) {
  return run.state === "running" && run.phase && run.phase !== "training" ? run.phase : run.state;
}

function stateMark(run) {
  return element("span", { className: `state ${run.state}`, textContent: stateText(run), title: run.why });
}

/** What a narrow window has no columns for. */
function underName(run) {
  const share = run.state === "running" && run.progress !== undefined ? ` ${Math.round(run.progress * 100)}%` : "";
  return [stateMark(run), `${share} · ${run.algorithm} · ${run.game}`];
}

function progressBar(run) {
  const bar = element("div", { className: run.state === "running" ? "progress" : "progress over" });
  if (run.progress === undefined) return bar;
  const left = run.left === undefined ? "" : ` · ${duration(run.left)} left`;
  if (run.state !== "finished") bar.append(element("i", { "--done": run.progress }));
  bar.append( `${Math.floor(run.progress * 100)}%${left}`);
  return bar;
}

function sparkline(values) {
  const picture = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  picture.setAttribute("class", "spark");
  picture.setAttribute("viewBox", `0 0 ${SPARK.width} ${SPARK.height}`);
  if (values.length > 1) {
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
    const at = (value, i) => [2 + (i * (SPARK.width - 4)) / (values.length - 1), high > low ? 19 - (16 * (value - low)) / (high - low) : 11];
    line.setAttribute("points", values.map((value, i) => at(value, i).map((number) => number.toFixed(1)).join()).join(" "));
    picture.append(line);
  }
  return picture;
}

class RunTable {
  /** @param state what the page shows: runs, slots (id -> place among the selected), sort, filter, states */
  constructor(state, changed) {
    this.state = state;
    this.changed = changed;
    this.rows = new Map();
    this.all = element("input", { type: "checkbox", title: "Select all that are shown", aria: { label: "Select all runs that are shown" }, onchange: () => this.#pickAll() });
    this.heads = COLUMNS.map((column) => this.#head(column));
    this.body = element("tbody");
    byId("rows").replaceChildren(element("table", {},
      element("thead", {}, element("tr", {}, element("th", { className: "pick", scope: "col" }, this.all), ...this.heads)), this.body));
    byId("filter").value = state.filter;
    byId("filter").oninput = () => { state.filter = byId("filter").value; changed(); };
    byId("clear").onclick = () => { state.slots.clear(); changed(); };
  }

  /** Runs that pass the filter, sorted. */
  shown() {
    const { runs, filter, states, sort } = this.state;
    const asked = filter.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = (run) => {
      const text = `${run.name} ${run.algorithm} ${run.game} ${stateText(run)} ${run.state}`.toLowerCase();
      return (!states.size || states.has(run.state)) && asked.every((word) => text.includes(word));
    };
    const sign = sort.descending ? -1 : 1;
    return [...runs.values()].filter(fits).sort((one, other) => sign * compared(one[sort.key], other[sort.key], sign) || one.id - other.id);
  }

  draw() {
    const shown = this.shown();
    for (const id of this.rows.keys()) if (!this.state.runs.has(id)) this.rows.delete(id);
    const rows = shown.map((run) => this.#row(run));
    if (rows.length !== this.body.children.length || rows.some((row, i) => this.body.children[i] !== row)) this.body.replaceChildren(...rows);
    COLUMNS.forEach((column, i) => {
      if (column.key === this.state.sort.key) this.heads[i].setAttribute("aria-sort", this.state.sort.descending ? "descending" : "ascending");
      else this.heads[i].removeAttribute("aria-sort");
    });
    const picked = shown.filter((run) => this.state.slots.has(run.id)).length;
    this.all.checked = picked > 0 && picked === shown.length;
    this.all.indeterminate = picked > 0 && picked < shown.length;
    const total = this.state.runs.size;
    byId("count").textContent = `${shown.length < total ? `${shown.length} of ` : ""}${plural(total, "run")} · ${this.state.slots.size} selected`;
    byId("clear").hidden = !this.state.slots.size;
    this.#drawStates();
  }

  #drawStates() {
    const counts = new Map(STATES.map((name) => [name, 0]));
    for (const run of this.state.runs.values()) counts.set(run.state, (counts.get(run.state) ?? 0) + 1);
    const buttons = [...counts].filter(([, count]) => count).map(([name, count]) => element("button", {
      type: "button", aria: { pressed: String(this.state.states.has(name)) },
      onclick: () => { if (!this.state.states.delete(name)) this.state.states.add(name); this.changed(); },
    }, element("span", { className: `state ${name}`, textContent: name }), element("span", { className: "muted", textContent: count })));
    const key = JSON.stringify([[...counts], [...this.state.states]]);
    if (key !== this.statesKey) byId("states").replaceChildren(...buttons);
    this.statesKey = key;
  }

  #head(column) {
    const order = () => {
      const { sort } = this.state;
      const again = sort.key === column.key;
      this.state.sort = { key: column.key, descending: again ? !sort.descending : Boolean(column.number) };
      this.changed();
    };
    const inner = column.fixed ? element("button", { textContent: column.title, disabled: true }) : element("button", { textContent: column.title, onclick: order });
    return element("th", { className: cellClass(column), scope: "col" }, inner);
  }

  #row(run) {
    let row = this.rows.get(run.id);
    if (!row) {
      const box = element("input", { type: "checkbox", aria: { label: `Select ${run.name}` }, onclick: (event) => event.stopPropagation(), onchange: () => this.#toggle(run.id) });
      const cells = COLUMNS.map((column) => element("td", { className: cellClass(column) }));
      row = element("tr", { onclick: () => this.#only(run.id) }, element("td", { className: "pick" }, box), ...cells);
      Object.assign(row, { box, parts: cells, version: null });
      this.rows.set(run.id, row);
    }
    const slot = this.state.slots.get(run.id);
    row.className = slot === undefined ? "" : "chosen";
    row.box.checked = slot !== undefined;
    row.style.setProperty("--color", slot === undefined ? "initial" : `var(--${slotColor(slot)})`);
    if (row.version !== run.version) {
      COLUMNS.forEach((column, i) => fillCell(row.parts[i], column, run));
      row.version = run.version;
    }
    row.parts[COLUMNS.length - 1].textContent = ago(run.began);
    return row;
  }

  #toggle(id) {
    if (!this.state.slots.delete(id)) select(this.state, id);
    this.changed();
  }

  #only(id) {
    const alone = this.state.slots.size === 1 && this.state.slots.has(id);
    this.state.slots.clear();
    if (!alone) select(this.state, id);
    this.changed();
  }

  #pickAll() {
    const shown = this.shown();
    if (this.all.checked) shown.forEach((run) => select(this.state, run.id));
    else shown.forEach((run) => this.state.slots.delete(run.id));
    this.changed();
  }
}

/** A run gets the first place, and so the first color, that no other has. */
function select(state, id) {
  if (state.slots.has(id)) return;
  const taken = new Set(state.slots.values());
  let slot = 0;
  while (taken.has(slot)) slot++;
  state.slots.set(id, slot);
}

function cellClass(column) {
  return `of-${column.key}${column.number ? " number" : ""}`;
}

function fillCell(cell, column, run) {
  if (column.fill) column.fill(cell, run);
  else cell.textContent = column.text ? column.text(run) : run[column.key] ?? "";
  cell.title = column.hint ? column.hint(run) : column.fill || column.number ? "" : run[column.key] ?? "";
  if (column.key === "name") cell.title = run.name;
}

/** Order of two values; what is not known comes last, whichever way is sorted. */
function compared(one, other, sign) {
  const [without, also] = [one === undefined || one === "", other === undefined || other === ""];
  if (without || also) return (without - also) * sign;
  return typeof one === "string" ? one.localeCompare(other, undefined, { numeric: true }) : one - other;
}
