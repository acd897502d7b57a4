// One chart: lines of several runs over a common axis, by uPlot.

const TRAIN_AXES = { agent_steps: "train/agent_steps", update: "train/update", wall_seconds: "train/wall_seconds" };
const AXES = { agent_steps: "Agent steps", update: "Updates", wall_seconds: "Wall time" };
const EVALUATION_AXES = { agent_steps: "evaluation/agent_steps", update: "evaluation/version", wall_seconds: "evaluation/wall_seconds" };
const TIME_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800];
const MANY_LINES = 60; // that are drawn over the points that they have; more are drawn over a common grid
const MOST_FADED = 16; // lines that are shown unsmoothed, too
const MOST_TOLD = 14; // lines that are named beside the pointer
const GRID = 200; // points of a mean
const COMMON_GRID = 400;
const NEAR = 40; // pixels from the pointer at which a point still counts

function isEvaluation(name) {
  return name.startsWith("evaluation/");
}

/** Mean that forgets: weight of what was before 0 to 1, corrected for the beginning. */
function smoothed(values, weight) {
  let [sum, count] = [0, 0];
  return values.map((value) => {
    if (value === null) return null;
    sum = weight * sum + (1 - weight) * value;
    count = weight * count + (1 - weight);
    return sum / count;
  });
}

/** The points of a line, as [x, y] without those that lack either, ascending in x. */
function points(columns, xName, yName) {
  const [x, y] = [columns[xName] ?? [], columns[yName] ?? []];
  const [xs, ys] = [[], []];
  for (let i = 0; i < x.length; i++) {
    if (x[i] === null || y[i] === null || y[i] === undefined) continue;
    if (xs.length && x[i] <= xs[xs.length - 1]) {
      if (x[i] === xs[xs.length - 1]) ys[ys.length - 1] = y[i];
      continue;
    }
    xs.push(x[i]);
    ys.push(y[i]);
  }
  return [xs, ys];
}

/** Mean and range of lines where all of them have values: [x, low, high, mean]. */
function spread(lines) {
  const [first, last] = [Math.max(...lines.map(([x]) => x[0])), Math.min(...lines.map(([x]) => x[x.length - 1]))];
  if (!(first < last)) return [[], [], [], []];
  const x = Array.from({ length: GRID }, (_, i) => first + ((last - first) * i) / (GRID - 1));
  const values = lines.map((line) => interpolated(line, x));
  const at = (i) => values.map((y) => y[i]);
  return [x, x.map((_, i) => Math.min(...at(i))), x.map((_, i) => Math.max(...at(i))), x.map((_, i) => at(i).reduce((sum, y) => sum + y, 0) / lines.length)];
}

function interpolated([xs, ys], grid) {
  let right = 1;
  return grid.map((x) => {
    while (right < xs.length - 1 && xs[right] < x) right++;
    if (xs.length === 1) return ys[0];
    const part = Math.min(1, Math.max(0, (x - xs[right - 1]) / (xs[right] - xs[right - 1])));
    return ys[right - 1] + part * (ys[right] - ys[right - 1]);
  });
}

/** Tables over one grid, so that many lines take no more rows; a line has values where it has points alone. */
function onGrid(tables) {
  const [first, last] = [Math.min(...tables.map(([x]) => x[0])), Math.max(...tables.map(([x]) => x[x.length - 1]))];
  const step = (last - first) / (COMMON_GRID - 1);
  const grid = Array.from({ length: step > 0 ? COMMON_GRID : 1 }, (_, i) => first + i * step);
  return tables.map(([x, ...columns]) => {
    const within = grid.map((at) => at >= x[0] - step / 2 && at <= x[x.length - 1] + step / 2);
    return [grid, ...columns.map((y) => interpolated([x, y], grid).map((value, i) => (within[i] ? value : null)))];
  });
}

