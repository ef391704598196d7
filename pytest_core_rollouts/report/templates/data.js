// What the file holds: the index, unpacked at once, and the details in pieces, unpacked when one is asked for.

const unpack = async (base64) => {
  const binary = atob(base64);
  const bytes = new Uint8Array(binary.length);
  for (let at = 0; at < binary.length; at++) bytes[at] = binary.charCodeAt(at);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
};

const MANY_TASKS = 40; // above it the hardest tasks come first

const means = (group) => {
  const graded = group.filter((row) => row.reward !== null);
  return graded.length ? graded.reduce((sum, row) => sum + row.reward, 0) / graded.length : null;
};

/** The rollouts of the index as objects, and what is looked up among them. */
const readIndex = (data) => {
  const columns = data.rollouts;
  data.rows = columns.id.map((id, at) => ({
    at,
    id,
    task: columns.task[at],
    agent: columns.agent[at],
    run: columns.run[at],
    sample: columns.sample[at],
    outcome: data.outcomes[columns.outcome[at]],
    reward: columns.reward[at],
    duration: columns.duration[at],
    tokens: columns.tokens[at],
    items: columns.items[at],
    brief: columns.brief[at],
    answer: columns.answer[at],
    found: columns.found[at],
    cause: columns.cause[at][0],
    value: columns.cause[at][1],
  }));
  for (const at of columns.xfail) data.rows[at].xfail = true;
  for (const row of data.rows) {
    const { rounds } = data.agents[row.agent];
    row.beyond = rounds !== null && row.sample >= rounds[0]; // in no figure of a run that stopped early
  }
  data.byId = new Map(data.rows.map((row) => [row.id, row]));
  data.groups = data.tasks.map(() => data.agents.map(() => []));
  for (const row of data.rows) data.groups[row.task][row.agent].push(row);
  for (const cells of data.groups) {
    for (const rows of cells) rows.sort((a, b) => a.run - b.run || a.sample - b.sample || a.at - b.at);
  }
  const hardness = data.groups.map((cells) => means(cells.flat()) ?? 2);
  data.hardest = data.tasks.map((_, task) => task).sort((a, b) => hardness[a] - hardness[b] || a - b);
  data.rank = [];
  data.hardest.forEach((task, at) => {
    data.rank[task] = data.tasks.length > MANY_TASKS ? at : task;
  });
  data.agentsByMean = data.agents
    .map((_, at) => at)
    .sort((a, b) => (data.agents[b].meanReward.value ?? -1) - (data.agents[a].meanReward.value ?? -1) || a - b);
  return data;
};

const parsed = () =>
  new Promise((resolve) => {
    if (document.readyState !== "loading") resolve();
    else document.addEventListener("DOMContentLoaded", resolve, { once: true });
  });

const findPiece = (at) => {
  const pieces = document.querySelectorAll("script[data-first]");
  let low = 0;
  let high = pieces.length - 1;
  while (low <= high) {
    const middle = (low + high) >> 1;
    const first = Number(pieces[middle].dataset.first);
    if (at < first) high = middle - 1;
    else if (at >= first + Number(pieces[middle].dataset.count)) low = middle + 1;
    else return pieces[middle];
  }
  return null;
};

const KEPT_PIECES = 4;
const unpacked = new Map();

/** The details of one rollout. While the file is still being read, waits for the end of it if need be. */
const details = async (at) => {
  let piece = findPiece(at);
  // The last piece so far may be there in part only: it is whole once something follows it.
  if (!piece || (document.readyState === "loading" && !piece.nextElementSibling)) {
    await parsed();
    piece = findPiece(at);
  }
  if (!piece) throw new Error("this rollout's details are missing: the file was cut off");
  const first = Number(piece.dataset.first);
  if (!unpacked.has(first)) {
    unpacked.set(first, unpack(piece.textContent));
    while (unpacked.size > KEPT_PIECES) unpacked.delete(unpacked.keys().next().value);
  }
  return (await unpacked.get(first))[at - first];
};
