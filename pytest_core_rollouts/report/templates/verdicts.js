// The strip under the title: what was decided, what is missing, what changed, what it cost.

const SIGNS = { passed: "\u2713", failed: "\u00d7", undecided: "?" };

const verdictRow = (kind, word, name, ...text) =>
  h(
    "li",
    { class: `verdict v-${kind}` },
    h("span", { class: "word" }, SIGNS[kind] && h("span", { "aria-hidden": "true" }, `${SIGNS[kind]} `), word),
    h("span", { class: "said" }, name && h("strong", null, name), name && " ", text),
  );

const gateRow = ({ gate, agent, verdict, text }) =>
  verdictRow(
    verdict,
    verdict,
    `${oneLine(gate, 80)}`,
    agent !== null && h("span", { class: "whose" }, `${oneLine(agent, 60)} `),
    oneLine(text, 600),
    gate.startsWith("baseline") && [" ", h("a", { href: `#/baseline${query()}` }, "What changed")],
  );

/** What a run that stopped early did not run. */
const earlyRow = () => {
  if (!report.early) return null;
  const { rule, planned, rest, decided, tokens } = report.early;
  return verdictRow(
    "note",
    decided ? "saved" : "stopped",
    null,
    `${rest.toLocaleString("en")} of ${plural(planned, "rollout")} ${decided ? "were not needed, because the gates are decided" : "have no row"}`,
    decided && tokens > 0 && `; about ${short(Math.round(tokens))} tokens not spent`,
    ` (stops early: ${oneLine(rule, 20)})`,
  );
};

const WITHOUT_REWARD = ["error", "cancelled", "not run"];

const missingRow = () => {
  const without = report.rows.filter((row) => row.reward === null && !row.xfail && !row.beyond).length;
  const neverRan = report.agents.reduce((sum, agent) => sum + agent.withoutRow, 0);
  if (!without && !neverRan) return null;
  const shown = queryOf({ ...EMPTY, is: new Set(WITHOUT_REWARD) });
  return verdictRow(
    "note",
    "missing",
    null,
    `${(without + neverRan).toLocaleString("en")} of ${plural(report.planned, "rollout")} have no reward`,
    "; run with ",
    h("code", null, "--rollout-resume"),
    " to finish. ",
    without > 0 && h("a", { href: `#/rollouts${shown}` }, "Show them"),
  );
};

const baselineRow = () =>
  report.baseline &&
  !report.gates.some(({ gate }) => gate.startsWith("baseline")) &&
  verdictRow(
    "note",
    "baseline",
    null,
    report.baseline.agents.map((one, at) => [
      at ? " \u00b7 " : "",
      report.agents.length > 1 && `${oneLine(report.agents[one.agent].label, 60)} `,
      changeText(one.change),
    ]),
    !report.baseline.agents.length && "no agent in common",
    ` compared with ${oneLine(report.baseline.files.join(", "))}. `,
    h("a", { href: `#/baseline${query()}` }, "What changed"),
  );

/** Tasks that were expected to fail and that an agent solves: one line for all of them. */
const gainedRow = () => {
  const agents = new Map();
  for (const agent of report.agents)
    for (const [task] of agent.gained) agents.set(task, [...(agents.get(task) ?? []), agent.label]);
  if (!agents.size) return null;
  return verdictRow(
    "note",
    "gained",
    null,
    [...agents].map(([task, labels], at) => [
      at ? ", " : "",
      h("a", { href: taskUrl(task) }, oneLine(report.tasks[task])),
      ` (${labels.length === 1 ? oneLine(labels[0], 60) : plural(labels.length, "agent")})`,
    ]),
    agents.size === 1 ? ": its xfail can go" : ": their xfails can go",
  );
};

const costRow = () => report.cost && verdictRow("note", "cost", null, report.cost);

const verdicts = () => {
  const rows = [...report.gates.map(gateRow), earlyRow(), missingRow(), baselineRow(), gainedRow(), costRow()].filter(
    Boolean,
  );
  if (!rows.length) return null;
  const worst = ["failed", "undecided", "passed"].find((word) => report.gates.some((one) => one.verdict === word));
  return h("section", { class: `verdicts v-${worst ?? "note"}`, "aria-label": "Verdicts" }, h("ul", null, rows));
};
