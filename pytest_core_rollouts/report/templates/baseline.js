// The page that compares with a baseline.

// Colored only where chance does not explain it.
const direction = (change, sure) => (sure && change > 0 ? "better" : sure && change < 0 ? "worse" : "");

const changeText = (change) =>
  h("span", { class: direction(change.value, change.sure) }, change.text, change.range && ` (${change.range})`);

const baselinePage = () => ({
  title: "Baseline",
  up: `#/${query()}`,
  nodes: [
    h("h1", null, "Compared with the baseline"),
    h(
      "p",
      { class: "muted" },
      `${oneLine(report.files.join(", "), 300)} compared with ${oneLine(report.baseline.files.join(", "), 300)}: mean rewards on tasks that did not change, with the 95% interval of the difference, paired by task`,
    ),
    report.baseline.agents.map(comparison),
    unmatched("Agents that the baseline does not have", report.baseline.onlyNow),
    unmatched("Agents that only the baseline has", report.baseline.onlyThen),
  ],
});

const unmatched = (text, names) =>
  names.length > 0 && h("p", null, h("strong", null, `${text}: `), names.map((name) => oneLine(name, 80)).join(", "));

const CHANGES = [
  ["worse", (change) => change < 0],
  ["better", (change) => change > 0],
  ["same", (change) => change === 0],
];

/** The compared tasks in groups: worse, better, and those that did not change, which are folded. */
const changeGroups = (one) =>
  CHANGES.map(([name, belongs]) => {
    const rows = one.rows.filter((row) => belongs(row.change));
    if (!rows.length) return null;
    const shown = name === "better" ? rows.toReversed() : rows; // the largest change first
    const title = `${name[0].toUpperCase()}${name.slice(1)}: ${plural(rows.length, "task")}`;
    const table = h("div", { class: `changes c-${name}` }, changeTable(one, shown, title));
    return name === "same"
      ? h("details", { class: "fold-box" }, h("summary", null, title), table)
      : [h("h3", { class: `change-head c-${name}` }, title), table];
  });

/** A change from -1 to 1 as a bar from the middle. */
const changeBar = (change) => {
  const [from, to] = [60, 60 + change * 56].sort((a, b) => a - b);
  return svg(
    "svg",
    { class: "change-bar", width: 120, height: 14, viewBox: "0 0 120 14", "aria-hidden": "true" },
    svg("path", { class: "grid", d: "M4 7h112" }),
    svg("rect", {
      class: change < 0 ? "c-worse" : "c-better",
      x: from,
      y: 3,
      width: Math.max(to - from, 1.5),
      height: 8,
      rx: 1.5,
    }),
    svg("path", { class: "zero", d: "M60 0v14" }),
  );
};

const changeTable = (one, rows, title) =>
  h(
    "table",
    { class: "cards-on-phones", "aria-label": `${oneLine(report.agents[one.agent].label, 60)}. ${title}` },
    h(
      "thead",
      null,
      h(
        "tr",
        null,
        ["Task", "Baseline", "Now", "Change", "By chance"].map((head) => h("th", { scope: "col" }, head)),
      ),
    ),
    h(
      "tbody",
      null,
      rows.map((row) =>
        h(
          "tr",
          null,
          h("th", { scope: "row" }, h("a", { href: taskUrl(row.task) }, oneLine(report.tasks[row.task]))),
          h(
            "td",
            { "data-label": "Baseline" },
            h(
              "div",
              { class: "cell" },
              h(
                "div",
                { class: "squares" },
                row.squares.map(([outcome, value]) => glyph(outcome, value ?? undefined)),
              ),
              h("span", { class: "count" }, row.before),
            ),
          ),
          h(
            "td",
            { "data-label": "Now" },
            h(
              "div",
              { class: "cell" },
              h("div", { class: "squares" }, report.groups[row.task][one.agent].map(square)),
              h("span", { class: "count" }, row.after),
            ),
          ),
          h(
            "td",
            { "data-label": "Change" },
            h(
              "div",
              { class: "change" },
              changeBar(row.change),
              h("span", { class: direction(row.change, row.sure) }, row.text),
            ),
          ),
          h("td", { "data-label": "By chance" }, chanceOf(row)),
        ),
      ),
    ),
  );

/** The p-values, folded: of most single tasks they say nothing. */
const chanceOf = (row) =>
  h(
    "details",
    { class: "chance" },
    h("summary", null, row.sure ? "not by chance" : "may be chance"),
    h(
      "span",
      {
        class: "small",
        title: "Fisher's exact test of the solved samples, two-sided; Holm's correction for all tasks compared",
      },
      `p = ${row.p}, corrected ${row.corrected}`,
    ),
  );

const comparison = (one) =>
  h(
    "section",
    { class: "panel", "aria-label": oneLine(report.agents[one.agent].label, 60) },
    h("div", { class: "panel-head" }, h("h2", null, h("span", { class: "agent" }, agentName(one.agent)))),
    h(
      "dl",
      { class: "facts" },
      fact("Baseline", one.before),
      fact("Now", one.after),
      fact("Change", changeText(one.change)),
      fact("Tasks compared", String(one.tasks)),
      fact(
        "Worse / better / same",
        CHANGES.map(([, belongs]) => one.rows.filter((row) => belongs(row.change)).length).join(" / "),
      ),
    ),
    one.power.length > 0 &&
      h(
        "details",
        { class: "small chance" },
        h("summary", null, one.change.sure ? "Chance does not explain this" : "Chance may explain this"),
        `A difference this large by chance: p = ${one.p} on these tasks (two-sided). ${one.power.map((text) => `${text[0].toUpperCase()}${text.slice(1)}.`).join(" ")}`,
      ),
    changeGroups(one),
    one.xfails.length > 0 &&
      h(
        "p",
        { class: "muted small" },
        "Expected to fail now, so in no figure here: ",
        one.xfails.map((name) => oneLine(name, 80)).join(", "),
      ),
    one.leftOut.map(([text, tasks]) => unmatched(text, tasks)),
  );
