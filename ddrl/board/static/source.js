"use strict";
// Where the numbers come from: a server that is asked again and again, or the page itself.

class ServedSource {
  live = true;

  constructor() {
    this.token = new URLSearchParams(location.search).get("token") ?? "";
  }

  /** Rows that changed since versions {id: version} were known. */
  runs(known) {
    return this.#ask("runs", { ids: Object.keys(known).join(), versions: Object.values(known).join() });
  }

  /** {id: {version, columns: {name: [number or null]}}} */
  series(ids, names) {
    return this.#ask("series", { ids: ids.join() }, names);
  }

  /** Settings, events, videos and times. */
  details(ids) {
    return this.#ask("details", { ids: ids.join() });
  }

  logs(ids) {
    return this.#ask("log", { ids: ids.join() });
  }

  /** Address of a video. */
  video(id, index) {
    return `video/${id}/${index}?${new URLSearchParams({ token: this.token })}`;
  }

  async #ask(path, parameters, names = []) {
    const query = new URLSearchParams({ ...parameters, token: this.token });
    names.forEach((name) => query.append("name", name));
    const answer = await fetch(`${path}?${query}`, { signal: AbortSignal.timeout(60000) });
    if (!answer.ok) throw new Error(await answer.text());
    return answer.json();
  }
}

class WrittenSource {
  live = false;

  constructor(content) {
    this.content = content;
  }

  async runs(known) {
    return Object.keys(known).length ? { ...this.content, runs: [] } : this.content;
  }

  async series(ids) {
    return Object.fromEntries(ids.map((id) => [id, this.content.series[id]]));
  }

  async details(ids) {
    return this.content.details.filter((each) => ids.includes(each.id));
  }

  async logs(ids) {
    return this.content.logs.filter((each) => ids.includes(each.id));
  }

  video(id, index) {
    return this.content.videos[`${id}/${index}`];
  }
}
