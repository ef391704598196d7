// The trajectory of a rollout: its Items as a list, with filters, an outline, and the Turns and attempts as tabs.

const KIND_NAMES = { agent: "Messages", shell: "Commands", tool: "Tools", reasoning: "Reasoning" };
const MOST_TICKS = 400;

/** How many Items a step stands for: a call and its result are two. */
const itemsIn = (steps) => steps.reduce((sum, step) => sum + (step.gap ? 0 : step.result ? 2 : 1), 0);

// The outline

/** One tick for each Item, failed ones marked; of very many, one for several. A click leads there. */
const outline = (steps, goTo) => {
  const size = Math.ceil(steps.length / MOST_TICKS);
  const ticks = Array.from({ length: Math.ceil(steps.length / size) }, (_, at) =>
    steps.slice(at * size, (at + 1) * size),
  );
  const bad = steps.filter(isBadStep).length;
  const place = svg("rect", { class: "place", x: 0, y: 0, width: 1, height: 12, visibility: "hidden" });
  const strip = svg(
    "svg",
    {
      class: "outline",
      viewBox: `0 0 ${ticks.length} 12`,
      preserveAspectRatio: "none",
      role: "img",
      "aria-label": `Outline: ${plural(steps.length, "item")}, ${bad.toLocaleString("en")} failed`,
      click: (event) => {
        const box = strip.getBoundingClientRect();
        const at = Math.floor(((event.clientX - box.left) / box.width) * ticks.length);
        const tick = ticks[Math.min(ticks.length - 1, Math.max(0, at))];
        goTo(tick.find(isBadStep) ?? tick[0]);
      },
    },
    svg("title", null, "Each tick is an item; a click leads there"),
    ticks.map((tick, at) => {
      const failed = tick.some(isBadStep);
      const kind = tick[0].gap ? "gap" : kindOf(tick[0].item);
      const height = failed ? 12 : 6;
      return svg("rect", {
        class: failed ? "tick bad" : `tick o-${kind}`,
        x: at + 0.08,
        y: 12 - height,
        width: 0.84,
        height,
      });
    }),
    place,
  );
  strip.style.maxWidth = `${ticks.length * 16}px`;
  const show = (step) => {
    const at = steps.indexOf(step);
    place.setAttribute("visibility", at < 0 ? "hidden" : "visible");
    place.setAttribute("x", String(Math.floor(at / size)));
  };
  return { strip, show };
};

// Tabs

const NOTE_OF_ATTEMPT = /^attempt (\d+): ([\s\S]*)$/;

const turnsOf = (detail) => [
  ...new Set(detail.items.map((item) => item?.turn_id).filter((id) => typeof id === "string")),
];

/** The tabs: earlier attempts, and the Turns of the one that counts; none if there is nothing to choose. */
const tabsOf = (detail) => {
  const turns = turnsOf(detail);
  const notes = new Map(
    detail.notes
      .map((note) => NOTE_OF_ATTEMPT.exec(String(note)))
      .filter(Boolean)
      .map(([, n, text]) => [Number(n), text]),
  );
  const earlier = Array.from({ length: Math.max(0, (detail.attempt ?? 1) - 1) }, (_, at) => ({
    name: `Attempt ${at + 1}`,
    note: notes.get(at + 1) ?? "no reason was kept",
    usage: detail.earlierUsage?.[at],
  }));
  const last = earlier.length ? `Attempt ${detail.attempt}` : "All Turns";
  const each =
    turns.length < 2 ? [] : turns.map((turn, at) => ({ name: `Turn ${at + 1}`, turn, ...told(detail, turn) }));
  return earlier.length || each.length ? [...earlier, { name: last }, ...each] : [];
};

const told = (detail, turn) => {
  const one = (detail.turns ?? []).find((entry) => entry?.turn_id === turn);
  return { seconds: one?.seconds, status: one?.status };
};

const tabBar = (tabs, choose) => {
  const buttons = tabs.map((tab) =>
    h(
      "button",
      {
        type: "button",
        "aria-pressed": "false",
        click: () => {
          select(tab);
          choose(tab);
        },
      },
      tab.name,
      tab.status && tab.status !== "completed" && h("span", { class: "muted" }, ` ${oneLine(tab.status, 20)}`),
      typeof tab.seconds === "number" && h("span", { class: "muted" }, ` ${seconds(tab.seconds)}`),
    ),
  );
  const select = (tab) =>
    buttons.forEach((button, at) => button.setAttribute("aria-pressed", String(tabs[at] === tab)));
  select(tabs.find((tab) => tab.note === undefined));
  return h("div", { class: "segments tabs", role: "group", "aria-label": "Attempts and Turns" }, buttons);
};

