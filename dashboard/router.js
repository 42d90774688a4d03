// Addresses: which screen an address shows, and the address of a screen. Nothing here touches the page.

/** Pattern and name of each screen. `:name` stands for one percent-encoded segment. */
export const ROUTES = [
  ["/", "overview"],
  ["/ui/queues", "queues"],
  ["/ui/queues/:queue", "queue"],
  ["/ui/queues/:queue/:tab", "queue"],
  ["/ui/queues/:queue/sessions/:session", "session"],
  ["/ui/dead-letters", "deadLetters"],
  ["/ui/topics", "topics"],
  ["/ui/topics/:topic", "topic"],
  ["/ui/audit", "audit"],
];

/** The screen of a path with its parameters, or undefined. */
export function match(path) {
  const given = path.replace(/(.)\/$/, "$1").split("/");
  for (const [pattern, screen] of ROUTES) {
    const wanted = pattern.split("/");
    if (wanted.length !== given.length) continue;
    const params = {};
    const fits = wanted.every((segment, index) => {
      if (!segment.startsWith(":")) return segment === given[index];
      try {
        params[segment.slice(1)] = decodeURIComponent(given[index]);
      } catch {
        return false;
      }
      return given[index] !== "";
    });
    if (fits) return { screen, params };
  }
  return undefined;
}

/** An address from segments and query parameters. Empty parameters are left out. */
export function address(segments, query = {}) {
  const path = segments.length ? `/ui/${segments.map(encodeURIComponent).join("/")}` : "/";
  const pairs = Object.entries(query).filter(([, value]) => value !== "" && value !== undefined && value !== null);
  const text = new URLSearchParams(pairs).toString();
  return text ? `${path}?${text}` : path;
}

export const queueAddress = (queue, tab, query) =>
  address(tab ? ["queues", queue, tab] : ["queues", queue], query);
