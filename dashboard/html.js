// Templates: `html` makes a tree of plain objects from a tagged template, and `render` changes the page so that it shows
// the tree. Values become text nodes and attribute values, never markup, so everything is escaped by construction.
//
//   html`<li key=${id} class="row" ?hidden=${done} .value=${text} @click=${open}>${name}</li>`
//
// `@event` is a listener, `.name` a property, `?name` a boolean attribute, `ref` a function that gets the new element.
// Elements with a `key` keep their identity when a list is sorted or filtered; other elements are matched by position.

const VOID = new Set(["br", "col", "hr", "img", "input", "link", "meta", "wbr"]);
const HOLE = "\0";
const SVG = "http://www.w3.org/2000/svg";
const templates = new WeakMap();

/** Makes a tree. @returns {object|object[]} one element, or a list of nodes */
export function html(strings, ...values) {
  let template = templates.get(strings);
  if (!template) {
    template = parse(strings);
    templates.set(strings, template);
  }
  const nodes = [];
  for (const node of template) fill(node, values, nodes);
  return nodes.length === 1 ? nodes[0] : nodes;
}

/** Parses the fixed parts of a template. Holes are numbered. */
function parse(strings) {
  const source = strings.join(HOLE);
  let at = 0;
  let hole = 0;
  const root = { children: [] };
  const open = [root];
  const fail = (why) => {
    throw new SyntaxError(`${why} in template: ${source.slice(Math.max(0, at - 40), at + 40)}`);
  };
  const parts = (text) => {
    const out = [];
    text.split(HOLE).forEach((piece, index) => {
      if (index > 0) out.push({ hole: hole++ });
      if (piece) out.push(piece);
    });
    return out;
  };
  while (at < source.length) {
    const parent = open[open.length - 1];
    if (source[at] !== "<") {
      const end = source.indexOf("<", at);
      const text = source.slice(at, end < 0 ? source.length : end);
      at += text.length;
      // Line breaks and indentation between elements are not content.
      const shown = /^\s*\n\s*$/.test(text) ? "" : text.replace(/\s*\n\s*/g, " ");
      for (const part of parts(shown)) {
        if (typeof part !== "string" || part.trim() || parent !== root) parent.children.push(part);
      }
      continue;
    }
    const close = /^<\/([\w-]+)\s*>/.exec(source.slice(at, at + 64));
    if (close) {
      if (parent.tag !== close[1]) fail(`</${close[1]}> does not close <${parent.tag}>`);
      open.pop();
      at += close[0].length;
      continue;
    }
    const tag = /^<([a-zA-Z][\w-]*)/.exec(source.slice(at, at + 64)) ?? fail("invalid tag");
    at += tag[0].length;
    const element = { tag: tag[1], attributes: [], children: [] };
    for (;;) {
      while (/\s/.test(source[at])) at += 1;
      if (source[at] === ">" || source.startsWith("/>", at)) break;
      const name = /^[@.?]?[\w:-]+/.exec(source.slice(at, at + 64)) ?? fail("invalid attribute");
      at += name[0].length;
      if (source[at] !== "=") {
        element.attributes.push([name[0], [""]]);
        continue;
      }
      at += 1;
      let value;
      if (source[at] === '"') {
        const end = source.indexOf('"', at + 1);
        if (end < 0) fail("unclosed attribute");
        value = source.slice(at + 1, end);
        at = end + 1;
      } else {
        value = /^[^\s>]+/.exec(source.slice(at))?.[0] ?? fail("missing value");
        if (value.endsWith("/") && source[at + value.length] === ">") value = value.slice(0, -1);
        at += value.length;
      }
      element.attributes.push([name[0], parts(value)]);
    }
    const closed = source[at] === "/";
    at += closed ? 2 : 1;
    parent.children.push(element);
    if (!closed && !VOID.has(element.tag)) open.push(element);
  }
  if (open.length > 1) fail(`<${open[open.length - 1].tag}> is not closed`);
  return root.children;
}

