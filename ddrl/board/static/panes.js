// What is not a chart: time, settings, videos, events and logs of the selected runs.

const ROLES = { worker: "workers", learner: "learner", actor: "actors", replay_shard: "replay", parameter_server: "servers", evaluator: "evaluator", chief: "chief" };
const ACTIVITIES = [
  "gradient", "inference", "simulation", "minibatch", "replay", "apply", "push", "pull", "receive", "send", "playing", "checkpoint", "sample", "acting",
];
const ROUTINE = ["checkpoint", "started"]; // events that every run has

function runHeading(run) {
  return element("h3", {}, runMark(run.slot), run.name);
}

function percent(share) {
  return share > 0 && share < 0.005 ? "<1%" : `${Math.round(share * 100)}%`;
}

/** Where the time of each role went, as bars, and what each rank takes. */
class TimePane {
  constructor(board) {
    this.board = board;
    this.body = element("div", { className: "stack" });
  }

  async draw() {
    const { turn } = this.board;
    const runs = await this.board.detailed();
    if (turn !== this.board.turn) return;
    this.body.replaceChildren(
      element("p", { className: "lead", textContent: "Shares of the wall time of a role’s ranks while there were updates; threads of one rank add up. Gray is waiting." }),
      ...runs.map((run) => this.#split(run)));
  }

  #split(run) {
    const roles = Object.entries(run.details.time).sort(([one], [other]) => order(one, Object.keys(ROLES)) - order(other, Object.keys(ROLES)));
    const rows = roles.map(([role, shares]) => this.#role(role, shares));
    return element("article", { className: "card split" }, runHeading(run), ...run.details.notes.map((text) => element("p", { className: "note", textContent: text })),
      element("div", { className: "parts" }, element("div", {}, ...(rows.length ? rows : [element("p", { className: "muted", textContent: "Nothing measured yet" })])), ranksTable(run.details.ranks)));
  }

  #role(role, shares) {
    const known = Object.entries(shares).sort(([one, a], [other, b]) => isWaiting(one) - isWaiting(other) || b - a);
    const total = Math.max(1, known.reduce((sum, [, share]) => sum + share, 0));
    const bars = known.map(([activity, share]) => {
      const bar = element("i", { className: isWaiting(activity) ? "wait" : "", title: `${activityText(activity)} ${percent(share)}`, "--color": activityColor(activity), textContent: share / total > 0.07 ? percent(share) : "" });
      bar.style.width = `${(100 * share) / total}%`;
      return bar;
    });
    const legend = known.map(([activity, share]) => element("span", { className: isWaiting(activity) ? "wait" : "", "--color": activityColor(activity), textContent: `${activityText(activity)} ${percent(share)}` }));
    return element("div", { className: "role" }, element("span", { textContent: ROLES[role] ?? words(role) }), element("div", { className: "shares" }, ...bars), element("div", { className: "legend" }, ...legend));
  }
}

function order(name, names) {
  const at = names.indexOf(name);
  return at < 0 ? names.length : at;
}

/** wait_data as "waiting for data". */
function activityText(activity) {
  return words(activity).replace(/^wait /, "waiting for ");
}

function isWaiting(activity) {
  return activity.startsWith("wait");
}

function activityColor(activity) {
  return `var(--c${order(activity, ACTIVITIES) % COLORS})`;
}

function ranksTable(ranks) {
  const names = Object.keys(ranks).sort((one, other) => one.localeCompare(other, undefined, { numeric: true }));
  if (!names.length) return null;
  const cells = (name) => [
    ["cores", (value) => value.toFixed(2)], ["memory", (value) => `${Math.round(value).toLocaleString("en-US")} MB`], ["exchange", (value) => `${value.toFixed(1)} ms`],
  ].map(([key, text]) => element("td", { className: "number", textContent: ranks[name][key] === undefined ? "" : text(ranks[name][key]) }));
  return element("div", { className: "scroll" }, element("table", { className: "ranks" },
    element("thead", {}, element("tr", {}, ...["Rank", "Cores", "Memory", "Exchange"].map((title, i) => element("th", { textContent: title, className: i ? "number" : "", scope: "col" })))),
    element("tbody", {}, ...names.map((name) => element("tr", {}, element("td", { textContent: name }), ...cells(name))))));
}

/** Settings of the runs side by side, those that differ alone or all. */
class SettingsPane {
  constructor(board) {
    this.board = board;
    this.different = true;
    this.filter = "";
    this.search = element("input", { type: "search", placeholder: "Filter settings …", aria: { label: "Filter settings" }, oninput: () => { this.filter = this.search.value.toLowerCase(); this.draw(); } });
    this.box = element("input", { type: "checkbox", checked: true, onchange: () => { this.different = this.box.checked; this.draw(); } });
    this.choice = element("label", {}, this.box, "Only what differs");
    this.table = element("div", { className: "card scroll" });
    this.body = element("div", {}, element("div", { className: "bar" }, this.search, this.choice), this.table);
  }

