// Find within what is shown: every hit is marked, and text that is folded away is unfolded if it holds one.

const MOST_HITS = 500; // marked in one item
const MOST_PAGES = 40; // unfolded for one hit

/** The text nodes within `node`, without those of buttons and of the item's head. */
const textNodes = (node) => {
  const walker = document.createTreeWalker(node, NodeFilter.SHOW_TEXT);
  const found = [];
  while (walker.nextNode())
    if (!walker.currentNode.parentElement.closest("button, .item-head")) found.push(walker.currentNode);
  return found;
};

const unmarkHits = (node) => {
  for (const hit of node.querySelectorAll("mark.hit")) hit.replaceWith(document.createTextNode(hit.textContent));
  node.normalize();
};

/** Mark each place of `needle` (in lower case); the number of them. */
const markHits = (node, needle) => {
  let count = 0;
  for (const text of textNodes(node)) {
    const lower = text.data.toLowerCase();
    if (lower.length !== text.data.length) continue; // a few characters change their length; their place is unknown
    let rest = text;
    let offset = 0;
    for (let at = lower.indexOf(needle); at >= 0 && count < MOST_HITS; at = lower.indexOf(needle, at + needle.length)) {
      const hit = rest.splitText(at - offset);
      rest = hit.splitText(needle.length);
      offset = at + needle.length;
      const shown = h("mark", { class: "hit" });
      hit.replaceWith(shown);
      shown.append(hit);
      count++;
    }
  }
  return count;
};

const holds = (node, needle) => textNodes(node).some((text) => text.data.toLowerCase().includes(needle));

/** Unfold the folded texts that hold `needle`, as far as it, and mark it everywhere. */
const showHits = (node, needle) => {
  for (const button of node.querySelectorAll('[data-fold="open"]')) {
    const block = button.closest(".text");
    if (!block.folded?.toLowerCase().includes(needle)) continue;
    button.click();
    for (let page = 0; page < MOST_PAGES && !holds(block, needle); page++) {
      const more = block.querySelector('.fold:not([hidden]):not([data-fold="close"])');
      if (!more) break;
      more.click();
    }
  }
  return markHits(node, needle);
};
