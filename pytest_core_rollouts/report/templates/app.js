// Pages by their address, filters, the keyboard, the theme.

let report = null;
let page = null;

const EMPTY = {
  q: "",
  is: new Set(),
  agent: null,
  tag: null,
  xfail: false,
  why: null,
  sort: null,
  group: null,
  by: null,
  down: false,
};
let state = { ...EMPTY };

// Ids may hold anything, lone surrogates included, which cannot be part of an address.
const encode = (text) => encodeURIComponent(text.replace(LONE, "\ufffd"));
const decode = (text) => {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
};

const tell = (text) => {
  byId("live").textContent = text;
};

// Filters

let words = [];
let causes = null; // the causes that `state.why` names, each with a value or -1; null: any
let filterText = ""; // the filter as the end of an address

const matches = (row) =>
  (!state.is.size || state.is.has(row.outcome)) &&
  (state.agent === null || row.agent === state.agent) &&
  (state.tag === null || report.tags[row.task].includes(state.tag)) &&
  (!state.xfail || Boolean(row.xfail)) &&
  (causes === null || causes.some(([cause, value]) => row.cause === cause && (value < 0 || row.value === value))) &&
  words.every((word) => haystack(row).includes(word));

const haystack = (row) => {
  row.text ??= [
    report.tasks[row.task],
    report.agents[row.agent].label,
    row.id,
    row.outcome,
    `#${row.sample}`,
    row.xfail ? "xfail" : "",
    ...report.tags[row.task],
    row.brief,
    row.answer,
    row.found,
  ]
    .join("\n")
    .toLowerCase();
  return row.text;
};

const valueName = (cause, value) => `${cause.text}: ${value}`;

const causesNamed = (name) =>
  report.causes.flatMap((cause, at) => [
    ...(cause.text === name ? [[at, -1]] : []),
    ...cause.values.flatMap(([value], number) => (valueName(cause, value) === name ? [[at, number]] : [])),
  ]);

const setState = (next) => {
  state = next;
  words = state.q.toLowerCase().split(/\s+/).filter(Boolean);
  causes = state.why === null ? null : causesNamed(state.why);
  filterText = queryOf(state);
};

const query = () => filterText;

const defaultSort = () => (report.tasks.length > MANY_TASKS ? "hardest" : "task");
const shownSort = () => state.sort ?? defaultSort();

const queryOf = (of) => {
  const params = new URLSearchParams();
  const set = (name, value) => value && params.set(name, String(value).replace(LONE, "\ufffd"));
  set("q", of.q);
  set("is", [...of.is].join(","));
  set("agent", of.agent === null ? "" : String(of.agent));
  set("tag", of.tag);
  set("xfail", of.xfail && "1");
  set("why", of.why);
  set("sort", of.sort !== defaultSort() && of.sort);
  set("group", of.group);
  set("by", of.by && of.by + (of.down ? "-" : ""));
  const text = params.toString();
  return text ? `?${text}` : "";
};

const readQuery = (text) => {
  const params = new URLSearchParams(text);
  const agent = params.has("agent") ? Number(params.get("agent")) : null;
  const by = params.get("by");
  setState({
    q: params.get("q") ?? "",
    is: new Set((params.get("is") ?? "").split(",").filter((name) => report.outcomes.includes(name))),
    agent: report.agents[agent] ? agent : null,
    tag: params.get("tag"),
    xfail: params.has("xfail"),
    why: params.get("why"),
    sort: params.get("sort"),
    group: params.get("group"),
    by: by ? by.replace(/-$/, "") : null,
    down: Boolean(by?.endsWith("-")),
  });
};

/** Change filters and show what they leave; the address follows, so that it can be shared. */
const go = (change) => {
  setState({ ...state, ...change });
  history.replaceState(null, "", `#${route().path}${query()}`);
  byId("search").value = state.q;
  drawNav(route().path);
  for (const bar of document.querySelectorAll("[data-filters]"))
    bar.replaceWith(filterBar(JSON.parse(bar.dataset.filters) ? { sorts: SORTS } : {}));
  page.filtered?.();
};

