// How each agent did: the table of agents, pass@k, group health, faults.

const mostSamples = () => Math.max(0, ...report.groups.flat().map((group) => group.length));

// Agents

/** The k of the second pass@k column: the largest that every agent has on all of its tasks, else the largest. */
const shownK = () => {
  const ks = report.agents.map((agent) => agent.passAt.filter((point) => !point.leftOut).map((point) => point.k));
  const common = ks.length ? ks[0].filter((k) => ks.every((other) => other.includes(k))) : [];
  return Math.max(1, ...common) > 1
    ? Math.max(...common)
    : Math.max(1, ...report.agents.flatMap((agent) => agent.passAt.map((point) => point.k)));
};

const agentsTable = () => {
  const most = shownK();
  const tokens = report.agents.some((agent) => agent.tokens !== null);
  const costs = report.agents.some((agent) => agent.cost !== null);
  const metrics = report.agents.some((agent) => agent.metrics.length);
  const heads = [
    "Agent",
    "Mean reward",
    "95% interval",
    "Tasks solved",
    "pass@1",
    most > 1 && `pass@${most}`,
    "Outcomes",
    "Graded",
    "Mean time",
    tokens && "Tokens",
    costs && "Cost",
    metrics && "Metrics",
  ].filter(Boolean);
  const numeric = new Set(["Tasks solved", "pass@1", `pass@${most}`, "Graded", "Mean time", "Tokens", "Cost"]);
  const body = report.agentsByMean.map((at) => {
    const agent = report.agents[at];
    const rows = report.rows.filter((row) => row.agent === at && !row.xfail && !row.beyond);
    const pass = (k) => agent.passAt.find((point) => point.k === k)?.text ?? "n/a";
    return h(
      "tr",
      null,
      h("th", { scope: "row" }, agentHead(at)),
      h(
        "td",
        { class: "figure" },
        agent.meanReward.text,
        agent.meanReward.bounds &&
          h(
            "div",
            {
              class: "muted small",
              title: "The mean reward if every rollout without a grade had failed, and if every one had passed",
            },
            `${agent.meanReward.bounds} with the missing`,
          ),
        agent.rounds &&
          h("div", { class: "muted small" }, `from ${agent.rounds[0]} of ${plural(agent.rounds[1], "round")}`),
      ),
      h(
        "td",
        { class: "nowrap" },
        intervalBar(agent.meanReward, at, `Mean reward of ${oneLine(agent.label, 60)}`),
        h(
          "div",
          { class: "muted small" },
          agent.meanReward.range === "-" ? "none: too few tasks" : agent.meanReward.range,
        ),
      ),
      h(
        "td",
        {
          class: "num",
          title: agent.tasksSolved.missing ? `${agent.tasksSolved.most} if every missing rollout had passed` : null,
        },
        agent.tasksSolved.text,
      ),
      h("td", { class: "num" }, pass(1)),
      most > 1 && h("td", { class: "num" }, pass(most)),
      h(
        "td",
        null,
        outcomeBar(countOutcomes(rows, agent.withoutRow), agent.planned),
        outcomeCounts(rows, agent.withoutRow, at),
      ),
      h("td", { class: "num" }, `${agent.graded.toLocaleString("en")}/${agent.planned.toLocaleString("en")}`),
      h("td", { class: "num" }, seconds(agent.duration)),
      tokens &&
        h(
          "td",
          { class: "num", title: agent.tokensUnknown ? `Unknown for ${plural(agent.tokensUnknown, "rollout")}` : null },
          short(agent.tokens),
        ),
      costs && h("td", { class: "num" }, agent.cost ?? "\u2013"),
      metrics &&
        h(
          "td",
          { class: "small", title: "Means over tasks, of the rollouts that have the metric" },
          agent.metrics.map(([name, mean, rows]) =>
            h("div", { title: plural(rows, "rollout") }, `${oneLine(name, 70)}: ${mean}`),
          ),
        ),
    );
  });
  for (const row of body)
    [...row.children].slice(1).forEach((cell, at) => {
      cell.setAttribute("data-label", heads[at + 1]);
      cell.replaceChildren(h("div", null, [...cell.childNodes])); // as a card on a phone, a cell has two columns
    });
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": "Agents" },
    h(
      "table",
      { class: "agents cards-on-phones" },
      h(
        "thead",
        null,
        h(
          "tr",
          null,
          heads.map((head) => h("th", { scope: "col", class: numeric.has(head) ? "num" : null }, head)),
        ),
      ),
      h("tbody", null, body),
    ),
  );
};

