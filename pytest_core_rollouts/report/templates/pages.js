// The other pages: all rollouts in a list, one task, the run.

const COLUMNS = {
  outcome: ["Outcome", (row) => report.outcomes.indexOf(row.outcome)],
  task: ["Task", (row) => row.task],
  agent: ["Agent", (row) => row.agent],
  sample: ["Sample", (row) => row.sample],
  reward: ["Reward", (row) => row.reward ?? -1],
  duration: ["Duration", (row) => row.duration ?? -1],
  tokens: ["Tokens", (row) => row.tokens ?? -1],
  items: ["Items", (row) => row.items],
};
const NUMERIC = new Set(["sample", "reward", "duration", "tokens", "items"]);

/** The rollouts that match, in the order of the list. */
const orderedRows = () => {
  const rows = report.rows.filter(matches);
  const by = COLUMNS[state.by]?.[1];
  const turn = state.down ? -1 : 1;
  return rows.sort(
    (a, b) =>
      (by ? turn * (by(a) - by(b)) : 0) ||
      report.rank[a.task] - report.rank[b.task] ||
      a.agent - b.agent ||
      a.sample - b.sample ||
      a.at - b.at,
  );
};

const rolloutRow = (row, columns, at) => {
  const cells = {
    outcome: () => badge(row),
    task: () => h("a", { href: taskUrl(row.task), class: "quiet-link" }, oneLine(report.tasks[row.task], 120)),
    agent: () => h("span", { class: "agent" }, agentName(row.agent)),
    sample: () => h("a", { href: rolloutUrl(row), "aria-label": describeRow(row) }, `#${row.sample}`),
    reward: () => reward(row.reward),
    duration: () => seconds(row.duration),
    tokens: () => short(row.tokens),
    items: () => row.items.toLocaleString("en"),
  };
  return h(
    "tr",
    {
      tabindex: "-1",
      "data-url": rolloutUrl(row),
      click: (event) => {
        if (page.cursor) page.cursor.at = at; // Back returns to this row
        if (!event.target.closest("a") && !String(getSelection())) location.hash = rolloutUrl(row);
      },
    },
    columns.map((key) =>
      h("td", { class: NUMERIC.has(key) ? "num" : null, "data-label": COLUMNS[key][0] }, cells[key]()),
    ),
    h("td", { class: "brief", "data-label": "Why", title: oneLine(row.brief, 400) }, oneLine(row.brief, 160)),
    h(
      "td",
      { class: "answer mono muted", "data-label": "Answer", title: oneLine(row.answer, 400) },
      oneLine(row.answer, 120),
    ),
  );
};

