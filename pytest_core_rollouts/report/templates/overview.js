// The first page: how each agent did, where they differ.

const NAMES = {
  solved: "reward 1",
  partial: "a reward between 0 and 1",
  unsolved: "a wrong answer: reward 0",
  timeout: "no answer in time: reward 0",
  failed: "the agent gave up or broke off: reward 0",
  error: "could not be run or graded: no reward",
  cancelled: "cancelled: no reward",
  "not run": "selected, and no row",
};
const GLYPHS = { solved: "", partial: "", unsolved: "\u00d7", timeout: "T", failed: "F", error: "!", cancelled: "\u2013", "not run": "" };

const glyph = (outcome, value) =>
  h("span", { class: `sq o-${outcome.replace(" ", "-")}`, "aria-hidden": "true" }, outcome === "partial" ? (value === undefined ? "\u00bd" : String(Math.min(9, Math.max(1, Math.round(value * 10))))) : GLYPHS[outcome]);

const badge = (row) => h("span", { class: "badge" }, glyph(row.outcome, row.reward), row.outcome, row.xfail && h("span", { class: "tag", title: "This rollout was expected to fail" }, "xfail"));

const rolloutUrl = (row) => `#/rollout/${encode(row.id)}`;
const taskUrl = (task) => `#/task/${encode(report.tasks[task])}`;

const describeRow = (row) =>
  `${oneLine(report.tasks[row.task], 80)}, ${oneLine(report.agents[row.agent].label, 60)}, sample ${row.sample}: ${row.outcome}${row.reward === null ? "" : `, reward ${reward(row.reward)}`}`;

const square = (row) => {
  const link = h("a", { class: `sq o-${row.outcome}`, href: rolloutUrl(row), tabindex: "-1", "aria-label": describeRow(row), title: `${describeRow(row)}${row.brief ? `\n${oneLine(row.brief)}` : ""}` });
  link.textContent = row.outcome === "partial" ? glyph(row.outcome, row.reward).textContent : GLYPHS[row.outcome];
  if (!matches(row)) link.classList.add("dim");
  return link;
};

const countOutcomes = (rows, missing = 0) => {
  const counts = report.outcomes.map((name) => [name, rows.filter((row) => row.outcome === name).length]);
  return [...counts, ["not run", missing]].filter(([, count]) => count);
};

const agentName = (at) => [seriesMark(at), h("span", { class: "name" }, oneLine(report.agents[at].label, 120))];

const mostSamples = () => Math.max(0, ...report.groups.flat().map((group) => group.length));

const headline = () => {
  const rows = report.rows.length;
  const starts = report.runs.map((run) => run.first).filter(Boolean).sort();
  const facts = [
    rows < report.planned && `${rows.toLocaleString("en")} of ${plural(report.planned, "rollout")} selected have a row`,
    `up to ${plural(mostSamples(), "sample")} of each task`,
    report.runs.length > 1 && plural(report.runs.length, "run"),
    starts.length > 0 && `started ${oneLine(starts[0], 40).replace("T", " ").replace(/(:\d\d)\.\d+/, "$1").replace("+00:00", " UTC")}`,
  ];
  return h("div", { class: "headline" },
    h("h1", null, `${plural(rows, "rollout")} of ${plural(report.tasks.length, "task")} by ${plural(report.agents.length, "agent")}`),
    h("p", { class: "muted" }, facts.filter(Boolean).join(" \u00b7 ")));
};

// Agents

/** The k of the second pass@k column: the largest that every agent has on all of its tasks, else the largest. */
const shownK = () => {
  const ks = report.agents.map((agent) => agent.passAt.filter((point) => !point.leftOut).map((point) => point.k));
  const common = ks.length ? ks[0].filter((k) => ks.every((other) => other.includes(k))) : [];
  return Math.max(1, ...common) > 1 ? Math.max(...common) : Math.max(1, ...report.agents.flatMap((agent) => agent.passAt.map((point) => point.k)));
};

