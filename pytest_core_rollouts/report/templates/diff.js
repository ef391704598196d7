// Differences: patches as agents write them, and what was expected beside what was answered.

const MOST_CELLS = 250000; // of the table that compares lines

const diffLine = (kind, text) => h("div", { class: `d-line d-${kind}` }, visible(text) || " ");

const PATCH = /^(?:diff --git |\*\*\* Begin Patch|--- .+\n\+\+\+ .+)/m;

/** Whether `text` is a patch: a unified diff, or the form that starts with "*** Begin Patch". */
const isPatch = (text) => text.length < 2e6 && PATCH.test(text);

const patchKind = (line) => {
  if (/^(?:diff |index |--- |\+\+\+ |\*\*\* |new file|deleted file|similarity|rename )/.test(line)) return "head";
  if (line.startsWith("@@")) return "hunk";
  return { "+": "add", "-": "del" }[line[0]] || "same";
};

/** A patch as nodes, one a line. */
const patchNodes = (text) => text.split("\n").map((line) => diffLine(patchKind(line), line));

/** What was there and what takes its place, as lines with the common ones once. */
const linesDiff = (before, after) => {
  const [a, b] = [before.split("\n"), after.split("\n")];
  if (a.length * b.length > MOST_CELLS) return [...a.map((line) => ["del", line]), ...b.map((line) => ["add", line])];
  const width = b.length + 1;
  const common = new Uint32Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      common[i * width + j] =
        a[i] === b[j]
          ? common[(i + 1) * width + j + 1] + 1
          : Math.max(common[(i + 1) * width + j], common[i * width + j + 1]);
    }
  }
  const lines = [];
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) lines.push(["same", a[i++], j++]);
    else if (j >= b.length || (i < a.length && common[(i + 1) * width + j] >= common[i * width + j + 1]))
      lines.push(["del", a[i++]]);
    else lines.push(["add", b[j++]]);
  }
  return lines;
};

const SIGN = { add: "+ ", del: "- ", same: "  " };

const replacement = (before, after) => {
  const text = linesDiff(before, after)
    .map(([kind, line]) => SIGN[kind] + line)
    .join("\n");
  return textBlock(text, {
    nodes: (part) => part.split("\n").map((line) => diffLine(patchKind(line), line)),
    tail: false,
    label: "change",
    kind: "mono diff",
  });
};

/** One value with the part that differs from `other` marked: what is between their common start and end. */
const marked = (text, other, kind) => {
  if (other === undefined || text.length > 2000 || other.length > 2000 || text === other) return [visible(text)];
  let start = 0;
  while (start < text.length && start < other.length && text[start] === other[start]) start++;
  let end = 0;
  while (
    end < text.length - start &&
    end < other.length - start &&
    text[text.length - 1 - end] === other[other.length - 1 - end]
  )
    end++;
  const middle = text.slice(start, text.length - end);
  return [
    visible(text.slice(0, start)),
    middle && h("mark", { class: kind }, visible(middle)),
    visible(text.slice(text.length - end)),
  ];
};

const SPECIAL = new Map([
  ['"(missing)"', "missing"],
  ['"(nothing)"', "nothing"],
]);

const valueNode = (text, other, kind) => {
  if (text === undefined) return h("span", { class: "muted" }, kind === "was" ? "hidden" : "\u2013");
  if (SPECIAL.has(text)) return h("em", { class: "muted" }, SPECIAL.get(text));
  return text.length > 600
    ? textBlock(text, { label: "value" })
    : h("div", { class: "text mono", dir: "auto" }, marked(text, SPECIAL.has(other) ? undefined : other, kind));
};

const MOST_REASONS = 8;

/** The places where the answer differs, as a table; of many, the first ones until more are asked for. */
const reasonsTable = (reasons) => {
  const rest = reasons.length > MOST_REASONS + 1 ? reasons.slice(MOST_REASONS) : [];
  const hidden = reasons.every((reason) => reason.expected === undefined);
  const heads = ["Place", !hidden && "Expected", "Answered"].filter(Boolean);
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": "Where the answer differs" },
    h(
      "table",
      { class: "reasons" },
      h(
        "thead",
        null,
        h(
          "tr",
          null,
          heads.map((head) => h("th", { scope: "col" }, head)),
        ),
      ),
      h(
        "tbody",
        null,
        reasons.slice(0, reasons.length - rest.length).map((reason) => reasonRow(reason, hidden)),
        rest.length > 0 && moreReasons(rest, hidden, heads.length),
      ),
    ),
  );
};

const moreReasons = (rest, hidden, columns) => {
  const line = h(
    "tr",
    null,
    h(
      "td",
      { colspan: String(columns) },
      h(
        "button",
        {
          type: "button",
          class: "fold",
          click: () => line.replaceWith(...rest.map((reason) => reasonRow(reason, hidden))),
        },
        `\u22ef ${rest.length.toLocaleString("en")} more`,
      ),
    ),
  );
  return line;
};

const reasonRow = (reason, hidden) => {
  const both = reason.expected !== undefined && reason.answered !== undefined;
  if (!hidden && both && reason.expected.includes("\n") && reason.answered.includes("\n")) {
    return h(
      "tr",
      null,
      h("th", { scope: "row", class: "mono" }, visible(reason.path)),
      h(
        "td",
        { colspan: "2", class: "expected-answered" },
        h("p", { class: "muted small" }, "- expected, + answered"),
        replacement(reason.expected, reason.answered),
      ),
    );
  }
  return h(
    "tr",
    null,
    h("th", { scope: "row", class: "mono" }, visible(reason.path)),
    !hidden && h("td", null, valueNode(reason.expected, reason.answered, "was")),
    h("td", null, valueNode(reason.answered, hidden ? undefined : reason.expected, "is")),
  );
};
