// The part of a page's tree that `html.js` uses, for tests without a browser.

class Node {
  parentNode = null;
  childNodes = [];

  get nextSibling() {
    const siblings = this.parentNode.childNodes;
    return siblings[siblings.indexOf(this) + 1] ?? null;
  }

  insertBefore(node, before) {
    node.parentNode?.removeChild(node);
    const at = before === null ? this.childNodes.length : this.childNodes.indexOf(before);
    if (at < 0) throw new Error("not a child");
    this.childNodes.splice(at, 0, node);
    node.parentNode = this;
    moves.count += 1;
  }

  removeChild(node) {
    const at = this.childNodes.indexOf(node);
    if (at < 0) throw new Error("not a child");
    this.childNodes.splice(at, 1);
    node.parentNode = null;
  }
}

class Text extends Node {
  constructor(data) {
    super();
    this.data = data;
  }

  get shown() {
    return this.data;
  }
}

class Element extends Node {
  attributes = new Map();
  handlers = {};

  constructor(tag, namespaceURI) {
    super();
    this.tag = tag;
    this.namespaceURI = namespaceURI;
  }

  setAttribute(name, value) {
    this.attributes.set(name, value);
  }

  removeAttribute(name) {
    this.attributes.delete(name);
  }

  toggleAttribute(name, on) {
    if (on) this.attributes.set(name, "");
    else this.attributes.delete(name);
  }

  addEventListener(name, handler) {
    this.handlers[name] = handler;
  }

  get shown() {
    const attributes = [...this.attributes].map(([name, value]) => ` ${name}="${value}"`).join("");
    return `<${this.tag}${attributes}>${this.childNodes.map((node) => node.shown).join("")}</${this.tag}>`;
  }
}

/** Insertions since it was last set to zero. */
export const moves = { count: 0 };

globalThis.document = {
  createElement: (tag) => new Element(tag),
  createElementNS: (namespace, tag) => new Element(tag, namespace),
  createTextNode: (text) => new Text(text),
};

export const container = () => new Element("div");

/** What is inside a container, as markup. Text is not escaped: the tree is what counts. */
export const inside = (element) => element.childNodes.map((node) => node.shown).join("");
