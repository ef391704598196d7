// Elements. Text from records reaches the page only through text nodes and attributes, never as markup.

const SVG = "http://www.w3.org/2000/svg";

const fill = (node, props, children) => {
  for (const [name, value] of Object.entries(props || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(name, value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
};

/** An element: `h("a", {href: "#/", click: go}, "text", node, ...)`; functions are listeners, the rest attributes. */
const h = (tag, props, ...children) => fill(document.createElement(tag), props, children);
const svg = (tag, props, ...children) => fill(document.createElementNS(SVG, tag), props, children);

const replace = (node, ...children) => {
  node.replaceChildren(...children.flat(Infinity).filter(Boolean));
  return node;
};

const byId = (id) => document.getElementById(id);

// Characters that would hide, reorder or break text are shown by name instead.
const LONE = /[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;
const HIDDEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

const CONTROLS =
  "NUL SOH STX ETX EOT ENQ ACK BEL BS TAB LF VT FF CR SO SI DLE DC1 DC2 DC3 DC4 NAK SYN ETB CAN EM SUB ESC FS GS RS US".split(
    " ",
  );

const named = (char) => {
  const code = char.charCodeAt(0);
  return `\u27e8${CONTROLS[code] ?? `U+${code.toString(16).toUpperCase().padStart(4, "0")}`}\u27e9`;
};

/** `text` with nothing in it that cannot be seen; line breaks and tabs stay. */
const visible = (text) => text.replace(LONE, "\ufffd").replace(HIDDEN, named);

/** The same on one line, and not longer than `limit`: for names and titles. */
const oneLine = (text, limit = 200) => {
  const line = visible(String(text).slice(0, limit + 1)).replace(/\s+/g, " ");
  return line.length > limit ? `${line.slice(0, limit)}\u2026` : line;
};

const plural = (count, thing) => `${count.toLocaleString("en")} ${thing}${count === 1 ? "" : "s"}`;

const seconds = (value) => {
  if (typeof value !== "number") return "\u2013";
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 90) return `${value.toFixed(value < 10 ? 1 : 0)} s`;
  if (value < 5400) return `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
  return `${(value / 3600).toFixed(1)} h`;
};

const short = (value) => {
  if (typeof value !== "number") return "\u2013";
  for (const [unit, size] of [
    ["G", 1e9],
    ["M", 1e6],
    ["k", 1e3],
  ]) {
    if (value >= size) return `${(value / size).toFixed(value < 10 * size ? 1 : 0)}${unit}`;
  }
  return String(value);
};

/** A reward with three decimals; only 0 prints as 0.000 and only 1 as 1.000. */
const reward = (value) => {
  if (value === null || value === undefined) return "\u2013";
  const text = value > 0 && value < 1 ? Math.min(Math.max(value, 0.001), 0.999) : value;
  return text.toFixed(3);
};
