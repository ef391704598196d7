// One rollout: what came of it and why, then its trajectory.

const fact = (name, ...value) => h("div", { class: "fact" }, h("dt", null, name), h("dd", null, value));

const usageText = (usage) => {
  const [input, cached, out, thought] = [
    usage?.input_tokens,
    usage?.input_tokens_details?.cached_tokens,
    usage?.output_tokens,
    usage?.output_tokens_details?.reasoning_tokens,
  ];
  if (typeof input !== "number" || typeof out !== "number") return null;
  return `${short(input)} in${cached ? ` (${short(cached)} cached)` : ""}, ${short(out)} out${thought ? ` (${short(thought)} reasoning)` : ""}`;
};

const facts = (row, detail) =>
  h(
    "dl",
    { class: "facts" },
    fact("Outcome", badge(row)),
    fact("Reward", reward(row.reward)),
    fact("Duration", seconds(row.duration)),
    fact(
      "Tokens",
      short(row.tokens),
      detail && usageText(detail.usage) && h("span", { class: "muted small" }, ` ${usageText(detail.usage)}`),
    ),
    fact("Items", row.items.toLocaleString("en")),
    detail && detail.attempt > 1 && fact("Attempt", String(detail.attempt)),
  );

const siblings = (row) =>
  h(
    "nav",
    { class: "siblings", "aria-label": "Samples of this task" },
    report.groups[row.task].map(
      (group, at) =>
        group.length > 0 &&
        h(
          "div",
          { class: "sibling-group" },
          report.agents.length > 1 && h("span", { class: "muted small" }, oneLine(report.agents[at].label, 40)),
          h(
            "div",
            { class: "squares" },
            group.map((one) => {
              const link = square(one);
              link.removeAttribute("tabindex");
              link.classList.remove("dim");
              if (one === row) link.setAttribute("aria-current", "page");
              return link;
            }),
          ),
        ),
    ),
  );

const crumbs = (row) =>
  h(
    "nav",
    { class: "crumbs", "aria-label": "Breadcrumb" },
    h("a", { href: taskUrl(row.task) }, oneLine(report.tasks[row.task])),
    h("span", { "aria-hidden": "true" }, "/"),
    h("span", { class: "agent" }, agentName(row.agent)),
    h("span", { "aria-hidden": "true" }, "/"),
    h("span", null, `sample ${row.sample}`),
  );

const grading = (row, detail) => {
  const quiet = row.outcome === "solved";
  const answer =
    detail.answer !== null &&
    h(
      "details",
      { class: "fold-box", open: !quiet && !detail.reasons.length },
      h("summary", null, "Answer"),
      textBlock(detail.answer, { label: "answer" }),
    );
  return h(
    "section",
    { class: "grading", "aria-label": "Grading" },
    detail.error &&
      h(
        "div",
        { class: "callout broken" },
        h("h2", null, row.outcome === "error" ? "Error" : "Why it ended"),
        textBlock(detail.error, { label: "error", kind: "mono" }),
      ),
    detail.why &&
      !detail.error &&
      !detail.reasons.length &&
      h("div", { class: "callout why" }, h("h2", null, "Why"), h("p", null, oneLine(detail.why))),
    detail.reasons.length > 0 && [
      h(
        "h2",
        null,
        detail.reasons.length === 1
          ? "Where the answer differs"
          : `${detail.reasons.length} places where the answer differs`,
      ),
      reasonsTable(detail.reasons),
    ],
    detail.verifier && verifierOutput(detail.verifier),
    Object.keys(detail.metrics).length > 0 && [
      h("h2", null, "Metrics"),
      h(
        "ul",
        { class: "notes" },
        Object.entries(detail.metrics).map(([name, value]) => h("li", null, `${oneLine(name, 70)}: ${value}`)),
      ),
    ],
    detail.notes.length > 0 &&
      h(
        "ul",
        { class: "notes" },
        detail.notes.map((note) => h("li", null, visible(String(note)))),
      ),
    detail.outputs.length > 0 &&
      h(
        "details",
        { class: "fold-box" },
        h("summary", null, `Files it made, kept beside the JSONL (${detail.outputs.length})`),
        h(
          "ul",
          { class: "notes" },
          detail.outputs.map((file) =>
            h(
              "li",
              { class: "mono" },
              oneLine(file?.path ?? "", 300),
              typeof file?.size === "number" &&
                h("span", { class: "muted" }, ` ${plural(file.size, "byte")}, ${oneLine(file.file ?? "", 300)}`),
            ),
          ),
        ),
      ),
    detail.answerText && [
      h("h2", null, "What it wrote is not JSON"),
      textBlock(detail.answerText, { label: "answer" }),
    ],
    answer,
  );
};

