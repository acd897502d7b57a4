// Elements and texts. Whatever comes from disk becomes text of an element and never markup.

/** An element; properties beginning with -- are styles, `data` and `aria` are groups, functions are listeners. */
function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("--")) made.style.setProperty(name, value);
    else if (name === "aria") for (const [key, word] of Object.entries(value)) made.setAttribute(`aria-${key}`, word);
    else if (name === "role") made.setAttribute(name, value);
    else made[name] = value;
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

function byId(id) {
  return document.getElementById(id);
}

/** 1234567 as 1.23M; three digits or so. */
function compact(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "";
  const size = Math.abs(value);
  if (size >= 1e15 || (size > 0 && size < 1e-3)) return value.toExponential(1).replace("e+", "e");
  for (const [unit, letter] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (size >= unit) {
      const scaled = value / (letter === "k" ? 1e3 : unit);
      return trimmed(scaled, Math.abs(scaled) >= 100 ? 0 : Math.abs(scaled) >= 10 ? 1 : 2) + letter;
    }
  }
  if (size >= 1000) return Math.round(value).toLocaleString("en-US");
  return trimmed(value, size >= 100 ? 1 : size >= 10 ? 2 : size >= 1 ? 2 : 3);
}

function trimmed(value, digits) {
  return Number(value.toFixed(digits)).toString();
}

/** Scores keep their decimals, so that columns of them can be read. */
function score(value) {
  if (value === null || value === undefined) return "";
  const size = Math.abs(value);
  if (size >= 1e5) return compact(value);
  return value.toLocaleString("en-US", { maximumFractionDigits: size >= 100 ? 1 : 2, minimumFractionDigits: size >= 100 ? 1 : 2 });
}

/** Seconds as 0:07, 12:34 or 3:25:45; days as 2 d 3:25. */
function duration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  const whole = Math.max(0, Math.floor(seconds));
  const two = (number) => String(number).padStart(2, "0");
  const [days, hours, minutes] = [Math.floor(whole / 86400), Math.floor(whole / 3600), Math.floor(whole / 60) % 60];
  if (days > 1) return `${days} d ${hours % 24}:${two(minutes)}`;
  return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}

/** How long ago a time in seconds since 1970 is. */
function ago(since) {
  if (!since) return "";
  const seconds = Date.now() / 1000 - since;
  for (const [unit, word] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (seconds >= unit) return `${Math.floor(seconds / unit)} ${word} ago`;
  }
  return "just now";
}

function moment(since) {
  return since ? new Date(since * 1000).toLocaleString() : "";
}

function bytes(size) {
  return size >= 1e6 ? `${(size / 1e6).toFixed(1)} MB` : `${Math.max(1, Math.round(size / 1e3))} kB`;
}

/** train/online_score_mean as "online score mean". */
function words(name) {
  return name.replace(/^train\//, "").replaceAll("_", " ").replaceAll("/", " / ");
}

function plural(count, noun) {
  return `${count.toLocaleString("en-US")} ${noun}${count === 1 ? "" : "s"}`;
}

const COLORS = 10;
const resolved = new Map();

/** A color of the style sheet as a canvas understands it, in the theme that is shown. */
function color(name) {
  if (!resolved.has(name)) {
    const probe = element("i", { hidden: true });
    probe.style.color = `var(--${name})`;
    document.body.append(probe);
    resolved.set(name, getComputedStyle(probe).color);
    probe.remove();
  }
  return resolved.get(name);
}

/** The color of a place among the selected runs; from the eleventh on lines are dashed. */
function slotColor(slot) {
  return `c${slot % COLORS}`;
}

function isDashed(slot) {
  return Math.floor(slot / COLORS) % 2 === 1;
}

function runMark(slot) {
  return element("span", { className: isDashed(slot) ? "dot dashed" : "dot", "--color": `var(--${slotColor(slot)})` });
}

/** Buttons of which one is pressed; choices are [value, text]. */
function segments(choices, chosen, label, choose) {
  const made = choices.map(([value, text]) =>
    element("button", { textContent: text, type: "button", aria: { pressed: String(value === chosen) }, onclick: () => choose(value) }));
  return element("div", { className: "segments", role: "group", aria: { label } }, ...made);
}