const clearFilters = () => {
  go(EMPTY);
  byId("search").focus();
};

const toggled = (set, name) => {
  const next = new Set(set);
  if (!next.delete(name)) next.add(name);
  return next;
};

const filterBar = ({ sorts }) => {
  const counts = countOutcomes(report.rows);
  const refocus = (selector, act) => () => {
    act();
    document.querySelector(selector)?.focus();
  };
  return h(
    "div",
    { class: "filters", "data-filters": JSON.stringify(Boolean(sorts)) },
    h(
      "div",
      { class: "chips", role: "group", "aria-label": "Outcomes" },
      counts.map(([name, count]) =>
        h(
          "button",
          {
            type: "button",
            class: "chip",
            id: `is-${name}`,
            "aria-pressed": String(state.is.has(name)),
            title: NAMES[name],
            click: refocus(`#is-${name}`, () => go({ is: toggled(state.is, name) })),
          },
          glyph(name),
          name,
          h("span", { class: "muted" }, count.toLocaleString("en")),
        ),
      ),
    ),
    report.rows.some((row) => row.xfail) &&
      h(
        "button",
        {
          type: "button",
          class: "chip",
          id: "is-xfail",
          "aria-pressed": String(state.xfail),
          title: "Only rollouts that were expected to fail",
          click: refocus("#is-xfail", () => go({ xfail: !state.xfail })),
        },
        "xfail",
        h("span", { class: "muted" }, report.rows.filter((row) => row.xfail).length.toLocaleString("en")),
      ),
    state.why !== null &&
      h(
        "button",
        {
          type: "button",
          class: "chip",
          id: "is-why",
          "aria-pressed": "true",
          title: "Remove this filter",
          click: refocus("#search", () => go({ why: null })),
        },
        h("span", { class: "name" }, oneLine(state.why, 100)),
        h("span", { "aria-hidden": "true" }, "\u00d7"),
      ),
    report.agents.length > 1 &&
      choice(
        "agent-choice",
        "Agent",
        [["", "all"], ...report.agents.map((agent, at) => [String(at), oneLine(agent.label, 60)])],
        String(state.agent ?? ""),
        (value) => go({ agent: value === "" ? null : Number(value) }),
      ),
    allTags().length > 0 &&
      choice(
        "tag-choice",
        "Tag",
        [["", "all"], ...allTags().map((name) => [name, oneLine(name, 60)])],
        state.tag ?? "",
        (value) => go({ tag: value || null }),
      ),
    sorts &&
      choice(
        "sort-choice",
        "Order",
        Object.entries(sorts).map(([key, [name]]) => [key, name]),
        shownSort(),
        (value) => go({ sort: value }),
      ),
    !sorts &&
      choice(
        "by-choice",
        "Order",
        [["", "task"], ...Object.entries(COLUMNS).map(([key, [name]]) => [key, name])],
        state.by ?? "",
        (value) => go({ by: value || null, down: NUMERIC.has(value) && value !== "sample" }),
        "phones-only",
      ),
    sorts &&
      groupings().length > 1 &&
      choice("group-choice", "Group by", groupings(), state.group ?? "", (value) => go({ group: value || null })),
  );
};

const allTags = () => [...new Set(report.tags.flat())].sort();

const folderOf = (task) => {
  const id = report.tasks[task];
  return id.includes("/") ? id.slice(0, id.indexOf("/")) : "";
};

const groupings = () => [
  ["", "nothing"],
  ...(report.tasks.some((_, task) => folderOf(task)) ? [["folder", "folder"]] : []),
  ...(allTags().length ? [["tag", "tag"]] : []),
];

const choice = (id, label, options, value, change, kind = "") => {
  const select = h(
    "select",
    {
      id,
      change: (event) => {
        change(event.target.value);
        byId(id)?.focus();
      },
    },
    options.map(([key, text]) => h("option", { value: key, selected: key === value }, text)),
  );
  return h("label", { class: `choice ${kind}` }, h("span", { class: "muted small" }, label), select);
};

