// Pages by their address, filters, the keyboard, the theme.

let report = null;
let page = null;

const EMPTY = { q: "", is: new Set(), agent: null, sort: "task", by: null, down: false };
let state = { ...EMPTY, is: new Set() };

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

const matches = (row) =>
  (!state.is.size || state.is.has(row.outcome)) &&
  (state.agent === null || row.agent === state.agent) &&
  words.every((word) => haystack(row).includes(word));

const haystack = (row) => {
  row.text ??= [
    report.tasks[row.task],
    report.agents[row.agent].label,
    row.id,
    row.outcome,
    `#${row.sample}`,
    row.brief,
  ]
    .join("\n")
    .toLowerCase();
  return row.text;
};

const setState = (next) => {
  state = next;
  words = state.q.toLowerCase().split(/\s+/).filter(Boolean);
};

const query = () => {
  const params = new URLSearchParams();
  if (state.q) params.set("q", state.q.replace(LONE, "\ufffd"));
  if (state.is.size) params.set("is", [...state.is].join(","));
  if (state.agent !== null) params.set("agent", String(state.agent));
  if (state.sort !== "task") params.set("sort", state.sort);
  if (state.by) params.set("by", state.by + (state.down ? "-" : ""));
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
    sort: params.get("sort") ?? "task",
    by: by ? by.replace(/-$/, "") : null,
    down: Boolean(by?.endsWith("-")),
  });
};

/** Change filters and show what they leave; the address follows, so that it can be shared. */
const go = (change) => {
  setState({ ...state, ...change });
  history.replaceState(null, "", `#${route().path}${query()}`);
  byId("search").value = state.q;
  for (const bar of document.querySelectorAll("[data-filters]"))
    bar.replaceWith(filterBar(JSON.parse(bar.dataset.filters) ? { sorts: SORTS } : {}));
  page.filtered?.();
};

const clearFilters = () => {
  go({ ...EMPTY, is: new Set() });
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
    report.agents.length > 1 &&
      choice(
        "agent-choice",
        "Agent",
        [["", "all"], ...report.agents.map((agent, at) => [String(at), oneLine(agent.label, 60)])],
        String(state.agent ?? ""),
        (value) => go({ agent: value === "" ? null : Number(value) }),
      ),
    sorts &&
      choice(
        "sort-choice",
        "Order",
        Object.entries(sorts).map(([key, [name]]) => [key, name]),
        state.sort,
        (value) => go({ sort: value }),
      ),
  );
};

const choice = (id, label, options, value, change) => {
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
  return h("label", { class: "choice" }, h("span", { class: "muted small" }, label), select);
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

const scrolls = new Map();
let shownPath = null;

const draw = () => {
  const { path, search } = route();
  if (shownPath !== null) scrolls.set(shownPath, scrollY);
  // A page without its own filters keeps those of the list it was opened from.
  if (path === "/" || path === "/rollouts") readQuery(search);
  byId("search").value = state.q;
  page?.stop?.();
  page = pageOf(path);
  shownPath = path;
  document.body.dataset.page = path.split("/")[1] || "overview";
  replace(byId("main"), page.nodes);
  document.title = page.title ? `${page.title} \u00b7 ${baseTitle}` : baseTitle;
  drawNav(path);
  scrollTo(0, path.startsWith("/rollout/") || path.startsWith("/task/") ? 0 : (scrolls.get(path) ?? 0));
  page.ready?.then(() => {
    if (page.cursor?.at >= 0) move(0);
  });
};

const drawNav = (path) =>
  replace(
    byId("nav"),
    PAGES.filter(([where]) => where !== "/baseline" || report.baseline).map(([where, name]) =>
      h(
        "a",
        {
          href: `#${where}${where === "/" || where === "/rollouts" ? query() : ""}`,
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
  ["e", "unfold or fold all output in view"],
  ["t", "switch the theme"],
  ["?", "this list"],
];

const move = (step) => {
  const cursor = page.cursor;
  if (!cursor || !cursor.count) return;
  cursor.at = Math.min(cursor.count - 1, Math.max(0, (cursor.at ?? (step > 0 ? -1 : 1)) + step));
  const node = cursor.reveal(cursor.at);
  if (!node) return;
  node.focus({ preventScroll: true });
  node.scrollIntoView({ block: cursor.block ?? "nearest" });
  const number = node.dataset.step;
  if (number && page.row) history.replaceState(null, "", `${rolloutUrl(page.row)}/${number}`);
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
  } else if (page.up) location.hash = page.up + (page.up === "#/" ? query() : "");
  else if (query()) go({ ...EMPTY, is: new Set() });
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
    else location.hash = `#/rollouts${query()}`;
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
    setState({ ...state, q: event.target.value });
    if (page.filtered) go({});
  });
  addEventListener("hashchange", draw);
  document.addEventListener("keydown", onKey);
  draw();
  document.documentElement.dataset.ready = "";
};

start().catch((error) =>
  replace(byId("main"), h("p", { class: "callout broken" }, `This report cannot be shown: ${error.message}`)),
);