/** Puts the values into a parsed node and adds the result to `nodes`. */
function fill(node, values, nodes) {
  if (typeof node === "string") {
    nodes.push({ text: node });
  } else if (node.hole !== undefined) {
    add(values[node.hole], nodes);
  } else {
    const element = { tag: node.tag, key: undefined, props: {}, children: [] };
    for (const [name, parts] of node.attributes) {
      const filled = parts.map((part) => (typeof part === "string" ? part : values[part.hole]));
      const value = filled.length === 1 ? filled[0] : filled.map((one) => one ?? "").join("");
      if (name === "key") element.key = value;
      else element.props[name] = filled.length === 0 ? "" : value;
    }
    for (const child of node.children) fill(child, values, element.children);
    nodes.push(element);
  }
}

/** Adds a value as a child: nodes, lists of nodes, text; nothing for null and booleans. */
function add(value, nodes) {
  if (value === null || value === undefined || typeof value === "boolean") return;
  if (Array.isArray(value)) {
    for (const one of value) add(one, nodes);
  } else if (typeof value === "object" && (value.tag || value.text !== undefined)) {
    // A tree can be shown in two places, but each place needs its own record of its element.
    nodes.push({ ...value });
  } else {
    nodes.push({ text: String(value) });
  }
}

/** Changes the children of `container` so that they show `content`. */
export function render(container, content) {
  const nodes = [];
  add(content, nodes);
  patchChildren(container, container.shownNodes ?? [], nodes, container.namespaceURI === SVG);
  container.shownNodes = nodes;
}

function patchChildren(parent, before, after, inSvg) {
  const keyed = new Map();
  const unkeyed = [];
  for (const node of before) {
    if (node.key === undefined) unkeyed.push(node);
    else keyed.set(node.key, node);
  }
  let next = 0;
  const reused = new Set();
  const matches = after.map((node) => {
    let match;
    if (node.key !== undefined) {
      match = keyed.get(node.key);
      keyed.delete(node.key);
    } else {
      match = unkeyed[next];
      next += 1;
    }
    if (match === undefined || match.tag !== node.tag) return undefined;
    reused.add(match);
    return match;
  });
  // Removed first, so that the remaining elements rarely have to move.
  for (const node of before) {
    if (!reused.has(node)) parent.removeChild(node.el);
  }
  let cursor = before.find((node) => reused.has(node))?.el ?? null;
  after.forEach((node, index) => {
    const match = matches[index];
    if (match) update(match, node, inSvg);
    else create(node, inSvg);
    if (node.el === cursor) cursor = cursor.nextSibling;
    else parent.insertBefore(node.el, cursor);
  });
}

function create(node, inSvg) {
  if (node.text !== undefined) {
    node.el = document.createTextNode(node.text);
    return;
  }
  const svg = inSvg || node.tag === "svg";
  node.el = svg ? document.createElementNS(SVG, node.tag) : document.createElement(node.tag);
  patchChildren(node.el, [], node.children, svg);
  // After the children: a select takes its value from its options.
  setProps(node.el, {}, node.props);
  node.props.ref?.(node.el);
}

function update(before, after, inSvg) {
  const el = before.el;
  after.el = el;
  if (after.text !== undefined) {
    if (before.text !== after.text) el.data = after.text;
    return;
  }
  patchChildren(el, before.children, after.children, inSvg || after.tag === "svg");
  setProps(el, before.props, after.props);
}

function setProps(el, before, after) {
  for (const name of Object.keys(before)) {
    if (!(name in after)) setProp(el, name, undefined);
  }
  for (const [name, value] of Object.entries(after)) {
    // The user may have changed a property, so it is compared with the element.
    if (before[name] !== value || name[0] === ".") setProp(el, name, value);
  }
}

function setProp(el, name, value) {
  if (name === "ref") return;
  if (name[0] === "@") {
    el.listeners ??= {};
    const event = name.slice(1);
    if (!(event in el.listeners)) el.addEventListener(event, (e) => el.listeners[event]?.(e));
    el.listeners[event] = value;
  } else if (name[0] === ".") {
    if (el[name.slice(1)] !== value) el[name.slice(1)] = value;
  } else if (name[0] === "?") {
    el.toggleAttribute(name.slice(1), Boolean(value));
  } else if (value === null || value === undefined || value === false) {
    el.removeAttribute(name);
  } else if ((name === "href" || name === "src") && /^\s*[a-z]+:/i.test(value) && !/^https?:/i.test(value)) {
    el.removeAttribute(name);
  } else {
    el.setAttribute(name, value === true ? "" : String(value));
  }
}