const agentsTable = () => {
  const most = shownK();
  const tokens = report.agents.some((agent) => agent.tokens !== null);
  const heads = ["Agent", "Mean reward", "95% interval", "pass@1", most > 1 && `pass@${most}`, "Outcomes", "Graded", "Mean time", tokens && "Tokens"].filter(Boolean);
  const numeric = new Set(["pass@1", `pass@${most}`, "Graded", "Mean time", "Tokens"]);
  const body = report.agents.map((agent, at) => {
    const rows = report.rows.filter((row) => row.agent === at);
    const pass = (k) => agent.passAt.find((point) => point.k === k)?.text ?? "n/a";
    return h("tr", null,
      h("th", { scope: "row" }, h("span", { class: "agent" }, agentName(at))),
      h("td", { class: "figure" }, agent.meanReward.text, agent.meanReward.bounds && h("div", { class: "muted small", title: "The mean reward if every rollout without a grade had failed, and if every one had passed" }, `${agent.meanReward.bounds} with the missing`)),
      h("td", { class: "nowrap" }, intervalBar(agent.meanReward, at, `Mean reward of ${oneLine(agent.label, 60)}`), h("div", { class: "muted small" }, agent.meanReward.range === "-" ? "none: too few tasks" : agent.meanReward.range)),
      h("td", { class: "num" }, pass(1)),
      most > 1 && h("td", { class: "num" }, pass(most)),
      h("td", null, outcomeBar(countOutcomes(rows, agent.notRun), agent.planned), outcomeCounts(rows, agent.notRun)),
      h("td", { class: "num" }, `${agent.graded.toLocaleString("en")}/${agent.planned.toLocaleString("en")}`),
      h("td", { class: "num" }, seconds(agent.duration)),
      tokens && h("td", { class: "num", title: agent.tokensUnknown ? `Unknown for ${plural(agent.tokensUnknown, "rollout")}` : null }, short(agent.tokens)));
  });
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Agents" },
    h("table", { class: "agents" },
      h("thead", null, h("tr", null, heads.map((head) => h("th", { scope: "col", class: numeric.has(head) ? "num" : null }, head)))),
      h("tbody", null, body)));
};

const outcomeCounts = (rows, missing) =>
  h("div", { class: "tally small" }, countOutcomes(rows, missing).map(([name, count]) =>
    h("span", { title: `${name}: ${NAMES[name]}` }, glyph(name), count.toLocaleString("en"), h("span", { class: "visually-hidden" }, ` ${name}`))));

// Curves

const KINDS = [["passAt", "pass@k", "at least one of k samples solves the task"], ["passHat", "pass^k", "all of k samples solve the task"]];

const curves = () => {
  const panel = h("section", { class: "panel", "aria-label": "pass@k" });
  const draw = (which) => {
    const [key, name, means] = KINDS[which];
    const series = report.agents.map((agent, at) => [agent.label, agent[key], at]).filter(([, points]) => points.length);
    replace(panel,
      h("div", { class: "panel-head" },
        h("h2", null, name),
        h("div", { class: "segments", role: "group", "aria-label": "Which curve" }, KINDS.map(([, text], at) => h("button", { type: "button", "aria-pressed": String(at === which), click: () => draw(at) }, text)))),
      h("p", { class: "muted small" }, `The chance that ${means}, averaged over tasks, with 95% intervals clustered by task`),
      partly(series) && h("p", { class: "muted small" }, "Hollow marks: only some tasks have k graded samples, so a curve may fall or jump there"),
      series.length > MOST_BANDS && h("p", { class: "muted small" }, "The intervals are in the table below"),
      series.length ? chartOf(series, `${name} of ${plural(series.length, "agent")}; the figures are in the table below`) : h("p", { class: "muted" }, "No rollout has a grade yet"),
      h("div", { class: "legend" }, series.map(([, , at]) => h("span", { class: "agent" }, agentName(at)))),
      series.length > 0 && curveTable(series, name));
  };
  draw(0);
  return panel;
};