// Addresses

const route = () => {
  const [path, search = ""] = location.hash.replace(/^#/, "").split("?");
  return { path: path || "/", search };
};

const PAGES = [
  ["/", "Overview"],
  ["/rollouts", "Rollouts"],
  ["/baseline", "Baseline"],
  ["/run", "Run"],
];

const pageOf = (path) => {
  const [, kind, id = "", item] = path.split("/");
  if (kind === "") return overview();
  if (kind === "rollouts") return rolloutsPage();
  if (kind === "task") return taskPage(decode(id));
  if (kind === "rollout") return rolloutPage(decode(id), item ? Number(item) : undefined);
  if (kind === "baseline" && report.baseline) return baselinePage();
  if (kind === "run") return runPage();
  return missingPage("This address leads nowhere");
};

const left = new Map(); // where each page was left
let shownPath = null;

const draw = () => {
  const { path, search } = route();
  if (shownPath !== null) left.set(shownPath, { y: scrollY, at: page.cursor?.at, query: query() });
  readQuery(search);
  byId("search").value = state.q;
  page?.stop?.();
  page = pageOf(path);
  shownPath = path;
  document.body.dataset.page = path.split("/")[1] || "overview";
  replace(byId("main"), page.nodes);
  document.title = page.title ? `${page.title} \u00b7 ${baseTitle}` : baseTitle;
  drawNav(path);
  returnTo(path.startsWith("/rollout/") ? undefined : left.get(path));
  page.ready?.then(() => {
    if (page.cursor?.at >= 0) move(0);
  });
};

/** Show the place where this page was left, and the row that had the keyboard. */
const returnTo = (place) => {
  scrollTo(0, place?.y ?? 0);
  if (place?.at === undefined || place.query !== query() || !page.cursor) return;
  const node = page.cursor.reveal(place.at);
  if (!node) return;
  page.cursor.at = place.at;
  node.focus({ preventScroll: true });
  node.scrollIntoView({ block: "nearest" });
};

const drawNav = (path) =>
  replace(
    byId("nav"),
    PAGES.filter(([where]) => where !== "/baseline" || report.baseline).map(([where, name]) =>
      h(
        "a",
        {
          href: `#${where}${query()}`,
          "aria-current": where === path ? "page" : null,
        },
        name,
      ),
    ),
  );

// Keyboard

const SHORTCUTS = [
  ["j / k", "next / previous task, rollout or item"],
  ["Enter", "open it"],
  ["n / p", "next / previous rollout"],
  ["/", "search"],
  ["Esc", "leave the search, or go up"],
  ["] / [", "next / previous failed item"],
  ["e", "unfold or fold all output in view"],
  ["t", "switch the theme"],
  ["?", "this list"],
];

const move = (step) => {
  const cursor = page.cursor;
  if (!cursor || !cursor.count) return;
  const from = cursor.at ?? (step > 0 ? -1 : 1);
  const to = (at) => Math.min(cursor.count - 1, Math.max(0, at));
  let next = to(from + step);
  while (cursor.skips?.(next) && next !== to(next + (step || 1))) next = to(next + (step || 1));
  if (cursor.skips?.(next)) return;
  cursor.at = next;
  cursor.moved?.(next);
  const node = cursor.reveal(cursor.at);
  if (!node) return;
  node.focus({ preventScroll: true });
  node.scrollIntoView({ block: cursor.block ?? "nearest" });
  const number = node.dataset.step;
  if (number && page.row) history.replaceState(null, "", rolloutUrl(page.row, number));
};

const openAt = () => {
  const url = document.activeElement?.dataset?.url;
  if (url) location.hash = url;
};

const neighbourKey = (step) => {
  const row = page.row ?? null;
  const next = row && neighbour(row, step);
  if (next) location.hash = rolloutUrl(next);
};

const unfoldAll = () => {
  const closed = [...document.querySelectorAll('main [data-fold="open"]')];
  const open = [...document.querySelectorAll('main [data-fold="close"]')];
  for (const button of closed.length ? closed : open) button.click();
};

const escape = () => {
  const active = document.activeElement;
  if (active && /^(?:INPUT|SELECT|TEXTAREA)$/.test(active.tagName)) {
    if (active.value && active.type === "search") {
      active.value = "";
      active.dispatchEvent(new Event("input"));
    } else active.blur();
  } else if (page.up) location.hash = page.up;
  else if (query()) go(EMPTY);
};

const KEYS = {
  j: () => move(1),
  k: () => move(-1),
  o: openAt,
  Enter: openAt,
  n: () => neighbourKey(1),
  p: () => neighbourKey(-1),
  "/": () => {
    byId("search").focus();
    byId("search").select();
  },
  "]": () => page.nextBad?.(1),
  "[": () => page.nextBad?.(-1),
  e: unfoldAll,
  t: () => switchTheme(),
  "?": () => showHelp(),
  Escape: escape,
};

const onKey = (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || byId("keys").open) return;
  const typing = /^(?:INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (typing && event.key !== "Escape" && !(event.key === "Enter" && event.target.id === "search")) return;
  if (event.key === "Enter" && event.target.closest("a, button, summary")) return;
  if (event.key === "Enter" && typing) {
    if (page.filtered) event.target.blur();
    else location.hash = `#/rollouts${queryOf({ ...state, q: event.target.value })}`;
    return;
  }
  if (!Object.hasOwn(KEYS, event.key)) return;
  event.preventDefault();
  KEYS[event.key]();
};

const showHelp = () => {
  const dialog = byId("keys");
  replace(
    dialog,
    h(
      "form",
      { method: "dialog" },
      h(
        "div",
        { class: "panel-head" },
        h("h2", { id: "keys-title" }, "Keyboard"),
        h("button", { class: "quiet", "aria-label": "Close" }, "Esc"),
      ),
      h(
        "dl",
        { class: "shortcuts" },
        SHORTCUTS.map(([keys, means]) => [
          h(
            "dt",
            null,
            keys.split(" / ").map((key, at) => [at ? " " : "", h("kbd", null, key)]),
          ),
          h("dd", null, means),
        ]),
      ),
    ),
  );
  dialog.showModal();
};

// Theme: the system's, until the reader chooses.

const THEMES = ["system", "light", "dark"];
let theme = "system";

const setTheme = (next) => {
  theme = THEMES.includes(next) ? next : "system";
  document.documentElement.dataset.theme = theme;
  replace(byId("theme"), { system: "Auto", light: "Light", dark: "Dark" }[theme]);
  byId("theme").title = "Theme (t)";
  byId("theme").setAttribute("aria-label", `Theme: ${theme}`);
};

const switchTheme = () => {
  setTheme(THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length]);
  try {
    localStorage.setItem("rollouts-theme", theme);
  } catch {
    /* a browser may refuse storage to files */
  }
};

const storedTheme = () => {
  try {
    return localStorage.getItem("rollouts-theme");
  } catch {
    return null;
  }
};

// Start

const baseTitle = document.title;

const start = async () => {
  setTheme(storedTheme());
  byId("theme").addEventListener("click", switchTheme);
  byId("help").addEventListener("click", showHelp);
  byId("skip").addEventListener("click", (event) => {
    event.preventDefault();
    byId("main").focus();
  });
  byId("brand").textContent = oneLine(baseTitle, 60);
  report = readIndex(await unpack(byId("index").textContent));
  byId("search").addEventListener("input", (event) => {
    if (page.filtered) go({ q: event.target.value });
  });
  history.scrollRestoration = "manual";
  addEventListener("hashchange", draw);
  document.addEventListener("keydown", onKey);
  draw();
  document.documentElement.dataset.ready = "";
};

start().catch((error) =>
  replace(byId("main"), h("p", { class: "callout broken" }, `This report cannot be shown: ${error.message}`)),
);
