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

/** What was expected to fail: one line, whose counts are of all agents. */
const expectedToFail = () => {
  const counts = new Map();
  for (const agent of report.agents)
    for (const [task, solved, graded] of agent.xfails) {
      const [before, of] = counts.get(task) ?? [0, 0];
      counts.set(task, [before + solved, of + graded]);
    }
  return (
    counts.size > 0 &&
    h(
      "p",
      { class: "muted small xfails" },
      "Expected to fail, in no figure: ",
      [...counts].map(([task, [solved, graded]], at) => [
        at ? ", " : "",
        h("a", { href: taskUrl(task) }, oneLine(report.tasks[task])),
        ` ${solved}/${graded}`,
      ]),
    )
  );
};

// Matrix

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

const GROUPED = {
  folder: (task) => [folderOf(task) || "no folder"],
  tag: (task) => (report.tags[task].length ? report.tags[task] : ["no tag"]),
};

/** The tasks that match, in the order of the list; with groups, each group's head before its tasks. */
const shownTasks = () => {
  const by = SORTS[shownSort()]?.[1] ?? SORTS.task[1];
  const tasks = report.groups
    .map((cells, task) => ({ task, cells, key: by(cells) }))
    .filter(({ cells }) => cells.some((group) => group.some(matches)))
    .sort((a, b) => a.key - b.key || a.task - b.task);
  const names = Object.hasOwn(GROUPED, state.group ?? "") ? GROUPED[state.group] : null;
  if (!names) return tasks;
  const groups = new Map();
  for (const one of tasks) for (const name of names(one.task)) groups.set(name, [...(groups.get(name) ?? []), one]);
  return [...groups]
    .sort(([a], [b]) => a.localeCompare(b, "en"))
    .flatMap(([name, members]) => [{ head: name, members }, ...members]);
};

const groupHead = ({ head, members }) => {
  const rows = members.flatMap(({ cells }) => cells.flat());
  const agents = report.agents.filter((_, at) => state.agent === null || state.agent === at).length;
  return h(
    "tr",
    { class: "group-head" },
    h(
      "th",
      { scope: "rowgroup", colspan: String(agents + 1) },
      h("strong", null, oneLine(head, 120)),
      h(
        "span",
        { class: "muted small" },
        ` ${plural(members.length, "task")}, ${rows.filter((row) => row.outcome === "solved").length.toLocaleString("en")} of ${plural(rows.length, "rollout")} solved`,
      ),
    ),
  );
};

const matrixRow = (entry) => (entry.head ? groupHead(entry) : taskRow(entry));

const taskRow = ({ task, cells }) =>
  h(
    "tr",
    { tabindex: "-1", "data-url": taskUrl(task), "aria-label": oneLine(report.tasks[task]) },
    h(
      "th",
      { scope: "row" },
      h(
        "div",
        { class: "task-name" },
        h("a", { href: taskUrl(task), title: oneLine(report.tasks[task]) }, oneLine(report.tasks[task])),
        cells.some((group) => group.some((row) => row.xfail)) && xfailTag(),
      ),
    ),
    cells.map(
      (group, at) =>
        (state.agent === null || state.agent === at) &&
        matrixCell(group, report.agents[at].missing[task] ?? 0, report.agents[at].label),
    ),
  );

const matrixCell = (group, missing, label) => {
  const graded = group.filter((row) => row.reward !== null).length;
  const solved = group.filter((row) => row.outcome === "solved").length;
  return h(
    "td",
    { "data-label": label && oneLine(label, 60) },
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
    { class: `matrix${agents.length > 2 ? " many" : ""}${agents.length > 1 ? " cards-on-phones" : ""}` },
    h("caption", { class: "visually-hidden" }, "Samples of each task by agent; each square is a rollout"),
    h(
      "thead",
      null,
      h(
        "tr",
        null,
        h("th", { scope: "col" }, "Task"),
        agents.map((at) =>
          h("th", { scope: "col" }, agents.length > 2 ? agentHead(at) : h("span", { class: "agent" }, agentName(at))),
        ),
      ),
    ),
  );
  const room = Math.max(64, 900 / agents.length - 60);
  table.style.setProperty("--room", `${room}px`);
  const lines = Math.ceil((most * 21) / room);
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
    page.cursor = {
      count: shown.length,
      reveal: (at) => list.reveal(at),
      skips: (at) => Boolean(shown[at]?.head),
    };
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
    tell(`${plural(new Set(shown.map((one) => one.task).filter((task) => task !== undefined)).size, "task")} shown`);
  };
  page.filtered = draw;
  page.stop = () => page.list.stop();
  section.append(h("div", { class: "panel-head" }, h("h2", null, "Tasks")), filterBar({ sorts: SORTS }), matrixBox);
  page.nodes = [
    headline(),
    verdicts(),
    agentsTable(),
    report.agents.some((agent) => agent.meanReward.bounds) &&
      h(
        "p",
        { class: "muted small under-table" },
        "With the missing: the mean reward if all rollouts without one had failed, and if all had passed.",
      ),
    expectedToFail(),
    h("div", { class: "columns" }, curves(), h("div", { class: "stack" }, whatWentWrong(), groupHealth())),
    section,
  ];
  draw();
  return page;
};
