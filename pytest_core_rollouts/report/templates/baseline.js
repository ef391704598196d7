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
      fact("Unchanged", String(one.unchanged)),
    ),
    one.power.length > 0 &&
      h(
        "p",
        { class: "muted small" },
        `A difference this large by chance: p = ${one.p} on these tasks (two-sided). ${one.power.map((text) => `${text[0].toUpperCase()}${text.slice(1)}.`).join(" ")}`,
      ),
    one.rows.length > 0 &&
      h(
        "div",
        {
          class: "scroll",
          tabindex: "0",
          role: "region",
          "aria-label": `Tasks that changed: ${oneLine(report.agents[one.agent].label, 60)}`,
        },
        h(
          "table",
          null,
          h(
            "thead",
            null,
            h(
              "tr",
              null,
              h("th", { scope: "col" }, "Task"),
              ["Baseline", "Now", "Change", "p", "Corrected"].map((head) =>
                h(
                  "th",
                  {
                    scope: "col",
                    class: "num",
                    title: {
                      p: "Fisher's exact test of the solved samples, two-sided",
                      Corrected: "Holm's correction for all tasks compared",
                    }[head],
                  },
                  head,
                ),
              ),
              h("th", { scope: "col" }, "Samples now"),
            ),
          ),
          h(
            "tbody",
            null,
            one.rows.map((row) =>
              h(
                "tr",
                null,
                h("th", { scope: "row" }, h("a", { href: taskUrl(row.task) }, oneLine(report.tasks[row.task]))),
                h("td", { class: "num" }, row.before),
                h("td", { class: "num" }, row.after),
                h("td", { class: `num ${direction(row.change, row.sure)}` }, row.text),
                h("td", { class: "num" }, row.p),
                h("td", { class: "num" }, row.corrected),
                h("td", null, h("div", { class: "squares" }, report.groups[row.task][one.agent].map(square))),
              ),
            ),
          ),
        ),
      ),
    one.leftOut.map(([text, tasks]) => unmatched(text, tasks)),
  );
