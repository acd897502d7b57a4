"use strict";
// Where the numbers come from: a server that is asked again and again, or the page itself.

const MOST_RUNS = 1000; // that one request may ask for

class ServedSource {
  live = true;

  constructor() {
    this.token = new URLSearchParams(location.search).get("token") ?? "";
  }

  /** Rows that have changed since a version: a later change of any run has a larger one. */
  runs(since) {
    return this.#ask("runs", { since });
  }

  /** {id: {version, columns: {name: [number or null]}}} */
  async series(ids, names) {
    return Object.assign({}, ...(await this.#askInParts("series", ids, names)));
  }

  /** Settings, events, videos and times. */
  async details(ids) {
    return (await this.#askInParts("details", ids)).flat();
  }

  logs(ids) {
    return this.#ask("log", { ids: ids.join() });
  }

  /** Address of a video. */
  video(id, index) {
    return `video/${id}/${index}?${new URLSearchParams({ token: this.token })}`;
  }

  /** The answers to the requests that so many runs need. */
  async #askInParts(path, ids, names) {
    const answers = [];
    for (let i = 0; i < ids.length; i += MOST_RUNS) answers.push(await this.#ask(path, { ids: ids.slice(i, i + MOST_RUNS).join() }, names));
    return answers;
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

  async runs(since) {
    return since ? { ...this.content, runs: [] } : this.content;
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