/** How many rollouts of one agent have each outcome; each leads to them. */
const outcomeCounts = (rows, withoutRow, agent) =>
  h(
    "div",
    { class: "tally small" },
    countOutcomes(rows, withoutRow).map(([name, count]) =>
      h(
        rows.some((row) => row.outcome === name) ? "a" : "span",
        {
          href: rows.some((row) => row.outcome === name)
            ? `#/rollouts${queryOf({ ...EMPTY, is: new Set([name]), agent })}`
            : null,
          title: `${name}: ${NAMES[name]}`,
        },
        glyph(name),
        count.toLocaleString("en"),
        h("span", { class: "visually-hidden" }, ` ${name}`),
      ),
    ),
  );

// Curves

const KINDS = [
  ["passAt", "pass@k", "at least one of k samples solves the task"],
  ["passHat", "pass^k", "all of k samples solve the task"],
];

const curves = () => {
  const panel = h("section", { class: "panel", "aria-label": "pass@k" });
  const draw = (which) => {
    const [key, name, means] = KINDS[which];
    const series = report.agents
      .map((agent, at) => [agent.label, agent[key], at])
      .filter(([, points]) => points.length);
    replace(
      panel,
      h(
        "div",
        { class: "panel-head" },
        h("h2", null, name),
        h(
          "div",
          { class: "segments", role: "group", "aria-label": "Which curve" },
          KINDS.map(([, text], at) =>
            h("button", { type: "button", "aria-pressed": String(at === which), click: () => draw(at) }, text),
          ),
        ),
      ),
      h(
        "p",
        { class: "muted small" },
        `The chance that ${means}, averaged over tasks, with 95% intervals clustered by task`,
      ),
      partly(series) &&
        h(
          "p",
          { class: "muted small" },
          "Hollow marks: only some tasks have k graded samples, so a curve may fall or jump there",
        ),
      series.length > MOST_BANDS && h("p", { class: "muted small" }, "The intervals are in the table below"),
      series.length
        ? chartOf(series, `${name} of ${plural(series.length, "agent")}; the figures are in the table below`)
        : h("p", { class: "muted" }, "No rollout has a grade yet"),
      h(
        "div",
        { class: "legend" },
        series.map(([, , at]) => h("span", { class: "agent" }, agentName(at))),
      ),
      series.length > 0 && curveTable(series, name),
    );
  };
  draw(0);
  return panel;
};

/** With a single sample of each task there is no curve: the estimates on one scale. */
const chartOf = (series, label) => {
  if (series.some(([, points]) => points.length > 1)) return kChart(series, label);
  return h(
    "div",
    { class: "scale" },
    series.map(([name, [point], at]) =>
      h(
        "div",
        null,
        intervalBar(point, at, oneLine(name, 60)),
        h("span", { class: "num" }, point.text),
        h("span", { class: "muted small" }, point.range === "-" ? "" : point.range),
      ),
    ),
  );
};

const partly = (series) => series.some(([, points]) => points.some((point) => point.leftOut));