class Chart {
  /**
   * @param {{title: string, note?: string, names: [string, string][], large?: boolean}} spec names: [series, style], the
   *   style one of strong, thin, dotted
   * @param {(() => void)?} close for a chart that can be taken away
   */
  constructor(spec, close = null) {
    this.spec = spec;
    this.host = element("div", {});
    const key = spec.names.length > 1 ? spec.names.map(([name, style, text]) => Chart.#key(style, text, isEvaluation(name))) : [];
    this.head = element("header", {}, element("h3", { textContent: spec.title }),
      spec.note ? element("small", { textContent: spec.note }) : null, ...key,
      close ? element("button", { className: "plain close", textContent: "×", title: "Remove", aria: { label: `Remove ${spec.title}` }, onclick: close }) : null);
    this.body = element("article", { className: spec.large ? "card chart large" : "card chart" }, this.head, this.host);
    this.observer = new ResizeObserver(() => this.#resize());
    this.observer.observe(this.host);
    this.shape = "";
  }

  static #key(style, text, points) {
    const line = element("span", { className: style === "strong" ? "dot" : style === "dotted" ? "dot dashed thin" : "dot thin" });
    const round = points ? element("i", { className: "round" }) : null;
    return element("small", { className: "key" }, round, line, text);
  }

  /** runs: [{name, slot, columns}]; of several as one, members are these runs */
  draw(runs, axis, weight) {
    const [tables, lines] = [[], []];
    this.bands = [];
    for (const run of runs) {
      for (const [name, style] of this.#names(runs)) {
        const of = (isEvaluation(name) ? EVALUATION_AXES : TRAIN_AXES)[axis];
        const smooth = (y) => (weight > 0 && style !== "dotted" ? smoothed(y, weight) : y);
        const read = ({ columns }) => points(columns, of, name);
        const isFaded = weight > 0 && style !== "dotted" && runs.length <= MOST_FADED;
        const parts = run.members ? Chart.#mean(run.members.map(read), smooth, style) : Chart.#single(read(run), smooth, style, isFaded);
        for (const [table, styles] of parts) {
          if (styles[0] === "edge") this.bands.push({ series: [lines.length + 2, lines.length + 1], fill: color(`${slotColor(run.slot)}-band`) });
          tables.push(table);
          lines.push(...styles.map((each) => ({ run, style: each, name })));
        }
      }
    }
    this.lines = lines;
    this.host.classList.toggle("empty", !tables.length);
    if (!tables.length) {
      this.destroyPlot();
      this.host.textContent = "Nothing measured yet";
      this.#describe(0, 0);
      return;
    }
    const data = uPlot.join(tables.length > MANY_LINES ? onGrid(tables) : tables);
    this.#describe(runs.length, data[0].length);
    const shape = JSON.stringify([axis, lines.map((line) => [line.run.slot, Boolean(line.run.members), line.run.name, line.style, line.name])]);
    if (this.plot && shape === this.shape) {
      const zoomed = this.zoomed();
      const { min, max } = this.plot.scales.x;
      this.plot.batch(() => {
        this.plot.setData(data, !zoomed);
        if (zoomed) this.plot.setScale("x", { min, max });
      });
      return;
    }
    this.destroyPlot();
    this.host.textContent = "";
    this.shape = shape;
    this.axis = axis;
    this.plot = new uPlot(this.#options(axis), data, this.host);
  }

  /** Series and their styles; where the main one was not measured, the next one takes its place. */
  #names(runs) {
    const [[main], second] = [this.spec.names[0], this.spec.names[1]];
    const has = runs.some((run) => (run.members ?? [run]).some(({ columns }) => (columns[main] ?? []).some((value) => value !== null)));
    return has || second?.[1] !== "thin" ? this.spec.names : [[second[0], "strong"]];
  }

  /** [table, styles of its columns] of one run's line. */
  static #single([x, y], smooth, style, isFaded) {
    if (!x.length) return [];
    return [...(isFaded ? [[[x, y], ["faded"]]] : []), [[x, smooth(y)], [style]]];
  }