const PHASES = {
  create: "create the Session",
  prepare: "prepare the sandbox",
  turn: "the agent's work",
  fetch: "fetch the answer",
  grade: "grade it",
};

/** Where the time went, as a bar. */
const phases = (detail) => {
  const known = Object.keys(PHASES).filter((name) => typeof detail.timings?.[name] === "number");
  const total = known.reduce((sum, name) => sum + detail.timings[name], 0);
  if (!total) return null;
  return h(
    "section",
    { class: "phases", "aria-label": "Time" },
    outcomeBar(
      known.map((name) => [`p-${name}`, detail.timings[name], `s ${name}`]),
      total,
    ),
    h(
      "ul",
      { class: "health-list" },
      known.map((name) =>
        h(
          "li",
          { title: PHASES[name] },
          h("span", { class: `dot f-p-${name}` }),
          `${name} ${seconds(detail.timings[name])}`,
        ),
      ),
    ),
  );
};

/** What the task's own tests printed. */
const verifierOutput = ({ exit, seconds: took, output: text }) =>
  h(
    "details",
    { class: "fold-box verifier", open: Boolean(exit) },
    h(
      "summary",
      null,
      "Verifier ",
      exit !== null && exit !== undefined && tag(`exit ${exit}`, exit === 0 ? "good" : "bad"),
      typeof took === "number" && ` ${seconds(took)}`,
    ),
    text ? textBlock(String(text), { nodes: terminal, label: "output" }) : h("p", { class: "muted" }, "No output"),
  );

const particulars = (row, detail) => {
  const rows = [
    ["Rollout", row.id],
    ["Session", detail.session],
    ["Status", detail.status],
    ["Started", detail.started],
    ["Attempt", detail.attempt],
    ["Timings (s)", detail.timings],
    ["Settings", detail.settings],
    ["Labels", detail.labels],
    ["Usage", detail.usage],
    ["Requests", detail.requests],
    ["Digests", detail.digests],
  ].filter(
    ([, value]) =>
      value !== null &&
      value !== undefined &&
      value !== "" &&
      !(typeof value === "object" && !Object.keys(value).length),
  );
  return h(
    "details",
    { class: "fold-box" },
    h("summary", null, "Particulars"),
    h(
      "dl",
      { class: "particulars" },
      rows.map(([name, value]) => [
        h("dt", null, name),
        h("dd", { class: "mono" }, typeof value === "object" ? dataList(value) : visible(String(value))),
      ]),
    ),
  );
};

const dataList = (value) =>
  Object.entries(value)
    .filter(([, entry]) => entry !== null)
    .map(([key, entry]) =>
      h(
        "div",
        null,
        h("span", { class: "muted" }, `${visible(key)} `),
        visible(typeof entry === "object" ? JSON.stringify(entry) : String(entry)),
      ),
    );

const rolloutPage = (id, item) => {
  const row = report.byId.get(id);
  if (!row) return missingPage(`There is no rollout ${oneLine(id)} in this report`);
  const page = { title: `${oneLine(report.tasks[row.task], 60)} #${row.sample}`, up: taskUrl(row.task), row };
  const top = h("div", null, facts(row, null));
  const rest = h("div", null, h("p", { class: "loading" }, "Unpacking ..."));
  page.nodes = [
    h("div", { class: "rollout-head" }, crumbs(row), neighbours(row)),
    h("h1", { class: "visually-hidden" }, describeRow(row)),
    top,
    siblings(row),
    rest,
  ];
  page.stop = () => page.list?.stop();
  page.ready = details(row.at).then(
    (detail) => {
      replace(top, facts(row, detail));
      replace(
        rest,
        grading(row, detail),
        phases(detail),
        particulars(row, detail),
        trajectory(row, detail, page, item),
      );
    },
    (error) => {
      replace(rest, h("p", { class: "callout broken" }, `The details cannot be unpacked: ${error.message}`));
    },
  );
  return page;
};

const neighbour = (row, step) => {
  const list = orderedRows();
  const at = list.indexOf(row);
  return at < 0 ? list[0] : list[at + step];
};

const neighbours = (row) => {
  const link = (step, text, key) => {
    const other = neighbour(row, step);
    return other && h("a", { class: "button", href: rolloutUrl(other), title: `${describeRow(other)} (${key})` }, text);
  };
  return h("div", { class: "neighbours" }, link(-1, "\u2190 Previous", "p"), link(1, "Next \u2192", "n"));
};
