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
      h("div", { class: "callout" }, h("h2", null, "Why"), h("p", null, oneLine(detail.why))),
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
    detail.answerText && [h("h2", null, "What it wrote is not JSON"), textBlock(detail.answerText, { label: "answer" })],
    answer,
  );
};

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

// Trajectory

const KIND_NAMES = { agent: "Messages", shell: "Commands", tool: "Tools", reasoning: "Reasoning" };

const trajectory = (detail, page, start) => {
  const steps = stepsOf(detail.items, detail.gap);
  const box = h("div", { class: "trajectory" });
  const said = h("span", { class: "muted small" });
  const wanted = { kinds: new Set(), text: "", bad: false };
  const draw = (focus) => {
    page.list?.stop();
    const text = wanted.text.toLowerCase();
    const shown = steps.filter((step) =>
      step.gap
        ? !text && !wanted.bad && !wanted.kinds.size
        : (!wanted.kinds.size || wanted.kinds.has(kindOf(step.item))) &&
          (!wanted.bad || isBad(step.item) || step.result?.error) &&
          (!text || stepText(step).includes(text)),
    );
    box.replaceChildren();
    page.list = lazyList(box, shown, {
      block: () => h("div", { class: "block" }),
      render: renderStep,
      guess: 160,
      size: 12,
    });
    page.cursor = { count: shown.length, reveal: (at) => page.list.reveal(at), block: "start" };
    if (!shown.length)
      box.append(
        h(
          "p",
          { class: "empty" },
          steps.length ? "No item matches" : detail.kept ? "The trajectory is empty" : "No trajectory was kept",
        ),
      );
    said.textContent =
      shown.length === steps.length
        ? plural(detail.items.length, "item")
        : `${shown.length.toLocaleString("en")} of ${plural(steps.length, "step")}`;
    if (focus !== undefined) page.cursor.at = shown.findIndex((step) => step.number === focus);
  };
  const kinds = Object.entries(KIND_NAMES).filter(([kind]) =>
    steps.some((step) => !step.gap && kindOf(step.item) === kind),
  );
  const toggle = (button, change) => {
    const on = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(on));
    change(on);
    draw();
  };
  const chip = (text, change) => {
    const button = h(
      "button",
      { type: "button", class: "chip", "aria-pressed": "false", click: () => toggle(button, change) },
      text,
    );
    return button;
  };
  const bad = steps.filter((step) => !step.gap && (isBad(step.item) || step.result?.error)).length;
  draw(start);
  return h(
    "section",
    { class: "trajectory-section", "aria-label": "Trajectory" },
    h(
      "div",
      { class: "panel-head sticky" },
      h("h2", null, "Trajectory"),
      said,
      h(
        "div",
        { class: "chips push" },
        kinds.length > 1 &&
          kinds.map(([kind, name]) => chip(name, (on) => (on ? wanted.kinds.add(kind) : wanted.kinds.delete(kind)))),
        bad > 0 &&
          chip(`Failed (${bad.toLocaleString("en")})`, (on) => {
            wanted.bad = on;
          }),
      ),
      steps.length > 3 &&
        h("input", {
          type: "search",
          id: "find",
          placeholder: "Find in trajectory",
          "aria-label": "Find in trajectory",
          input: (event) => {
            wanted.text = event.target.value;
            draw();
          },
        }),
    ),
    box,
  );
};

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
      replace(rest, grading(row, detail), particulars(row, detail), trajectory(detail, page, item));
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