  /** The same of the mean of several; where lines are strong, with the two edges of their range. */
  static #mean(lines, smooth, style) {
    const known = lines.filter(([x]) => x.length).map(([x, y]) => [x, smooth(y)]);
    const [x, low, high, mean] = known.length ? spread(known) : [[]];
    if (!x.length) return [];
    return style === "strong" ? [[[x, low, high, mean], ["edge", "edge", style]]] : [[[x, mean], [style]]];
  }

  /** For those who do not see it. */
  #describe(runs, count) {
    this.host.setAttribute("role", "img");
    this.host.setAttribute("aria-label", `${this.spec.title}: ${plural(runs, "run")}, ${plural(count, "point")}`);
  }

  /** Whether a part of the axis was chosen with the pointer. */
  zoomed() {
    const [x, scale] = [this.plot.data[0], this.plot.scales.x];
    return scale.min > x[0] || scale.max < x[x.length - 1];
  }

  destroyPlot() {
    this.plot?.destroy();
    this.plot = null;
    this.shape = "";
  }

  destroy() {
    this.observer.disconnect();
    this.destroyPlot();
  }

  #size() {
    const width = this.host.clientWidth;
    return { width, height: this.spec.large ? Math.max(240, Math.min(360, width * 0.45)) : this.spec.tall ? 260 : 210 };
  }

  #resize() {
    if (this.plot && this.host.clientWidth > 0 && this.host.clientWidth !== this.plot.width) this.plot.setSize(this.#size());
  }

  #options(axis) {
    const [text, grid] = [color("muted"), { stroke: color("grid"), width: 1 }];
    const font = "12px system-ui, sans-serif";
    const common = { stroke: text, font, grid, ticks: { show: false } };
    const time = axis === "wall_seconds";
    return {
      ...this.#size(),
      legend: { show: false },
      padding: [10, 14, 0, 0],
      scales: { x: { time: false, range: (_, low, high) => [low < high / 5 ? Math.min(0, low) : low, high > low ? high : low + 1] }, y: { range: (_, low, high) => Chart.#range(low, high) } },
      axes: [
        { ...common, size: 30, gap: 6, space: 70, values: (_, splits) => splits.map(time ? duration : compact), ...(time ? { incrs: TIME_STEPS } : {}) },
        { ...common, size: Chart.#axisSize, gap: 6, space: 36, values: (_, splits) => splits.map(compact) },
      ],
      bands: this.bands,
      series: [{}, ...this.lines.map((line) => this.#series(line))],
      cursor: {
        y: false,
        sync: { key: "runs", scales: ["x", null], setSeries: false },
        points: { size: 6 },
        drag: { x: true, y: false, setScale: true },
        dataIdx: (plot, series, hovered, x) => Chart.#nearest(plot, series, hovered, x),
      },
      hooks: { setCursor: [(plot) => this.#tell(plot)] },
    };
  }

  static #range(low, high) {
    if (low === null || high === null) return [0, 1];
    const room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
    return [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
  }

  static #axisSize(plot, values, axisIndex, cycle) {
    if (cycle > 1) return plot.axes[axisIndex]._size;
    const longest = Math.max(0, ...(values ?? []).map((value) => value.length));
    return 18 + 6.8 * longest;
  }

  /** The nearest point of a line to the one that the pointer is at. */
  static #nearest(plot, series, hovered, x) {
    const [xs, ys] = [plot.data[0], plot.data[series]];
    if (series === 0 || ys[hovered] !== null && ys[hovered] !== undefined) return hovered;
    let [left, right] = [hovered, hovered];
    while (left >= 0 && (ys[left] === null || ys[left] === undefined)) left--;
    while (right < ys.length && (ys[right] === null || ys[right] === undefined)) right++;
    if (left < 0 && right >= ys.length) return null;
    const best = left < 0 || (right < ys.length && xs[right] - x < x - xs[left]) ? right : left;
    const between = left >= 0 && right < ys.length;
    return between || Math.abs(plot.valToPos(xs[best], "x") - plot.valToPos(x, "x")) < NEAR ? best : null;
  }

  #series(line) {
    const stroke = color(slotColor(line.run.slot));
    const dash = line.style === "dotted" ? [2, 4] : isDashed(line.run.slot) ? [7, 4] : undefined;
    const evaluated = isEvaluation(line.name);
    const width = { strong: 2, thin: 1.25, dotted: 1.25, faded: 1, edge: 0 }[line.style];
    return {
      label: line.run.name,
      stroke,
      width,
      dash,
      alpha: line.style === "faded" ? 0.25 : line.style === "thin" ? 0.6 : 1,
      spanGaps: true,
      points: { show: line.style === "edge" || line.run.members ? false : evaluated && line.style !== "faded" ? (plot, series) => Chart.#hasRoom(plot, series) : Chart.#isSingle, size: 5, fill: stroke },
    };
  }

  /** Evaluations are shown as points while they can be told apart. */
  static #hasRoom(plot, series) {
    return plot.data[series].reduce((count, value) => count + (value !== null && value !== undefined), 0) * 9 < plot.width;
  }

  static #isSingle(plot, series) {
    return plot.data[series].filter((value) => value !== null && value !== undefined).length === 1;
  }

  /** Values under the pointer, beside it. */
  #tell(plot) {
    const tip = byId("tip");
    const { left, top, idx } = plot.cursor;
    if (!plot.over.matches(":hover") || left < 0 || idx === null || idx === undefined) {
      if (tip.owner === plot) tip.hidden = true;
      return;
    }
    const told = [];
    this.lines.forEach((line, i) => {
      const at = plot.cursor.idxs[i + 1];
      const value = at === null || at === undefined ? null : plot.data[i + 1][at];
      if (line.style !== "faded" && line.style !== "edge" && value !== null && value !== undefined) told.push({ line, value });
    });
    told.sort((one, other) => other.value - one.value);
    const x = plot.posToVal(left, "x");
    const several = this.spec.names.length > 1;
    const rows = told.slice(0, MOST_TOLD).map(({ line, value }) => element("div", {}, runMark(line.run.slot),
      element("span", { textContent: line.run.name + (several ? ` (${this.spec.names.find(([name]) => name === line.name)[2]})` : "") }),
      element("b", { textContent: line.name.includes("score") || isEvaluation(line.name) ? score(value) : compact(value) })));
    if (told.length > MOST_TOLD) rows.push(element("div", { className: "muted", textContent: `and ${told.length - MOST_TOLD} more` }));
    tip.replaceChildren(element("div", { className: "muted", textContent: `${AXES[this.axis]} ${this.axis === "wall_seconds" ? duration(x) : compact(x)}` }), ...rows);
    tip.owner = plot;
    tip.hidden = !rows.length;
    const box = plot.over.getBoundingClientRect();
    const beside = box.left + left + 18;
    tip.style.left = `${Math.max(4, beside + tip.offsetWidth > innerWidth - 6 ? beside - tip.offsetWidth - 36 : beside)}px`;
    tip.style.top = `${Math.max(4, Math.min(box.top + top + 12, innerHeight - tip.offsetHeight - 6))}px`;
  }
}