const earlierAttempt = (tab) =>
  h(
    "div",
    { class: "callout broken" },
    h("h3", null, `${tab.name} did not count`),
    h("p", null, visible(tab.note)),
    usageText(tab.usage) && h("p", { class: "muted small" }, usageText(tab.usage)),
    h("p", { class: "muted small" }, "Its trajectory was not kept."),
  );

// The list

const trajectory = (row, detail, page, start) => {
  const steps = stepsOf(detail.items, detail.gap);
  const box = h("div", { class: "trajectory" });
  const said = h("span", { class: "muted small said" });
  const wanted = { kinds: new Set(), text: "", bad: false, tab: {} };
  let shown = steps;
  const matchesStep = (step, text) =>
    (wanted.tab.turn === undefined || step.item?.turn_id === wanted.tab.turn) &&
    (step.gap
      ? !text && !wanted.bad && !wanted.kinds.size
      : (!wanted.kinds.size || wanted.kinds.has(kindOf(step.item))) &&
        (!wanted.bad || isBadStep(step)) &&
        (!text || stepText(step).includes(text)));
  const render = (step) => {
    const node = renderStep(step, row);
    if (wanted.text && !step.gap) showHits(node, wanted.text.toLowerCase());
    return node;
  };
  const draw = (focus) => {
    page.list?.stop();
    const text = wanted.text.toLowerCase();
    shown = steps.filter((step) => matchesStep(step, text));
    box.replaceChildren();
    page.list = lazyList(box, shown, { block: () => h("div", { class: "block" }), render, guess: 160, size: 12 });
    page.cursor = {
      count: shown.length,
      reveal: (at) => page.list.reveal(at),
      skips: (at) => Boolean(shown[at]?.gap),
      moved: (at) => strip.show(shown[at]),
      block: "start",
    };
    if (wanted.tab.note !== undefined) replace(box, earlierAttempt(wanted.tab));
    else if (!shown.length)
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
        : `${itemsIn(shown).toLocaleString("en")} of ${plural(detail.items.length, "item")}`;
    if (focus !== undefined) page.cursor.at = shown.findIndex((step) => step.number === focus);
  };
  const goTo = (step) => {
    if (!shown.includes(step)) return;
    page.cursor.at = shown.indexOf(step);
    move(0);
  };
  const strip = outline(steps, goTo);
  page.nextBad = (turn) => {
    const from = page.cursor.at ?? (turn > 0 ? -1 : shown.length);
    const places = shown.map((step, at) => (isBadStep(step) ? at : -1)).filter((at) => at >= 0);
    const next = turn > 0 ? places.find((at) => at > from) : places.findLast((at) => at < from);
    if (next === undefined) tell("No further failed item");
    else goTo(shown[next]);
  };
  // A fold that a reader opens is drawn anew: its hits are marked again.
  box.addEventListener("click", (event) => {
    const item = event.target.closest(".fold, .as-data") && event.target.closest(".item");
    if (!wanted.text || !item) return;
    unmarkHits(item);
    markHits(item, wanted.text.toLowerCase());
  });
  draw(start);
  return h(
    "section",
    { class: "trajectory-section", "aria-label": "Trajectory" },
    trajectoryHead(steps, detail, said, strip.strip, wanted, draw, page),
    box,
  );
};

const trajectoryHead = (steps, detail, said, strip, wanted, draw, page) => {
  const chip = (text, change) => {
    const button = h(
      "button",
      {
        type: "button",
        class: "chip",
        "aria-pressed": "false",
        click: () => {
          const on = button.getAttribute("aria-pressed") !== "true";
          button.setAttribute("aria-pressed", String(on));
          change(on);
          draw();
        },
      },
      text,
    );
    return button;
  };
  const kinds = Object.entries(KIND_NAMES).filter(([kind]) =>
    steps.some((step) => !step.gap && kindOf(step.item) === kind),
  );
  const bad = steps.filter(isBadStep).length;
  const tabs = tabsOf(detail);
  const jump = (turn, text, name) =>
    h(
      "button",
      { type: "button", class: "quiet", "aria-label": name, title: name, click: () => page.nextBad(turn) },
      text,
    );
  return h(
    "div",
    { class: "panel-head sticky" },
    h("h2", null, "Trajectory"),
    said,
    bad > 0 && [
      jump(-1, "[", "Previous failed item ([)"),
      h("span", { class: "failed-count" }, `${bad.toLocaleString("en")} failed`),
      jump(1, "]", "Next failed item (])"),
    ],
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
    steps.length > 3 && strip,
    tabs.length > 0 &&
      tabBar(tabs, (tab) => {
        wanted.tab = tab;
        draw();
      }),
  );
};