const rolloutTable = (rows, columns, sortable) => {
  const head = (key) => {
    const [name] = COLUMNS[key];
    const sorted = sortable && state.by === key;
    const label = sortable
      ? h(
          "button",
          {
            type: "button",
            class: "sort",
            click: () => go({ by: key, down: sorted ? !state.down : NUMERIC.has(key) && key !== "sample" }),
          },
          name,
          sorted && h("span", { "aria-hidden": "true" }, state.down ? " \u2193" : " \u2191"),
        )
      : name;
    return h(
      "th",
      {
        scope: "col",
        class: NUMERIC.has(key) ? `num ${key}` : null,
        "aria-sort": sorted ? (state.down ? "descending" : "ascending") : null,
      },
      label,
    );
  };
  const table = h(
    "table",
    { class: "rollouts cards-on-phones" },
    h(
      "thead",
      null,
      h(
        "tr",
        null,
        columns.map(head),
        h("th", { scope: "col" }, "Why"),
        h("th", { scope: "col", class: "answer" }, "Answer"),
      ),
    ),
  );
  const list = lazyList(table, rows, {
    block: () => h("tbody"),
    render: (row, at) => rolloutRow(row, columns, at),
    guess: innerWidth < 720 ? 250 : 37,
    size: 40,
  });
  return { node: h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Rollouts" }, table), list };
};

const rolloutsPage = () => {
  const page = { title: "Rollouts", nodes: [] };
  const box = h("div");
  page.filtered = () => {
    page.list?.stop();
    const rows = orderedRows();
    const { node, list } = rolloutTable(
      rows,
      Object.keys(COLUMNS).filter((key) => key !== "agent" || report.agents.length > 1),
      true,
    );
    page.list = list;
    page.cursor = { count: rows.length, reveal: (at) => list.reveal(at) };
    replace(
      box,
      h(
        "p",
        { class: "muted small" },
        rows.length === report.rows.length
          ? plural(rows.length, "rollout")
          : `${rows.length.toLocaleString("en")} of ${plural(report.rows.length, "rollout")}`,
      ),
      rows.length
        ? node
        : h(
            "p",
            { class: "empty" },
            "No rollout matches these filters. ",
            h("button", { type: "button", class: "link", click: clearFilters }, "Clear them"),
          ),
    );
    tell(`${plural(rows.length, "rollout")} shown`);
  };
  page.stop = () => page.list?.stop();
  page.nodes = [h("h1", null, "Rollouts"), filterBar({}), box];
  page.filtered();
  return page;
};

const taskPage = (id) => {
  const task = report.tasks.indexOf(id);
  if (task < 0) return missingPage(`There is no task ${oneLine(id)} in this report`);
  const rows = report.groups[task].flat();
  const { node, list } = rolloutTable(
    rows,
    Object.keys(COLUMNS).filter((key) => key !== "task"),
    false,
  );
  const instruction = h("div");
  const show = async () => {
    for (const row of rows.filter((one) => one.items)) {
      const message = (await details(row.at)).items.find((item) => item?.type === "message" && item.role === "user");
      if (message) return replace(instruction, content(message.content ?? []));
    }
    return replace(instruction, h("p", { class: "muted" }, "No trajectory holds it"));
  };
  return {
    title: oneLine(id, 80),
    up: `#/${query()}`,
    stop: () => list.stop(),
    cursor: { count: rows.length, reveal: (at) => list.reveal(at) },
    nodes: [
      h(
        "nav",
        { class: "crumbs", "aria-label": "Breadcrumb" },
        h("a", { href: `#/${query()}` }, "Tasks"),
        h("span", { "aria-hidden": "true" }, "/"),
      ),
      h("h1", null, oneLine(id)),
      h(
        "p",
        { class: "tags" },
        rows.some((row) => row.xfail) && xfailTag(),
        report.tags[task].map((name) =>
          h("a", { class: "tag", href: `#/rollouts${queryOf({ ...EMPTY, tag: name })}` }, oneLine(name, 60)),
        ),
      ),
      h(
        "div",
        { class: "cards" },
        report.groups[task].map((group, at) =>
          group.length || report.agents[at].missing[task]
            ? taskCard(group, at, report.agents[at].missing[task] ?? 0)
            : null,
        ),
      ),
      rows.some((row) => row.items) &&
        h(
          "details",
          {
            class: "fold-box",
            toggle: (event) => {
              if (event.target.open) show();
            },
          },
          h("summary", null, "Instruction"),
          instruction,
        ),
      h("h2", null, plural(rows.length, "sample")),
      node,
    ],
  };
};

const average = (values) => (values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null);

const taskCard = (group, at, missing) => {
  const known = (key) => group.map((row) => row[key]).filter((value) => value !== null);
  return h(
    "section",
    { class: "card", "aria-label": oneLine(report.agents[at].label, 60) },
    h("div", { class: "agent" }, agentName(at)),
    matrixCell(group, missing).firstChild,
    h(
      "dl",
      { class: "facts small" },
      fact("Mean reward", reward(means(group))),
      fact("Mean time", seconds(average(known("duration")))),
      fact(
        "Mean tokens",
        short(Math.round(average(known("tokens")) ?? -1) < 0 ? null : Math.round(average(known("tokens")))),
      ),
    ),
  );
};

const missingPage = (text) => ({
  title: "Not found",
  up: `#/${query()}`,
  nodes: [h("h1", null, "Not found"), h("p", null, text), h("p", null, h("a", { href: "#/" }, "Back to the overview"))],
});

// The run

const runPage = () => ({
  title: "Run",
  up: `#/${query()}`,
  nodes: [
    h("h1", null, "Run details"),
    h("p", { class: "muted" }, `From ${report.files.map((name) => oneLine(name)).join(", ")}`),
    h(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": "Runs" },
      h(
        "table",
        { class: "cards-on-phones" },
        h(
          "thead",
          null,
          h(
            "tr",
            null,
            h("th", { scope: "col" }, "Run"),
            h("th", { scope: "col", class: "num" }, "Rows"),
            h("th", { scope: "col", class: "num" }, "Selected"),
            ["First start", "Last start", "Labels"].map((head) => h("th", { scope: "col" }, head)),
          ),
        ),
        h(
          "tbody",
          null,
          report.runs.map((run) =>
            h(
              "tr",
              null,
              h("th", { scope: "row", class: "mono" }, oneLine(run.id)),
              h("td", { class: "num", "data-label": "Rows" }, run.rows.toLocaleString("en")),
              h(
                "td",
                { class: "num", "data-label": "Selected" },
                run.planned ? run.planned.toLocaleString("en") : "\u2013",
              ),
              h("td", { class: "mono nowrap", "data-label": "First start" }, oneLine(run.first ?? "\u2013")),
              h("td", { class: "mono nowrap", "data-label": "Last start" }, oneLine(run.last ?? "\u2013")),
              h("td", { "data-label": "Labels" }, h("div", null, dataList(run.labels))),
            ),
          ),
        ),
      ),
    ),
    h("h2", null, "Agents"),
    h(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": "Agents" },
      h(
        "table",
        { class: "cards-on-phones" },
        h(
          "thead",
          null,
          h(
            "tr",
            null,
            ["Agent", "Harness", "Model", "Agent file", "Digest"].map((head) => h("th", { scope: "col" }, head)),
          ),
        ),
        h(
          "tbody",
          null,
          report.agents.map((agent, at) =>
            h(
              "tr",
              null,
              h("th", { scope: "row" }, h("span", { class: "agent" }, agentName(at))),
              [
                ["Harness", agent.harness],
                ["Model", agent.model],
                ["Agent file", agent.name ?? "\u2013"],
              ].map(([name, text]) => h("td", { "data-label": name }, oneLine(text))),
              h("td", { class: "mono", "data-label": "Digest" }, oneLine(agent.digest.slice(0, 12))),
            ),
          ),
        ),
      ),
    ),
    h("h2", null, "Settings"),
    settingsPanels(),
  ],
});

/** What all rollouts share, once; then what only some have. */
const settingsPanels = () => {
  const texts = report.settings.map(({ settings }) =>
    Object.fromEntries(Object.entries(settings).map(([key, value]) => [key, JSON.stringify(value)])),
  );
  const common = new Set(Object.keys(texts[0] ?? {}).filter((key) => texts.every((one) => one[key] === texts[0][key])));
  const panel = (title, entries) =>
    entries.length > 0 &&
    h(
      "section",
      { class: "panel", "aria-label": title },
      report.settings.length > 1 && h("p", { class: "muted small" }, title),
      h(
        "dl",
        { class: "particulars" },
        entries.map(([key, value]) => [
          h("dt", null, oneLine(key)),
          h(
            "dd",
            { class: "mono" },
            value !== null && typeof value === "object" ? dataList(value) : visible(String(value ?? "\u2013")),
          ),
        ]),
      ),
    );
  const some = (wanted, { settings }) => Object.entries(settings).filter(([key]) => common.has(key) === wanted);
  return [
    report.settings.length > 0 && panel("Settings of all rollouts", some(true, report.settings[0])),
    report.settings.length > 1 &&
      report.settings.map((one) => panel(`Only ${plural(one.rows, "rollout")}`, some(false, one))),
  ];
};