  async draw() {
    const { turn } = this.board;
    const runs = await this.board.detailed();
    if (turn !== this.board.turn) return;
    this.choice.hidden = runs.length < 2;
    const rows = [];
    const groups = [...new Set(runs.flatMap((run) => Object.keys(run.details.settings)))];
    for (const group of groups) {
      const names = [...new Set(runs.flatMap((run) => Object.keys(run.details.settings[group] ?? {})))];
      const found = names.map((name) => [name, runs.map((run) => run.details.settings[group]?.[name])]).map(([name, values]) => [name, values, values.some((value) => value !== values[0])])
        .filter(([name, , differs]) => (differs || !this.different || runs.length < 2) && `${group} ${name}`.includes(this.filter));
      if (!found.length) continue;
      rows.push(element("tr", { className: "group" }, element("th", { textContent: words(group), colSpan: runs.length + 1, scope: "colgroup" })));
      rows.push(...found.map(([name, values, differs]) => element("tr", { className: differs && !this.different ? "differs" : "" }, element("th", { textContent: name, scope: "row" }), ...values.map((value) => element("td", { textContent: value ?? "–" })))));
    }
    const head = element("tr", {}, element("th", { textContent: "Setting", scope: "col" }), ...runs.map((run) => element("td", { title: run.name }, runMark(run.slot), ` ${run.name}`)));
    const none = runs.length > 1 && !this.filter ? "These runs have the same settings." : "No setting of that name.";
    this.table.replaceChildren(rows.length ? element("table", { className: "settings" }, element("thead", {}, head), element("tbody", {}, ...rows)) : element("p", { className: "empty", textContent: none }));
  }
}

/** Games that were recorded. A video that is there already goes on when others come. */
class VideosPane {
  constructor(board) {
    this.board = board;
    this.body = element("div", {});
  }

  async draw() {
    const { turn } = this.board;
    const runs = await this.board.detailed();
    if (turn !== this.board.turn) return;
    const listed = runs.flatMap((run) => run.details.videos.map((video) => ({ run, video })));
    const key = JSON.stringify(listed.map(({ run, video }) => [run.id, run.slot, video.name, video.changed]));
    if (key === this.key) return;
    this.key = key;
    const figures = listed.map(({ run, video }) => this.#figure(run, video));
    this.body.replaceChildren(figures.length ? element("div", { className: "videos" }, ...figures)
      : element("p", { className: "card empty", textContent: "No video yet: one is recorded at the end of a run, or by `ddrl play RUN`." }));
  }

  #figure(run, video) {
    const address = this.board.source.video(run.id, video.index);
    let shown = element("p", { className: "empty", textContent: "too large for this page" });
    if (address && video.name.endsWith(".gif")) shown = element("img", { src: address, alt: `${video.name} of ${run.name}`, loading: "lazy" });
    else if (address) shown = element("video", { src: address, controls: true, muted: true, loop: true, preload: "metadata", playsInline: true });
    return element("figure", { className: "card" }, shown, element("figcaption", {}, runMark(run.slot),
      element("span", {}, run.name, element("br"), element("span", { className: "muted", textContent: `${video.name} · ${bytes(video.bytes)} · ${moment(video.changed)}` }))));
  }
}

/** What happened, newest first, and the end of a log. */
class EventsPane {
  constructor(board) {
    this.board = board;
    this.routine = false;
    this.box = element("input", { type: "checkbox", onchange: () => { this.routine = this.box.checked; this.draw(); } });
    this.events = element("div", { className: "scroll" });
    this.logs = element("div", { className: "stack" });
    this.open = new Map();
    this.body = element("div", { className: "stack" },
      element("article", { className: "card box" }, element("div", { className: "bar" }, element("h3", { textContent: "Events" }), element("span", { className: "grow" }), element("label", {}, this.box, "Checkpoints and starts, too")), this.events),
      this.logs);
  }

  async draw() {
    const { turn } = this.board;
    const runs = await this.board.detailed();
    if (turn !== this.board.turn) return;
    const listed = runs.flatMap((run) => run.details.events.map((event) => ({ run, event }))).filter(({ event }) => this.routine || !ROUTINE.includes(event.name));
    listed.sort((one, other) => (other.event.wall_seconds ?? 0) - (one.event.wall_seconds ?? 0));
    const rows = listed.slice(0, 500).map(({ run, event }) => element("tr", {}, element("td", { className: "number muted", textContent: duration(event.wall_seconds) }),
      element("td", { title: run.name }, runMark(run.slot)), element("td", {}, element("b", { textContent: words(event.name) })), element("td", { textContent: event.text })));
    this.events.replaceChildren(rows.length ? element("table", { className: "events" }, element("tbody", {}, ...rows)) : element("p", { className: "muted", textContent: "Nothing out of the ordinary" }));
    this.#drawLogs(runs, await this.board.source.logs(runs.slice(0, 8).map((run) => run.id)));
  }

  #drawLogs(runs, logs) {
    const shown = new Set(logs.map((log) => log.id));
    for (const [id, part] of this.open) if (!shown.has(id)) { part.article.remove(); this.open.delete(id); }
    for (const log of logs) {
      const run = runs.find((each) => each.id === log.id);
      if (!this.open.has(log.id)) {
        const text = element("pre", { className: "log", tabIndex: 0 });
        const heading = element("div", {});
        const article = element("article", { className: "card box" }, heading, text);
        this.open.set(log.id, { article, text, heading });
        this.logs.append(article);
      }
      const { text, heading } = this.open.get(log.id);
      heading.replaceChildren(element("h3", {}, runMark(run.slot), `Log of ${run.name}`));
      const content = log.lines.join("\n").trimEnd() || "empty";
      const follows = text.scrollHeight - text.scrollTop - text.clientHeight < 30;
      if (text.textContent !== content) text.textContent = content;
      if (follows) text.scrollTop = text.scrollHeight;
    }
  }
}
