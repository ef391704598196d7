// Outcomes: how they are called, drawn, counted and linked to.

const NAMES = {
  solved: "reward 1",
  partial: "a reward between 0 and 1",
  unsolved: "a wrong answer: reward 0",
  timeout: "no answer in time: reward 0",
  failed: "the agent gave up or broke off: reward 0",
  error: "could not be run or graded: no reward",
  cancelled: "cancelled: no reward",
  "not run": "planned, and not run, or interrupted",
};
const GLYPHS = {
  solved: "",
  partial: "",
  unsolved: "\u00d7",
  timeout: "T",
  failed: "F",
  error: "!",
  cancelled: "\u2013",
  "not run": "",
};

const glyph = (outcome, value) =>
  h(
    "span",
    { class: `sq o-${outcome.replace(" ", "-")}`, "aria-hidden": "true" },
    outcome === "partial"
      ? value === undefined
        ? "\u00bd"
        : String(Math.min(9, Math.max(1, Math.round(value * 10))))
      : GLYPHS[outcome],
  );

const xfailTag = () => h("span", { class: "tag", title: "Expected to fail, so in no figure" }, "xfail");

const badge = (row) =>
  h("span", { class: "badge" }, glyph(row.outcome, row.reward), row.outcome, row.xfail && xfailTag());

// Each address holds the filter, so that a reload, a shared link and Back keep it.
const rolloutUrl = (row, step = "") => `#/rollout/${encode(row.id)}${step && `/${step}`}${query()}`;
const taskUrl = (task) => `#/task/${encode(report.tasks[task])}${query()}`;

const describeRow = (row) =>
  `${oneLine(report.tasks[row.task], 80)}, ${oneLine(report.agents[row.agent].label, 60)}, sample ${row.sample}: ${row.outcome}${row.xfail ? ", xfail" : ""}${row.reward === null ? "" : `, reward ${reward(row.reward)}`}`;

const square = (row) => {
  const link = h("a", {
    class: `sq o-${row.outcome.replace(" ", "-")}`,
    href: rolloutUrl(row),
    tabindex: "-1",
    "aria-label": describeRow(row),
    title: `${describeRow(row)}${row.brief ? `\n${oneLine(row.brief)}` : ""}`,
  });
  link.textContent = row.outcome === "partial" ? glyph(row.outcome, row.reward).textContent : GLYPHS[row.outcome];
  if (!matches(row)) link.classList.add("dim");
  return link;
};

const countOutcomes = (rows, withoutRow = 0) =>
  report.outcomes
    .map((name) => [name, rows.filter((row) => row.outcome === name).length + (name === "not run" ? withoutRow : 0)])
    .filter(([, count]) => count);

/** An agent's name in two lines, so that a column is as wide as its squares. */
const agentHead = (at) => {
  const [first, ...rest] = oneLine(report.agents[at].label, 120).split("/");
  return h(
    "span",
    { class: "agent-head" },
    h("span", { class: "agent" }, seriesMark(at), h("span", { class: "name" }, first)),
    rest.length > 0 && h("span", { class: "name second" }, rest.join("/")),
  );
};

const agentName = (at) => [seriesMark(at), h("span", { class: "name" }, oneLine(report.agents[at].label, 120))];
