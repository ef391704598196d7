// The trajectory: one article for each Item, by its type. Unknown types are shown as data.

const pretty = (value) => (typeof value === "string" ? value : (JSON.stringify(value, null, 2) ?? ""));

const tag = (text, kind = "") => h("span", { class: `tag ${kind}` }, oneLine(text, 80));

const statusTag = (item) => {
  if (!item.status || item.status === "completed") return null;
  return tag(item.status.replace("_", " "), item.status === "failed" ? "bad" : "warn");
};

/** `bash -lc '...'` as the script within; anything else as it is. */
const innerCommand = (command) => {
  const match = /^(?:\/(?:usr\/)?bin\/)?(?:ba|z)?sh -l?c (['"])([\s\S]*)\1\s*$/.exec(command);
  if (!match) return command;
  return match[1] === "'" ? match[2].replaceAll(`'\\''`, "'") : match[2].replace(/\\(["\\$`])/g, "$1");
};

const output = (text, label) => {
  if (isPatch(text)) return textBlock(text, { nodes: patchNodes, kind: "mono diff", label });
  return textBlock(text, { nodes: terminal, label });
};

const commandBody = (item) => {
  const command = innerCommand(pretty(item.command ?? ""));
  const shown = isPatch(command)
    ? textBlock(command, { nodes: patchNodes, kind: "mono diff", tail: false, label: "patch" })
    : textBlock(command, { tail: false, label: "command" });
  return [
    h("div", { class: "command" }, shown),
    item.output
      ? h("div", { class: "output" }, output(pretty(item.output), "output"))
      : h(
          "div",
          { class: "output muted none" },
          item.exit_code === null || item.exit_code === undefined ? "no output kept" : "no output",
        ),
  ];
};

const commandMeta = (item) => {
  const code = item.exit_code;
  return [
    (item.status !== "failed" || !code) && statusTag(item),
    item.cwd && item.cwd !== "/workspace" && h("span", { class: "muted mono" }, oneLine(item.cwd, 60)),
    typeof item.duration_ms === "number" && h("span", { class: "muted" }, seconds(item.duration_ms / 1000)),
    code === null || code === undefined
      ? tag("no exit code", "warn")
      : tag(`exit ${code}`, code === 0 ? "good" : "bad"),
  ];
};

const content = (parts) => (Array.isArray(parts) ? parts : [parts]).map(contentPart);

const contentPart = (part) => {
  if (typeof part === "string") return textBlock(part, { nodes: prose, kind: "prose", label: "text" });
  if (part && typeof part.text === "string")
    return textBlock(part.text, { nodes: prose, kind: "prose", tail: false, label: "message" });
  if (part && part.type === "input_image")
    return h(
      "p",
      { class: "muted" },
      `An image, not shown (${plural(String(part.image_url).length, "character")} of address)`,
    );
  if (part && part.type === "encrypted_content") return h("p", { class: "muted" }, "Encrypted content");
  return textBlock(pretty(part), { label: "content" });
};

const EDITED = ["old_string", "old_str", "new_string", "new_str"];

/** What an edit changed, found in a call's arguments by the names that tools give it; null if it is not an edit. */
const editOf = (args) => {
  if (typeof args === "string") {
    if (isPatch(args)) return [output(args, "patch")];
    try {
      return /^\s*\{/.test(args) && args.length < 2e6 ? editOf(JSON.parse(args)) : null;
    } catch {
      return null;
    }
  }
  if (!args || typeof args !== "object") return null;
  const path = args.file_path ?? args.path;
  const where = path ? [h("div", { class: "mono path" }, oneLine(path))] : [];
  const patch = [args.patch, args.diff, args.input].find((text) => typeof text === "string" && isPatch(text));
  if (patch) return [...where, output(patch, "patch")];
  if (EDITED.some((key) => typeof args[key] === "string")) {
    return [...where, replacement(args.old_string ?? args.old_str ?? "", args.new_string ?? args.new_str ?? "")];
  }
  if (Array.isArray(args.edits)) return [...where, args.edits.map((edit) => editOf(edit) ?? textBlock(pretty(edit)))];
  const changes = Array.isArray(args.changes) ? args.changes : null;
  if (changes?.every((change) => change && typeof change.diff === "string")) {
    return changes.map((change) => [
      h("div", { class: "mono path" }, oneLine(change.path ?? "")),
      textBlock(change.diff, { nodes: patchNodes, kind: "mono diff", label: "patch" }),
    ]);
  }
  if (path && typeof args.content === "string") {
    return [
      ...where,
      textBlock(args.content, {
        nodes: (text) => text.split("\n").map((line) => diffLine("add", line)),
        kind: "mono diff",
        tail: false,
        label: "file",
      }),
    ];
  }
  return null;
};

const args = (item) => {
  const edit = editOf(item.arguments);
  if (edit) return edit;
  let value = item.arguments;
  try {
    if (typeof value === "string") value = JSON.parse(value);
  } catch {
    /* shown as it is */
  }
  if (value && typeof value === "object" && Object.keys(value).length === 1 && typeof value.command === "string")
    value = value.command;
  return textBlock(pretty(value), { tail: false, label: "arguments" });
};

const section = (label, ...nodes) => h("div", { class: "output" }, h("div", { class: "muted small" }, label), ...nodes);

const resultOf = (result) => {
  if (!result) return null;
  if (result.error) return section("Error", textBlock(String(result.error), { kind: "mono error", label: "error" }));
  return h(
    "div",
    { class: "output" },
    Array.isArray(result.output) ? content(result.output) : output(pretty(result.output ?? ""), "result"),
  );
};

const subagent = (verb) => ({
  kind: "tool",
  name: () => "Subagent",
  meta: (item) => [tag(verb), item.model && tag(item.model), statusTag(item)],
  body: (item) => [
    item.content && content(item.content),
    h(
      "p",
      { class: "muted mono" },
      oneLine(
        [item.agent_id, item.sender_agent_id, item.recipient_agent_id, ...(item.recipient_agent_ids ?? [])]
          .filter(Boolean)
          .join(" \u2192 "),
      ),
    ),
  ],
});

const search = (action) =>
  action?.query ||
  (action?.queries ?? []).join(" \u00b7 ") ||
  [action?.pattern, action?.url].filter(Boolean).join(" in ") ||
  "";

/** How each type is shown: a class, who or what it is, notes beside it, what it holds. */
const TYPES = {
  message: {
    kind: (item) => (item.role === "user" ? "user" : "agent"),
    name: (item) =>
      item.role === "user" ? "User" : item.role === "assistant" ? "Agent" : oneLine(item.role ?? "message", 40),
    meta: (item) => [
      item.phase === "commentary" && h("span", { class: "muted" }, "commentary"),
      item.phase === "final_answer" && h("span", { class: "muted" }, "final answer"),
      statusTag(item),
    ],
    body: (item) => content(item.content ?? []),
  },
  reasoning: {
    kind: "reasoning",
    name: () => "Reasoning",
    meta: (item) => [statusTag(item)],
    body: (item) => {
      const parts = [...(item.summary ?? []), ...(item.content ?? [])];
      return parts.length ? content(parts) : h("p", { class: "muted" }, "No summary was given");
    },
  },
  command_execution: { kind: "shell", name: () => "Command", meta: commandMeta, body: commandBody },
  function_call: {
    kind: "tool",
    name: (item) => oneLine(item.name ?? "function", 80),
    meta: (item) => [statusTag(item)],
    body: (item, result) => [h("div", { class: "command" }, args(item)), resultOf(result)],
  },
  function_call_output: {
    kind: "tool",
    name: () => "Function result",
    meta: (item) => [statusTag(item)],
    body: (item) => resultOf(item),
  },
  mcp_call: {
    kind: "tool",
    name: (item) => oneLine(`${item.server_label ?? "mcp"} \u00b7 ${item.name ?? ""}`, 80),
    meta: (item) => [statusTag(item)],
    body: (item) => [
      h("div", { class: "command" }, args(item)),
      item.error && section("Error", textBlock(pretty(item.error), { kind: "mono error", label: "error" })),
      item.output !== null &&
        item.output !== undefined &&
        h("div", { class: "output" }, output(pretty(item.output), "result")),
    ],
  },
  web_search_call: {
    kind: "tool",
    name: () => "Web search",
    meta: (item) => [tag(item.action?.type ?? "search"), statusTag(item)],
    body: (item) => h("div", { class: "command" }, textBlock(search(item.action), { label: "query" })),
  },
  file_change: {
    kind: "tool",
    name: () => "File change",
    meta: (item) => [statusTag(item)],
    body: (item) => editOf(item) ?? textBlock(pretty(item), { label: "data" }),
  },
  agent_message: subagent("message"),
  create_subagent_call: subagent("create"),
  send_subagent_input_call: subagent("input"),
  resume_subagent_call: subagent("resume"),
  wait_for_subagents_call: subagent("wait"),
  interrupt_subagent_call: subagent("interrupt"),
  close_subagent_call: subagent("close"),
  error: {
    kind: "broken",
    name: () => "Error",
    meta: () => [],
    body: (item) => textBlock(pretty(item.message ?? item.error ?? item), { kind: "mono error", label: "error" }),
  },
};

const UNKNOWN = {
  kind: "tool",
  name: (item) => oneLine(item?.type ?? "item", 60),
  meta: (item) => [item && statusTag(item)],
  body: (item) => editOf(item) ?? textBlock(pretty(item), { label: "data" }),
};

const typeOf = (item) => (item && Object.hasOwn(TYPES, item.type) ? TYPES[item.type] : UNKNOWN);
const kindOf = (item) => {
  const { kind } = typeOf(item);
  return typeof kind === "function" ? kind(item) : kind;
};

/** Whether something went wrong in this Item. */
const isBad = (item) =>
  Boolean(item) &&
  (item.status === "failed" || item.type === "error" || Boolean(item.error) || Boolean(item.exit_code));

/** The Items as steps: a function's result stands with its call, and a gap where Items were left out. */
const stepsOf = (items, gap) => {
  const results = new Map();
  for (const item of items) if (item?.type === "function_call_output" && item.call_id) results.set(item.call_id, item);
  const called = new Set(items.filter((item) => item?.type === "function_call").map((item) => item.call_id));
  const steps = [];
  items.forEach((item, at) => {
    if (gap && at === gap.after) steps.push({ gap: gap.count });
    if (item?.type === "function_call_output" && called.has(item.call_id)) return;
    const number = at + 1 + (gap && at >= gap.after ? gap.count : 0);
    steps.push({ item, number, result: item?.type === "function_call" ? results.get(item.call_id) : undefined });
  });
  if (gap && gap.after >= items.length) steps.push({ gap: gap.count });
  return steps;
};

const stepText = (step) => (step.gap ? "" : JSON.stringify([step.item, step.result ?? null]).toLowerCase());

const isBadStep = (step) => !step.gap && (isBad(step.item) || Boolean(step.result?.error));

/** Copy a text; a browser may refuse its clipboard to a file, so the old way is tried too. */
const copyText = async (text) => {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = h("textarea", { class: "visually-hidden", "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  tell("Copied");
};

/** What a reader wants to paste: a command, a message's text, or else the data. */
const copiedText = (item, result) => {
  if (item?.type === "command_execution") return innerCommand(pretty(item.command ?? ""));
  if (item?.type === "message" && Array.isArray(item.content))
    return item.content.map((part) => (typeof part === "string" ? part : (part?.text ?? pretty(part)))).join("\n");
  return JSON.stringify(result ? [item, result] : item, null, 2);
};

const itemTools = (row, number, item, result, raw) => [
  h(
    "button",
    {
      type: "button",
      class: "quiet raw copy",
      title: "Copy the command, the text or the data",
      "aria-label": `Copy item ${number}`,
      click: async (event) => {
        await copyText(copiedText(item, result));
        event.target.textContent = "copied";
      },
    },
    "copy",
  ),
  h(
    "a",
    {
      class: "quiet raw",
      href: rolloutUrl(row, number),
      "aria-label": `Link to item ${number}`,
      title: "Link to this item",
    },
    "link",
  ),
  raw,
];

const renderStep = (step, row) => {
  if (step.gap)
    return h("div", { class: "gap" }, `${plural(step.gap, "item")} left out of this report; the JSONL has them all`);
  const { item, number, result } = step;
  const type = typeOf(item);
  const body = h("div", { class: "item-body" });
  const show = () => replace(body, type.body(item, result));
  const data = () =>
    replace(body, textBlock(JSON.stringify(result ? [item, result] : item, null, 2), { label: "data", tail: false }));
  const raw = h(
    "button",
    {
      type: "button",
      class: "quiet raw as-data",
      "aria-pressed": "false",
      title: "Show this item as data",
      click: () => {
        const on = raw.getAttribute("aria-pressed") !== "true";
        raw.setAttribute("aria-pressed", String(on));
        if (on) data();
        else show();
      },
    },
    "raw",
  );
  try {
    show();
  } catch (error) {
    replace(
      body,
      h("p", { class: "muted" }, `This item has an unexpected shape (${error.message}); here it is as data`),
      textBlock(pretty(item), { label: "data" }),
    );
  }
  return h(
    "article",
    {
      class: `item k-${kindOf(item)}${isBadStep(step) ? " bad" : ""}`,
      tabindex: "-1",
      "data-step": String(number),
      "aria-label": `${number}: ${type.name(item)}`,
    },
    h(
      "header",
      { class: "item-head" },
      h("span", { class: "number", "aria-hidden": "true" }, String(number)),
      h("h3", null, type.name(item)),
      h("span", { class: "item-meta" }, type.meta(item), itemTools(row, number, item, result, raw)),
    ),
    body,
  );
};
