import assert from "node:assert/strict";
import { test } from "node:test";

import { container, inside, moves } from "./page.mjs";

const { html, render } = await import("../../../dashboard/html.js");

test("values are text, never markup", () => {
  const root = container();
  const bad = '<img src=x onerror="alert(1)">';
  render(root, html`<p title=${bad}>${bad}</p>`);
  const [p] = root.childNodes;
  assert.equal(p.childNodes.length, 1);
  assert.equal(p.childNodes[0].data, bad);
  assert.equal(p.attributes.get("title"), bad);
});

test("addresses that run scripts are left out", () => {
  const root = container();
  render(root, html`<a href=${" JavaScript:alert(1)"}>a</a><a href=${"/ui/queues"}>b</a><a href=${"data:text/html,x"}>c</a>`);
  assert.equal(inside(root), '<a>a</a><a href="/ui/queues">b</a><a>c</a>');
});

test("null, booleans and lists", () => {
  const root = container();
  render(root, html`<p>${null}${false}${true}${undefined}${0}${["a", ["b", html`<i>c</i>`]]}</p>`);
  assert.equal(inside(root), "<p>0ab<i>c</i></p>");
});

test("attributes, boolean attributes and properties", () => {
  const root = container();
  const view = (on) => html`<input class="a ${on ? "b" : ""}" aria-label=${on ? "x" : null} ?disabled=${on} .value=${on ? "1" : "2"} />`;
  render(root, view(true));
  assert.equal(inside(root), '<input class="a b" aria-label="x" disabled=""></input>');
  const [input] = root.childNodes;
  input.value = "typed";
  render(root, view(false));
  assert.equal(root.childNodes[0], input, "the element stays");
  assert.equal(inside(root), '<input class="a "></input>');
  assert.equal(input.value, "2");
});

test("listeners are replaced", () => {
  const root = container();
  const seen = [];
  const view = (name) => html`<button @click=${() => seen.push(name)}>x</button>`;
  render(root, view("first"));
  render(root, view("second"));
  root.childNodes[0].handlers.click({});
  render(root, html`<button>x</button>`);
  root.childNodes[0].handlers.click({});
  assert.deepEqual(seen, ["second"]);
});

test("lists with keys keep their elements", () => {
  const root = container();
  const view = (keys) => html`<ul>${keys.map((key) => html`<li key=${key}>${key}</li>`)}</ul>`;
  const of = () => root.childNodes[0].childNodes;
  render(root, view([1, 2, 3, 4]));
  const [one, two, three, four] = of();
  moves.count = 0;
  render(root, view([2, 3, 4]));
  assert.deepEqual(of(), [two, three, four]);
  assert.equal(moves.count, 0, "removing moves nothing");
  render(root, view([4, 2, 5, 3]));
  assert.deepEqual([of()[0], of()[1], of()[3]], [four, two, three]);
  render(root, view([3, 5, 2, 4]));
  assert.equal(inside(root), "<ul><li>3</li><li>5</li><li>2</li><li>4</li></ul>");
  render(root, view([]));
  assert.equal(inside(root), "<ul></ul>");
  assert.ok(one);
});

test("every order of a list can follow every other", () => {
  const orders = (keys) => (keys.length < 2 ? [keys] : keys.flatMap((key) => orders(keys.filter((other) => other !== key)).map((rest) => [key, ...rest])));
  const all = [...orders([1, 2, 3, 4]), [], [2], [5, 1], [4, 3, 6]];
  for (const before of all) {
    for (const after of all) {
      const root = container();
      const view = (keys) => html`${keys.map((key) => html`<li key=${key}>${key}</li>`)}`;
      render(root, view(before));
      render(root, view(after));
      assert.equal(inside(root), after.map((key) => `<li>${key}</li>`).join(""));
    }
  }
});

test("an element is replaced if its tag changes", () => {
  const root = container();
  render(root, html`<div>${html`<a>x</a>`}<b>y</b></div>`);
  const [, b] = root.childNodes[0].childNodes;
  render(root, html`<div>${html`<i>x</i>`}<b>y</b></div>`);
  assert.equal(inside(root), "<div><i>x</i><b>y</b></div>");
  assert.equal(root.childNodes[0].childNodes[1], b);
});

test("drawings have their name space", () => {
  const root = container();
  render(root, html`<svg viewBox="0 0 1 1"><g>${html`<path d="M0 0"></path>`}</g></svg>`);
  assert.match(root.childNodes[0].childNodes[0].childNodes[0].namespaceURI, /svg/);
});

test("wrong templates are errors", () => {
  assert.throws(() => html`<p><b>x</p>`, /does not close/);
  assert.throws(() => html`<p>x`, /is not closed/);
});