const curveTable = (series, name) => {
  const ks = [...new Set(series.flatMap(([, points]) => points.map((point) => point.k)))].sort((a, b) => a - b);
  return h(
    "details",
    { class: "figures" },
    h("summary", null, "Figures"),
    h(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": `Figures of ${name}` },
      h(
        "table",
        null,
        h(
          "thead",
          null,
          h(
            "tr",
            null,
            h("th", { scope: "col" }, "k"),
            series.map(([label]) => h("th", { scope: "col", class: "num" }, oneLine(label, 60))),
          ),
        ),
        h(
          "tbody",
          null,
          ks.map((k) =>
            h(
              "tr",
              null,
              h("th", { scope: "row" }, String(k)),
              series.map(([, points]) => {
                const point = points.find((one) => one.k === k);
                return h(
                  "td",
                  { class: "num" },
                  point ? point.text : "n/a",
                  point && point.range !== "-" && h("span", { class: "muted" }, ` (${point.range})`),
                  point &&
                    point.leftOut > 0 &&
                    h("span", { class: "muted" }, ` ${point.tasks} of ${point.tasks + point.leftOut} tasks`),
                );
              }),
            ),
          ),
        ),
      ),
    ),
  );
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
  h(
    "section",
    { class: "panel", "aria-label": "Group health" },
    h("div", { class: "panel-head" }, h("h2", null, "Group health")),
    h(
      "p",
      { class: "muted small" },
      "A group is one agent's samples of one task. Training learns only from groups whose samples disagree.",
    ),
    mostSamples() === 1 &&
      h("p", { class: "muted small" }, "A single sample has nothing to disagree with: ask for more with --samples."),
    report.agents.map((agent, at) => {
      const { total, complete } = agent.groups;
      return h(
        "div",
        { class: "health" },
        h(
          "div",
          { class: "agent" },
          agentName(at),
          h(
            "span",
            { class: "muted small push nowrap" },
            `${agent.groups.signal.toLocaleString("en")} of ${plural(total, "group")} with a signal`,
          ),
        ),
        outcomeBar(
          HEALTH.map(([key, name]) => [`g-${key}`, agent.groups[key], name]).filter(([, count]) => count),
          total || 1,
        ),
        h(
          "ul",
          { class: "health-list" },
          HEALTH.filter(([key]) => agent.groups[key]).map(([key, name, means]) =>
            h(
              "li",
              { title: means },
              h("span", { class: `dot f-g-${key}` }),
              `${agent.groups[key].toLocaleString("en")} ${name}`,
            ),
          ),
          complete < total &&
            h(
              "li",
              { class: "muted", title: "some samples have no grade" },
              `${(total - complete).toLocaleString("en")} incomplete`,
            ),
        ),
      );
    }),
  );

// What went wrong

const MOST_CAUSES = 8;
const MOST_VALUES = 3;

const causeUrl = (name) => `#/rollouts${queryOf({ ...EMPTY, why: name })}`;

const causeValues = (cause) => {
  const rest = cause.values.slice(MOST_VALUES);
  return [
    cause.values
      .slice(0, MOST_VALUES)
      .map(([value, count], at) => [
        at ? ", " : ": ",
        h("a", { href: causeUrl(valueName(cause, value)), class: "mono" }, oneLine(value, 60)),
        ` \u00d7${count.toLocaleString("en")}`,
      ]),
    rest.length > 0 && `, ${plural(rest.length, "other value")}`,
    cause.expected !== null && [
      cause.values.length ? "; expected " : ", expected ",
      h("span", { class: "mono" }, oneLine(cause.expected, 60)),
    ],
  ];
};

const causeEntry = (cause) => {
  const row = report.rows[cause.first];
  return h(
    "li",
    null,
    glyph(row.outcome === "partial" ? "unsolved" : row.outcome),
    h("span", { class: "num" }, cause.count.toLocaleString("en")),
    h(
      "span",
      null,
      h("span", { class: "visually-hidden" }, `${row.outcome}: `),
      h("a", { href: causeUrl(cause.text), class: "quiet-link", title: "Show these rollouts" }, oneLine(cause.text)),
      causeValues(cause),
    ),
  );
};

const whatWentWrong = () => {
  const { causes } = report;
  if (!causes.length && !report.warnings.length) return null;
  const rest = causes.slice(MOST_CAUSES);
  return h(
    "section",
    { class: "panel", "aria-label": "What went wrong" },
    h("div", { class: "panel-head" }, h("h2", null, "What went wrong")),
    report.warnings.map((warning) => h("p", { class: "muted small" }, `warning: ${warning}`)),
    h("ul", { class: "faults" }, causes.slice(0, MOST_CAUSES).map(causeEntry)),
    rest.length > 0 &&
      h(
        "details",
        { class: "more-causes" },
        h("summary", null, `${plural(rest.length, "other cause")}`),
        h("ul", { class: "faults" }, rest.slice(0, 200).map(causeEntry)),
      ),
  );
};
