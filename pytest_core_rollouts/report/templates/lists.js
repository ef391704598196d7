// Long lists: entries are made in blocks, when they come near the window, and dropped when they are far.

const NEAR = "1200px";

/**
 * Fill `parent` with `entries`, `size` to a block. `block()` makes a block's element, `render(entry, index)` an entry's;
 * `guess` is an entry's height in pixels before it is known. Gives `reveal(index)`, which makes that entry and returns it.
 */
const lazyList = (parent, entries, { block, render, guess, size = 25 }) => {
  const blocks = [];
  const observer = new IntersectionObserver(
    (seen) => {
      for (const { target, isIntersecting } of seen)
        (isIntersecting ? show : hide)(blocks[Number(target.dataset.block)]);
    },
    { rootMargin: `${NEAR} 0px` },
  );
  const show = (one) => {
    if (one.filled) return;
    one.filled = true;
    one.node.style.height = "";
    replace(
      one.node,
      entries.slice(one.from, one.from + size).map((entry, at) => render(entry, one.from + at)),
    );
  };
  const hide = (one) => {
    // What was unfolded, or holds the focus, stays.
    if (
      !one.filled ||
      one.node.contains(document.activeElement) ||
      one.node.querySelector('[data-fold="close"], [aria-pressed="true"]')
    )
      return;
    one.filled = false;
    one.node.style.height = `${one.node.getBoundingClientRect().height}px`;
    one.node.replaceChildren(...spacer(one.node));
  };
  const spacer = (node) => {
    if (node.tagName !== "TBODY") return [];
    const cell = h("td", { class: "spacer" });
    cell.style.height = node.style.height;
    return [h("tr", { "aria-hidden": "true" }, cell)];
  };
  for (let from = 0; from < entries.length; from += size) {
    const node = block();
    node.dataset.block = String(blocks.length);
    node.style.height = `${guess * Math.min(size, entries.length - from)}px`;
    node.replaceChildren(...spacer(node));
    blocks.push({ node, from, filled: false });
  }
  if (blocks.length) show(blocks[0]);
  parent.append(...blocks.map((one) => one.node));
  for (const one of blocks) observer.observe(one.node);
  return {
    reveal: (index) => {
      const one = blocks[Math.floor(index / size)];
      show(one);
      return one.node.children[index - one.from];
    },
    stop: () => observer.disconnect(),
  };
};
