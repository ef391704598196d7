// Text of any size and content: terminal colors, invisible characters, lines of megabytes.

const PAGE = 60000; // characters laid out at a time
const HEAD = { lines: 10, chars: 2000 };
const TAIL = { lines: 6, chars: 1200 };

const ESCAPES =
  /\u001b(?:\[([0-9;:?<=>]*)[ -/]*([@-~])|\][^\u0007\u001b]*(?:\u0007|\u001b\\)?|[PX^_][^\u001b]*(?:\u001b\\)?|[ -/]*[0-~])/g;

/** Plain text as nodes: every invisible character shown. */
const plain = (text) => [visible(text)];

/** Terminal output as nodes: colors and weights kept, every other escape sequence dropped. */
const terminal = (text) => {
  const nodes = [];
  const style = { color: null, bold: false, dim: false };
  const add = (part) => {
    if (!part) return;
    const classes = [style.color, style.bold && "t-bold", style.dim && "t-dim"].filter(Boolean);
    nodes.push(classes.length ? h("span", { class: classes.join(" ") }, visible(part)) : visible(part));
  };
  let last = 0;
  const lines = text.replace(/\r\n?/g, "\n");
  for (const match of lines.matchAll(ESCAPES)) {
    add(lines.slice(last, match.index));
    last = match.index + match[0].length;
    if (match[2] === "m") restyle(style, match[1]);
  }
  add(lines.slice(last));
  return nodes;
};

const restyle = (style, codes) => {
  const numbers = codes.split(/[;:]/).map(Number);
  for (let at = 0; at < numbers.length; at++) {
    const code = numbers[at];
    if (code === 0) Object.assign(style, { color: null, bold: false, dim: false });
    else if (code === 1) style.bold = true;
    else if (code === 2) style.dim = true;
    else if (code === 22) style.bold = style.dim = false;
    else if (code === 39) style.color = null;
    else if ((code >= 30 && code <= 37) || (code >= 90 && code <= 97)) style.color = `t-${code % 10}`;
    else if (code === 38 || code === 48) at += numbers[at + 1] === 5 ? 2 : 4;
  }
};

const nthLine = (text, count) => {
  let at = -1;
  for (let line = 0; line < count; line++) {
    at = text.indexOf("\n", at + 1);
    if (at < 0) return text.length;
  }
  return at;
};

const nthLineFromEnd = (text, count) => {
  let at = text.length;
  for (let line = 0; line < count && at > 0; line++) at = text.lastIndexOf("\n", at - 1);
  return Math.max(at + 1, 0);
};

const countLines = (text, from, to) => {
  let count = 0;
  for (let at = text.indexOf("\n", from); at >= 0 && at < to; at = text.indexOf("\n", at + 1)) count++;
  return count;
};

// Never cut a pair of surrogates in two.
const edge = (text, at) => (/[\udc00-\udfff]/.test(text.charAt(at)) ? at - 1 : at);

const leftOut = (text, from, to) => {
  const lines = countLines(text, from, to);
  return lines > 1 ? `${lines.toLocaleString("en")} more lines` : `${(to - from).toLocaleString("en")} more characters`;
};

/**
 * A block of text that shows its first and last lines, and the rest when asked, a page at a time.
 * `nodes`: how text becomes nodes (plain, terminal, ...). `tail`: whether the end is worth showing.
 */
const textBlock = (text, { nodes = plain, tail = true, kind = "mono", label = "text" } = {}) => {
  const body = text.replace(/\n+$/, "");
  const block = h("div", { class: `text ${kind}`, dir: "auto" });
  const start = edge(body, Math.min(nthLine(body, HEAD.lines), HEAD.chars));
  const end = tail
    ? edge(body, Math.max(nthLineFromEnd(body, TAIL.lines), body.length - TAIL.chars, start))
    : body.length;
  const worth = tail ? end - start > 80 : body.length - start > 80;
  const fold = (open) => replace(block, open ? paged(body, nodes, () => fold(false)) : folded());
  const folded = () => [
    h("div", null, nodes(body.slice(0, start))),
    h(
      "button",
      {
        type: "button",
        class: "fold",
        "data-fold": "open",
        "aria-label": `Show the whole ${label}`,
        click: () => fold(true),
      },
      `\u22ef ${leftOut(body, start, end)}`,
    ),
    tail && end < body.length && h("div", null, nodes(body.slice(end))),
  ];
  if (worth) {
    block.folded = body.slice(start, end); // for a search
    fold(false);
  } else block.append(h("div", null, nodes(body)));
  return block;
};

const paged = (text, nodes, close) => {
  const out = h("div");
  const more = h("button", { type: "button", class: "fold", click: () => next() });
  const less = h("button", { type: "button", class: "fold", "data-fold": "close", click: close }, "Show less");
  let at = 0;
  const next = () => {
    const to = edge(text, Math.min(text.length, at + PAGE));
    out.append(h("div", { class: "page" }, nodes(text.slice(at, to))));
    at = to;
    more.hidden = at >= text.length;
    more.textContent = `\u22ef ${leftOut(text, at, text.length)}`;
  };
  next();
  return [out, more, less];
};
