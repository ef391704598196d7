// The first page: how each agent did, where they differ.

const headline = () => {
  const rows = report.rows.length;
  const planned = report.planned + report.plannedXfails;
  const starts = report.runs
    .map((run) => run.first)
    .filter(Boolean)
    .sort();
  const facts = [
    rows < planned && `${rows.toLocaleString("en")} of ${plural(planned, "rollout")} planned have a row`,
    `up to ${plural(mostSamples(), "sample")} of each task`,
    report.runs.length > 1 && plural(report.runs.length, "run"),
    starts.length > 0 &&
      `started ${oneLine(starts[0], 40)
        .replace("T", " ")
        .replace(/(:\d\d)\.\d+/, "$1")
        .replace("+00:00", " UTC")}`,
  ];
  return h(
    "div",
    { class: "headline" },
    h(
      "h1",
      null,
      `${plural(rows, "rollout")} of ${plural(report.tasks.length, "task")} by ${plural(report.agents.length, "agent")}`,
    ),
    h("p", { class: "muted" }, facts.filter(Boolean).join(" \u00b7 ")),
  );
};

/** Tasks beyond agents that one of them has come to solve. */
const gained = () =>
  report.agents.flatMap((agent) =>
    agent.gained.map(([task, solved, planned]) =>
      h(
        "p",
        { class: "callout gained" },
        "Gained: ",
        h("a", { href: taskUrl(task) }, oneLine(report.tasks[task])),
        ` by ${oneLine(agent.label, 60)}: ${solved} of ${plural(planned, "sample")} pass; its xfail can go`,
      ),
    ),
  );

const expectedToFail = () =>
  report.agents
    .filter((agent) => agent.xfails.length)
    .map((agent) =>
      h(
        "p",
        { class: "muted small xfails" },
        `Expected to fail${report.agents.length > 1 ? ` by ${oneLine(agent.label, 60)}` : ""}, in no figure: `,
        agent.xfails.map(([task, solved, graded], at) => [
          at ? ", " : "",
          h("a", { href: taskUrl(task) }, oneLine(report.tasks[task])),
          ` ${solved}/${graded}`,
        ]),
      ),
    );

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
  mixed: [
    "Samples disagree most",
    (cells) =>
      -Math.max(
        ...cells.map((group) => {
          const mean = means(group);
          return mean === null ? 0 : mean * (1 - mean);
        }),
      ),
  ],
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
  h(
    "tr",
    { tabindex: "-1", "data-url": taskUrl(task), "aria-label": oneLine(report.tasks[task]) },
    h(
      "th",
      { scope: "row" },
      h("a", { href: taskUrl(task), title: oneLine(report.tasks[task]) }, oneLine(report.tasks[task])),
    ),
    cells.map(
      (group, at) =>
        (state.agent === null || state.agent === at) && matrixCell(group, report.agents[at].missing[task] ?? 0),
    ),
  );

const matrixCell = (group, missing) => {
  const graded = group.filter((row) => row.reward !== null).length;
  const solved = group.filter((row) => row.outcome === "solved").length;
  return h(
    "td",
    null,
    h(
      "div",
      { class: "cell" },
      h(
        "div",
        { class: "squares" },
        group.map(square),
        Array.from({ length: Math.min(missing, 200) }, () => h("span", { class: "sq o-not-run", title: "not run" })),
      ),
      group.length || missing
        ? h("span", { class: "count" }, `${solved}/${graded}`)
        : h("span", { class: "muted" }, "\u2013"),
    ),
  );
};

const matrix = (shown) => {
  const agents = report.agents.map((_, at) => at).filter((at) => state.agent === null || state.agent === at);
  const most = Math.max(1, ...report.groups.flat().map((group) => group.length));
  const table = h(
    "table",
    { class: "matrix" },
    h("caption", { class: "visually-hidden" }, "Samples of each task by agent; each square is a rollout"),
    h(
      "thead",
      null,
      h(
        "tr",
        null,
        h("th", { scope: "col" }, "Task"),
        agents.map((at) => h("th", { scope: "col" }, h("span", { class: "agent" }, agentName(at)))),
      ),
    ),
  );
  const lines = Math.ceil((most * 21) / Math.max(120, 700 / agents.length));
  const list = lazyList(table, shown, {
    block: () => h("tbody"),
    render: matrixRow,
    guess: 11 + 21 * lines,
    size: most > 40 ? 4 : 20,
  });
  return {
    node: h(
      "div",
      { class: "scroll matrix-scroll", tabindex: "0", role: "region", "aria-label": "Tasks by agents" },
      table,
    ),
    list,
  };
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
    replace(
      matrixBox,
      shown.length
        ? node
        : h(
            "p",
            { class: "empty" },
            "No rollout matches these filters. ",
            h("button", { type: "button", class: "link", click: clearFilters }, "Clear them"),
          ),
    );
    tell(`${plural(shown.length, "task")} shown`);
  };
  page.filtered = draw;
  page.stop = () => page.list.stop();
  section.append(h("div", { class: "panel-head" }, h("h2", null, "Tasks")), filterBar({ sorts: SORTS }), matrixBox);
  page.nodes = [
    headline(),
    report.baseline && baselineHint(),
    gained(),
    agentsTable(),
    expectedToFail(),
    h("div", { class: "columns" }, curves(), h("div", { class: "stack" }, groupHealth(), faults())),
    section,
  ];
  draw();
  return page;
};
