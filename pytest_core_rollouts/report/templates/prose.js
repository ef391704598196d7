// Prose: every mark of Markdown stays, dimmed, and what it marks is set as it is meant. No character is left out; only
// the line breaks of a hard-wrapped paragraph become spaces, so that it is not wrapped twice.

const LEAST_WRAPPED = 50; // characters of the longest line of a paragraph that counts as hard-wrapped
const INLINE =
  /(\*\*|__)(?=\S)(.{1,400}?\S?)\1|(`{1,3})(?!`)(.{1,400}?)\3(?!`)|(?<![\w*])(\*|_)(?=[^\s*_])([^*_\n]{1,400}?)(?<=\S)\5(?![\w*])/g;
const LIST = /^\s{0,6}(?:[-*+]|\d{1,3}[.)])\s/;
const HEADING = /^(#{1,6}\s+)(.*)$/;
const TABLE = /^\s*\|/;
const STARTS_ANEW = /^\s*(?:#{1,6}\s|[|>]|(?:-{3,}|\*{3,}|={3,})\s*$)|^(?: {7,}|\t)/;

const mark = (text) => h("span", { class: "md" }, visible(text));

/** A line with its bold, emphasized and code words. */
const inline = (line) => {
  const nodes = [];
  let last = 0;
  for (const found of line.matchAll(INLINE)) {
    const [whole, bold, boldText, tick, codeText, star, starText] = found;
    const [sign, tag, text] = bold
      ? [bold, "strong", boldText]
      : tick
        ? [tick, "code", codeText]
        : [star, "em", starText];
    nodes.push(visible(line.slice(last, found.index)), mark(sign), h(tag, null, visible(text)), mark(sign));
    last = found.index + whole.length;
  }
  nodes.push(visible(line.slice(last)));
  return nodes.filter((node) => node !== "");
};

const firstWord = (line) => line.trimStart().split(/\s/, 1)[0];

/** Whether the lines were broken at a width: in none of them had the next line's first word had room. */
const isWrapped = (lines) => {
  const width = Math.max(...lines.map((line) => line.length));
  return (
    lines.length > 1 &&
    width >= LEAST_WRAPPED &&
    lines.every(
      (line, at) =>
        at === lines.length - 1 ||
        (!/(?: {2}|\\)$/.test(line) && line.length + 1 + firstWord(lines[at + 1]).length > width),
    )
  );
};

/** Lines in groups: a paragraph, an entry of a list, the rows of a table, or one other line. */
const groupsOf = (lines) => {
  const groups = [];
  for (const line of lines) {
    const last = groups.at(-1);
    const kind = TABLE.test(line) ? "table" : !line.trim() || STARTS_ANEW.test(line) ? "line" : "text";
    if (last && last.kind === kind && kind !== "line" && !(kind === "text" && LIST.test(line))) last.lines.push(line);
    else groups.push({ kind, lines: [line] });
  }
  return groups;
};

const groupNodes = ({ kind, lines }) => {
  if (kind === "table" && lines.length > 1) return [h("span", { class: "md-table" }, visible(lines.join("\n")))];
  const [line] = lines;
  const heading = kind === "line" && HEADING.exec(line);
  if (heading) return [mark(heading[1]), h("strong", null, inline(heading[2]))];
  if (isWrapped(lines)) return inline([line.trimEnd(), ...lines.slice(1).map((one) => one.trim())].join(" "));
  return lines.flatMap((one, at) => [at ? "\n" : "", ...inline(one)]).filter((node) => node !== "");
};

const proseText = (text) =>
  groupsOf(text.split("\n")).flatMap((group, at) => [...(at ? ["\n"] : []), ...groupNodes(group)]);

/** What stands between fences is set as code. */
const prose = (text) =>
  text
    .split(/^(```[^\n]*\n?)/m) // a text, a fence, code, a fence, a text, ...
    .flatMap((part, index) => {
      if (index % 4 === 2) return [h("pre", { class: "fence" }, visible(part.replace(/\n$/, "")))];
      return index % 2 ? [mark(part)] : proseText(part);
    });