/** With a single sample of each task there is no curve: the estimates on one scale. */
const chartOf = (series, label) => {
  if (series.some(([, points]) => points.length > 1)) return kChart(series, label);
  return h("div", { class: "scale" }, series.map(([name, [point], at]) => h("div", null, intervalBar(point, at, oneLine(name, 60)), h("span", { class: "num" }, point.text), h("span", { class: "muted small" }, point.range === "-" ? "" : point.range))));
};

const partly = (series) => series.some(([, points]) => points.some((point) => point.leftOut));

const curveTable = (series, name) => {
  const ks = [...new Set(series.flatMap(([, points]) => points.map((point) => point.k)))].sort((a, b) => a - b);
  return h("details", { class: "figures" }, h("summary", null, "Figures"),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Figures of ${name}` },
      h("table", null,
        h("thead", null, h("tr", null, h("th", { scope: "col" }, "k"), series.map(([label]) => h("th", { scope: "col", class: "num" }, oneLine(label, 60))))),
        h("tbody", null, ks.map((k) => h("tr", null, h("th", { scope: "row" }, String(k)),
          series.map(([, points]) => {
            const point = points.find((one) => one.k === k);
            return h("td", { class: "num" }, point ? point.text : "n/a", point && point.range !== "-" && h("span", { class: "muted" }, ` (${point.range})`), point && point.leftOut > 0 && h("span", { class: "muted" }, ` ${point.tasks} of ${point.tasks + point.leftOut} tasks`));
          })))))));
};

// Groups

const HEALTH = [
  ["signal", "with a signal", "samples disagree: these teach"],
  ["all_one", "all solved", "too easy to teach"],
  ["all_zero", "none solved", "too hard to teach"],
  ["alike", "alike", "the same partial reward throughout"],
  ["empty", "no grade", "nothing is known"],
];

const groupHealth = () =>
  h("section", { class: "panel", "aria-label": "Group health" },
    h("div", { class: "panel-head" }, h("h2", null, "Group health")),
    h("p", { class: "muted small" }, "A group is one agent's samples of one task. Training learns only from groups whose samples disagree."),
    mostSamples() === 1 && h("p", { class: "muted small" }, "A single sample has nothing to disagree with: ask for more with --samples."),
    report.agents.map((agent, at) => {
      const { total, complete } = agent.groups;
      return h("div", { class: "health" },
        h("div", { class: "agent" }, agentName(at), h("span", { class: "muted small push nowrap" }, `${agent.groups.signal.toLocaleString("en")} of ${plural(total, "group")} with a signal`)),
        outcomeBar(HEALTH.map(([key, name]) => [`g-${key}`, agent.groups[key], name]).filter(([, count]) => count), total || 1),
        h("ul", { class: "health-list" },
          HEALTH.filter(([key]) => agent.groups[key]).map(([key, name, means]) => h("li", { title: means }, h("span", { class: `dot f-g-${key}` }), `${agent.groups[key].toLocaleString("en")} ${name}`)),
          complete < total && h("li", { class: "muted", title: "some samples have no grade" }, `${(total - complete).toLocaleString("en")} incomplete`)));
    }));

// Faults

const MOST_FAULTS = 6;

const faults = () =>
  report.faults.length > 0 && h("section", { class: "panel", "aria-label": "What went wrong" },
    h("div", { class: "panel-head" }, h("h2", null, "What went wrong")),
    h("ul", { class: "faults" }, report.faults.slice(0, MOST_FAULTS).map(({ kind, count, first }) => {
      const row = report.rows[first];
      return h("li", null, glyph(row.outcome), h("span", { class: "num" }, count.toLocaleString("en")),
        h("a", { href: rolloutUrl(row), class: "quiet-link", title: oneLine(row.brief, 400) }, oneLine(kind)));
    })),
    report.faults.length > MOST_FAULTS && h("p", { class: "muted small" }, `and ${plural(report.faults.length - MOST_FAULTS, "other kind")}`));

// Matrix

const means = (group) => {
  const graded = group.filter((row) => row.reward !== null);
  return graded.length ? graded.reduce((sum, row) => sum + row.reward, 0) / graded.length : null;
};

const spread = (cells) => {
  const known = cells.map(means).filter((value) => value !== null);
  return known.length ? Math.max(...known) - Math.min(...known) : -1;
};

const SORTS = {
  task: ["Task", () => 0],
  hardest: ["Hardest first", (cells) => means(cells.flat()) ?? 2],
  easiest: ["Easiest first", (cells) => -(means(cells.flat()) ?? -1)],
  mixed: ["Samples disagree most", (cells) => -Math.max(...cells.map((group) => { const mean = means(group); return mean === null ? 0 : mean * (1 - mean); }))],
  differ: ["Agents differ most", (cells) => -spread(cells)],
  slowest: ["Slowest first", (cells) => -Math.max(0, ...cells.flat().map((row) => row.duration ?? 0))],
};

const shownTasks = () => {
  const by = SORTS[state.sort]?.[1] ?? SORTS.task[1];
  return report.groups
    .map((cells, task) => ({ task, cells, key: by(cells) }))
    .filter(({ cells }) => cells.some((group) => group.some(matches)))
    .sort((a, b) => a.key - b.key || a.task - b.task);
};

const matrixRow = ({ task, cells }) =>
  h("tr", { tabindex: "-1", "data-url": taskUrl(task), "aria-label": oneLine(report.tasks[task]) },
    h("th", { scope: "row" }, h("a", { href: taskUrl(task), title: oneLine(report.tasks[task]) }, oneLine(report.tasks[task]))),
    cells.map((group, at) => (state.agent === null || state.agent === at) && matrixCell(group, report.agents[at].missing[task] ?? 0)));

const matrixCell = (group, missing) => {
  const graded = group.filter((row) => row.reward !== null).length;
  const solved = group.filter((row) => row.outcome === "solved").length;
  return h("td", null, h("div", { class: "cell" },
    h("div", { class: "squares" }, group.map(square), Array.from({ length: Math.min(missing, 200) }, () => h("span", { class: "sq o-not-run", title: "not run" }))),
    (group.length || missing) ? h("span", { class: "count" }, `${solved}/${graded}`) : h("span", { class: "muted" }, "\u2013")));
};

const matrix = (shown) => {
  const agents = report.agents.map((_, at) => at).filter((at) => state.agent === null || state.agent === at);
  const most = Math.max(1, ...report.groups.flat().map((group) => group.length));
  const table = h("table", { class: "matrix" },
    h("caption", { class: "visually-hidden" }, "Samples of each task by agent; each square is a rollout"),
    h("thead", null, h("tr", null, h("th", { scope: "col" }, "Task"), agents.map((at) => h("th", { scope: "col" }, h("span", { class: "agent" }, agentName(at)))))));
  const lines = Math.ceil((most * 21) / Math.max(120, 700 / agents.length));
  const list = lazyList(table, shown, { block: () => h("tbody"), render: matrixRow, guess: 11 + 21 * lines, size: most > 40 ? 4 : 20 });
  return { node: h("div", { class: "scroll matrix-scroll", tabindex: "0", role: "region", "aria-label": "Tasks by agents" }, table), list };
};

const overview = () => {
  const matrixBox = h("div");
  const section = h("section", { "aria-label": "Tasks" });
  const page = { title: "", nodes: [] };
  const draw = () => {
    page.list?.stop();
    const shown = shownTasks();
    const { node, list } = matrix(shown);
    page.list = list;
    page.cursor = { count: shown.length, reveal: (at) => list.reveal(at) };
    replace(matrixBox, shown.length ? node : h("p", { class: "empty" }, "No rollout matches these filters. ", h("button", { type: "button", class: "link", click: clearFilters }, "Clear them")));
    tell(`${plural(shown.length, "task")} shown`);
  };
  page.filtered = draw;
  page.stop = () => page.list.stop();
  section.append(h("div", { class: "panel-head" }, h("h2", null, "Tasks")), filterBar({ sorts: SORTS }), matrixBox);
  page.nodes = [headline(), report.baseline && baselineHint(), agentsTable(), h("div", { class: "columns" }, curves(), h("div", { class: "stack" }, groupHealth(), faults())), section];
  draw();
  return page;
};
