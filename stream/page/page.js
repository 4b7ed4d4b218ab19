"use strict";
// The status page. Every two seconds it asks the daemon for its status, and for the new releases of streams that have
// any. While the daemon does not answer, the page keeps showing the last answers.
(() => {
  const every = 2000, kept = 600, charts = 12, z = 1.96;
  // part returns the text for a task's partition.
  const part = (n) => (n < 0 ? "merged" : n);
  const tasks = new Map(); // "stream/partition" → the task's data and elements
  let started = "", lost = null, asking = false;

  // ——— Elements ———
  const el = (tag, attrs, ...children) => {
    const e = document.createElement(tag);
    for (const [k, v] of Object.entries(attrs || {})) {
      if (v === undefined || v === null || v === false) continue;
      if (k.startsWith("on")) e.addEventListener(k.slice(2), v); else e.setAttribute(k, v === true ? "" : v);
    }
    e.append(...children.filter((c) => c !== null && c !== undefined));
    return e;
  };
  const draw = (tag, attrs, text) => {
    const e = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [k, v] of Object.entries(attrs)) e.setAttribute(k, v);
    if (text !== undefined) e.textContent = text;
    return e;
  };
  const say = (e, text) => { if (e.textContent !== text) e.textContent = text; };
  // renew rebuilds an element only if its content has changed, so that focus and selection stay.
  const renew = (e, key, make) => {
    if (e.dataset.key === key) return;
    e.dataset.key = key;
    const open = [...e.querySelectorAll("details")].map((d) => d.open);
    e.replaceChildren(...make());
    [...e.querySelectorAll("details")].forEach((d, i) => { if (open[i]) d.open = true; });
  };

  // ——— Numbers ———
  const whole = (n) => Number(n).toLocaleString("en-US");
  const plain = (x, digits) => {
    if (x === null || x === undefined || !isFinite(x)) return "–";
    if (x === 0) return "0";
    const size = Math.abs(x);
    let text = String(Number(x.toPrecision(digits || 4)));
    if (size >= 1e7 || size < 1e-4) text = Number(text).toExponential().replace("e+", "e");
    return text.replaceAll("-", "−");
  };
  // signed returns a number's text with a proper minus sign, and without a sign if the number is zero.
  const signed = (text) => (Number(text) === 0 ? text.replace("-", "") : text.replace("-", "−"));
  // rounded returns a value with as many digits as are significant given its error.
  const rounded = (x, se) => {
    if (x === null || x === undefined) return "–";
    if (!(se > 0)) return plain(x);
    const places = 1 - Math.floor(Math.log10(z * se));
    if (places > 8 || Math.abs(x) >= 1e9 || se >= 1e7) return plain(x, 4);
    return signed(places > 0 ? x.toFixed(places) : String(Math.round(x)));
  };
  const error = (se) => (se > 0 ? plain(z * se, 2) : "");

  // ——— Names of values ———
  const titles = {
    mean_original: "means", mean: "means, scaled", sum: "sums, scaled", second_moment: "second moments, scaled", covariance: "covariances, scaled",
    covariance_original: "covariances", covariance_psd: "covariances, nearest valid, scaled", second_moment_projected: "second moments, nearest possible, scaled",
    valid_count: "valid records", counted_share: "share of records that count", mean_counted: "means of records that count, scaled",
    mean_counted_original: "means of records that count", full_share: "share of records that are not shortened",
    theta: "coefficients, scaled", theta_original: "coefficients", theta_average: "estimated coefficients, scaled", theta_average_original: "estimated coefficients",
    interval_low: "lower ends of intervals, scaled", interval_high: "upper ends of intervals, scaled", intercept: "intercept, scaled", intercept_original: "intercept",
    zeta: "clip norm of gradients", parameters: "parameters", update: "updates", eta: "noise of the sketch", iteration: "gradient steps",
  };
  const titled = (name) => (titles[name] ? `${titles[name]} (${name})` : name);
  const preferred = ["mean_counted_original", "mean_counted", "mean_original", "sum", "mean", "theta_average", "theta_average_original", "theta_original", "theta", "parameters", "update"];
  const matrices = ["covariance_original", "covariance", "covariance_psd", "second_moment", "second_moment_projected"];
  const coefficients = ["theta_average_original", "theta_average", "theta_original", "theta"];

  const labels = (r, v) => {
    const n = v.data.length;
    if (v.layout === "upper") {
      const names = [], c = r.columns;
      for (let i = 0; i < v.shape[0]; i++) for (let j = i; j < v.shape[0]; j++) names.push(i === j ? name(c, i) : `${name(c, i)} · ${name(c, j)}`);
      return names;
    }
    if (n === 1) return [titles[v.name] || v.name];
    if (r.target) {
      const f = r.columns.filter((c) => c !== r.target);
      if (n === f.length) return f;
      if (n === f.length + 1) return [...f, "(intercept)"];
    } else if (n === r.columns.length) return r.columns;
    return Array.from({ length: n }, (_, i) => String(i + 1));
  };
  const name = (columns, i) => columns[i] || String(i + 1);
  const entry = (list, i) => (!list || list.length === 0 ? null : list.length === 1 ? list[0] : list[i]);
  const find = (r, n) => (r ? r.values || [] : []).find((v) => v.name === n);
  const seOf = (v, i) => (v.se_with_clipping ? entry(v.se_with_clipping, i) : entry(v.se, i));
  // errorOf returns a value's error, such that 1.96 errors are half of its interval. If the release has an interval, the
  // error is computed from that.
  const errorOf = (r, v, i) => {
    const [low, high] = ["interval_low", "interval_high"].map((n) => entry((find(r, n) || {}).data, i));
    return v.name === "theta_average" && high > low ? (high - low) / 2 / z : seOf(v, i);
  };
  const percentage = (level) => (level ? `${plain(100 * level, 3)} %` : "95 %");
  const newest = (t) => { for (let i = t.releases.length - 1; i >= 0; i--) if ((t.releases[i].values || []).length) return t.releases[i]; return null; };

  // ——— A line in its band ———
  const line = (t, vname, i) => {
    const points = [];
    for (const r of t.releases) {
      const v = find(r, vname);
      if (v && v.data[i] !== undefined && v.data[i] !== null) points.push({ x: r.covers[1], y: v.data[i], se: errorOf(r, v, i), truth: v.truth ? v.truth[i] : null, r });
    }
    return points;
  };
  const chart = (title, unit) => {
    const c = { points: [], at: -1 };
    c.now = el("p", { class: "now" });
    c.svg = draw("svg", { role: "slider", tabindex: "0", "aria-orientation": "horizontal", "aria-valuemin": "0" });
    c.svg.setAttribute("aria-label", title);
    c.box = el("div", { class: "chart" }, el("h4", {}, title), c.now, c.svg);
    const move = (i) => { c.at = Math.max(-1, Math.min(c.points.length - 1, i)); paint(c); };
    c.svg.addEventListener("pointermove", (e) => {
      if (!c.points.length) return;
      const x = e.clientX - c.svg.getBoundingClientRect().left;
      let best = 0;
      c.points.forEach((p, i) => { if (Math.abs(c.place(p.x) - x) < Math.abs(c.place(c.points[best].x) - x)) best = i; });
      move(best);
    });
    c.svg.addEventListener("pointerleave", () => move(-1));
    c.svg.addEventListener("blur", () => move(-1));
    c.svg.addEventListener("keydown", (e) => {
      const n = c.points.length, at = c.at < 0 ? n - 1 : c.at;
      const to = { ArrowLeft: at - 1, ArrowDown: at - 1, ArrowRight: at + 1, ArrowUp: at + 1, PageDown: at - 10, PageUp: at + 10, Home: 0, End: n - 1 }[e.key];
      if (to === undefined || !n) return;
      e.preventDefault();
      move(Math.max(0, to));
    });
    return c;
  };
  const quantile = (sorted, q) => sorted[Math.min(sorted.length - 1, Math.max(0, Math.round(q * (sorted.length - 1))))];
  const paint = (c) => {
    const p = c.points, svg = c.svg;
    const shown = p[c.at < 0 ? p.length - 1 : c.at];
    c.now.replaceChildren();
    svg.replaceChildren();
    if (!shown) { say(c.now, "no release yet"); svg.setAttribute("aria-valuemax", "0"); svg.setAttribute("aria-valuenow", "0"); svg.setAttribute("aria-valuetext", "no release yet"); return; }
    const words = `${rounded(shown.y, shown.se)}${shown.se > 0 ? ` ± ${error(shown.se)}` : ""}`;
    const value = el("span", { class: "value", "data-value": shown.y, "data-release": `${shown.r.stream}/${shown.r.partition}/${shown.r.epoch}/${shown.r.step}` }, rounded(shown.y, shown.se));
    c.now.append(value);
    if (shown.se > 0) c.now.append(el("span", { class: "err" }, ` ± ${error(shown.se)}`));
    if (shown.truth !== null) c.now.append(el("span", { class: "truth" }, ` truth ${rounded(shown.truth, shown.se)}`));
    if (c.at >= 0) c.now.append(el("span", { class: "err" }, ` at step ${whole(shown.r.step)}`));
    svg.setAttribute("aria-valuemax", String(p.length - 1));
    svg.setAttribute("aria-valuenow", String(c.at < 0 ? p.length - 1 : c.at));
    svg.setAttribute("aria-valuetext", `epoch ${shown.r.epoch}, step ${shown.r.step}: ${words}${shown.truth !== null ? `, truth ${rounded(shown.truth, shown.se)}` : ""}`);

    const w = svg.clientWidth || 280, h = svg.clientHeight || 115, right = w - 6, top = 8, bottom = h - 18;
    // The first releases are noisy, so the axis is fitted to the later ones, and to 94 in 100 of those. It is extended
    // to all releases if that at most doubles it, and it always includes the newest.
    const later = p.slice(Math.floor(p.length / 5)), lows = [], highs = [];
    for (const q of later) {
      const e = q.se > 0 ? z * q.se : 0;
      lows.push(q.y - e); highs.push(q.y + e);
      if (q.truth !== null) { lows.push(q.truth); highs.push(q.truth); }
    }
    lows.sort((a, b) => a - b); highs.sort((a, b) => a - b);
    let lo = quantile(lows, 0.03), hi = quantile(highs, 0.97);
    const sizes = (q) => (q.truth === null ? [q.y] : [q.y, q.truth]), last = sizes(p[p.length - 1]), all = p.flatMap(sizes);
    lo = Math.min(lo, ...last); hi = Math.max(hi, ...last);
    const least = Math.min(lo, ...all), most = Math.max(hi, ...all);
    if (most - least <= 2 * (hi - lo)) { lo = least; hi = most; }
    if (!(hi > lo)) { const s = Math.abs(hi) * 0.1 || 1; lo -= s; hi += s; }
    const pad = (hi - lo) * 0.06; lo -= pad; hi += pad;
    const x0 = p[0].x, x1 = p[p.length - 1].x;
    const ends = [[top + 6, plain(hi - pad, 3)], [bottom, plain(lo + pad, 3)]].map(([y, text]) => draw("text", { y, "text-anchor": "end" }, text));
    svg.append(...ends);
    const left = Math.max(44, ...ends.map((e) => Math.ceil(e.getComputedTextLength()) + 7));
    for (const e of ends) e.setAttribute("x", left - 5);
    c.place = (x) => (x1 > x0 ? left + ((x - x0) / (x1 - x0)) * (right - left) : (left + right) / 2);
    const Y = (y) => Math.max(-50, Math.min(h + 50, bottom - ((y - lo) / (hi - lo)) * (bottom - top)));
    const n = (x) => x.toFixed(1);
    const clip = `c${chart.count = (chart.count || 0) + 1}`;
    const frame = draw("clipPath", { id: clip });
    frame.append(draw("rect", { x: 0, y: top - 4, width: w, height: bottom - top + 8 }));
    svg.append(frame, draw("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }));
    const inner = draw("g", { "clip-path": `url(#${clip})` });
    // Each epoch has its own line and band: neither crosses into the next epoch.
    let from = 0;
    for (let i = 1; i <= p.length; i++) {
      if (i < p.length && p[i].r.epoch === p[i - 1].r.epoch) continue;
      const part = p.slice(from, i), path = (f) => part.map((q, k) => `${k ? "L" : "M"}${n(c.place(q.x))} ${n(Y(f(q)))}`).join("");
      if (from > 0) inner.append(draw("line", { class: "epoch", x1: n(c.place(p[from].x)), x2: n(c.place(p[from].x)), y1: top, y2: bottom }));
      // A band also stops at releases without an error. The band of a single release gets a small width.
      for (let a = 0, b; a < part.length; a = b + 1) {
        for (b = a; b < part.length && part[b].se > 0; b++);
        if (a === b) continue;
        const run = part.slice(a, b), beside = run.length > 1 ? [0] : p.length > 1 ? [-2, 2] : [-8, 8];
        const edge = (sign) => run.flatMap((q) => beside.map((dx) => `${n(c.place(q.x) + dx)} ${n(Y(q.y + sign * z * q.se))}`));
        inner.append(draw("path", { class: "band", d: `M${edge(1).concat(edge(-1).reverse()).join("L")}Z` }));
      }
      inner.append(draw("path", { class: "line", d: path((q) => q.y) }));
      if (part[part.length - 1].truth !== null) inner.append(draw("path", { class: "true", d: part.filter((q) => q.truth !== null).map((q, k) => `${k ? "L" : "M"}${n(c.place(q.x))} ${n(Y(q.truth))}`).join("") }));
      from = i;
    }
    inner.append(draw("circle", { class: "dot", cx: n(c.place(shown.x)), cy: n(Y(shown.y)), r: 3 }));
    if (c.at >= 0) inner.append(draw("line", { class: "cursor", x1: n(c.place(shown.x)), x2: n(c.place(shown.x)), y1: top, y2: bottom }));
    // A mark at the frame's edge stands for each point outside of the frame.
    const cut = p.flatMap((q) => sizes(q).filter((y) => y < lo || y > hi).map((y) => `M${n(c.place(q.x) - 3)} ${y > hi ? `${top + 2}l3 -5l3 5z` : `${bottom - 2}l3 5l3 -5z`}`));
    c.cut = cut.length > 0;
    svg.append(inner);
    if (c.cut) svg.append(draw("path", { class: "cut", d: cut.join("") }));
    svg.append(draw("text", { x: left, y: h - 4 }, whole(x0)), draw("text", { x: right, y: h - 4, "text-anchor": "end" }, `offset ${whole(x1)}`));
  };

  // ——— A stream ———
  const make = (key, s) => {
    const id = `s-${s.stream}-${part(s.partition)}`;
    const t = { key, id, releases: [], n: 0, seen: "", charts: new Map(), all: false, form: "correlation" };
    t.badge = el("span", { class: "badge" });
    t.computes = el("p", { class: "computes" });
    t.message = el("div", { role: "status" });
    t.guarantee = el("div"); t.budget = el("div"); t.position = el("div"); t.shares = el("div");
    t.values = el("section", { class: "block", hidden: true });
    t.pick = el("select", { id: `${id}-value`, onchange: () => { t.own = true; t.charts.clear(); t.all = false; values(t); } });
    t.more = el("button", { type: "button", hidden: true, onclick: () => { t.all = !t.all; t.charts.clear(); values(t); } }, "Show all");
    t.grid = el("div", { class: "charts" });
    t.legend = el("span", { class: "key" });
    t.values.append(el("div", { class: "bar" }, el("h3", {}, "Over time"), el("span", { class: "pick" }, el("label", { for: `${id}-value` }, "Value"), t.pick), t.legend), t.grid, el("p", {}, t.more));
    t.coef = el("section", { class: "block", hidden: true });
    t.matrix = el("section", { class: "block", hidden: true });
    t.last = el("section", { class: "block", hidden: true });
    t.box = el("article", { class: "stream", id, "aria-labelledby": `${id}-name` },
      el("header", {}, el("h2", { id: `${id}-name` }, s.stream, " ", el("small", {}, s.partition < 0 ? `${s.topic}, partitions merged` : `${s.topic}, partition ${s.partition}`)), t.badge, t.computes),
      t.message, el("div", { class: "facts" }, t.guarantee, t.budget, t.position, t.shares), t.coef, t.values, t.matrix, t.last);
    return t;
  };

  const feeling = { running: "good", comparing: "good", starting: "warn", retrying: "warn", exhausted: "warn", closed: "warn", halted: "bad" };
  const list = (rows, name) => el("dl", { class: name }, ...rows.filter(Boolean).flatMap(([k, v]) => [el("dt", {}, k), el("dd", {}, v)]));
  const when = (text) => new Date(text).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
  const lately = (text) => (new Date(text).toDateString() === new Date().toDateString() ? new Date(text).toLocaleTimeString() : when(text));

  const ofPersons = (s) => s.unit !== undefined && s.unit !== "" && s.unit !== "record";
  const steps = (n) => `${whole(n)} step${n === 1 ? "" : "s"}`;
  const facts = (t) => {
    const s = t.status;
    say(t.badge, s.state);
    t.badge.className = `badge ${feeling[s.state] || "warn"}`;
    say(t.computes, s.computes || "");
    renew(t.message, JSON.stringify([s.reason, s.message, s.few_valid, s.verdict, s.unread_partitions, s.warnings, s.schemas]), () => {
      const all = [];
      const note = (text, mild) => all.push(el("p", { class: mild ? "alert mild" : "alert" }, text));
      if (s.message) note(`${s.reason ? `${s.reason}: ` : ""}${s.message}`, s.state !== "halted");
      if (s.few_valid && ofPersons(s)) note("The published numbers show that possibly no record counts. Check that columns, codec, and the key of [user] fit the topic.", true);
      else if (s.few_valid) note("The published numbers show that at most a tenth of the latest records count in full. Check that columns, codec, centre, scale and clip fit the topic.", true);
      if (s.verdict && s.verdict !== "ok") note(`Verdict of the last release on the bounds found by the warm-up: ${s.verdict}.`, true);
      for (const w of s.warnings || []) note(`${w[0].toUpperCase()}${w.slice(1)}.`, true);
      for (const x of s.schemas || []) if (x.faults) note(`Records of the newest schema of ${x.subject}, version ${x.version} (id ${x.id}), give no rows: ${x.faults.join("; ")}.`, true);
      if (s.unread_partitions) note(`${s.unread_partitions} of the topic's partitions are not read by any stream of this configuration.`, true);
      return all;
    });
    const g = s.guarantee || [];
    const p = s.person, person = ofPersons(s);
    renew(t.guarantee, JSON.stringify([s.epsilon, s.delta, s.adjacency, g, s.unit, p]), () => [
      el("h3", {}, "Guarantee"), el("p", { class: "big" }, `ε = ${plain(s.epsilon)}, δ = ${plain(s.delta, 2)} for ${!person ? "one record" : p && p.period ? "what a person has in one period" : "a person with all records"}`), el("p", {}, g[0] || ""),
      p ? list([
        [p.period ? "a person is all records of one period with the same" : "a person is all records with the same", p.key.replace(/^(field|header):/, "$1 ").replace("record-key", "record key")],
        p.period ? ["a period has", steps(p.period)] : null,
        ["counts in at most", steps(p.cap)],
        p.separation > 1 && p.cap > 1 ? ["these steps are at least apart by", steps(p.separation)] : null,
        p.per_step > 1 ? ["records in each step, at most", whole(p.per_step)] : null,
        p.epsilon_record ? ["one record pays at most", `ε = ${plain(p.epsilon_record)}`] : null,
      ], "person") : null,
      g.length > 1 ? el("details", {}, el("summary", {}, "What is guaranteed and what is not"), el("ul", {}, ...g.slice(1).map((x) => el("li", {}, x)))) : null,
    ].filter(Boolean));
    budget(t);
    renew(t.position, JSON.stringify([s.epoch, s.step, s.horizon, s.next_offset, s.lag_records, s.retention_headroom_records, s.outbox_releases, s.last_release]), () => [
      el("h3", {}, "Position"),
      list([
        ["epoch", s.epoch ? whole(s.epoch) : "none yet"],
        ["step", whole(s.step) + (s.horizon ? ` of ${whole(s.horizon)}` : "")],
        ["next offset", whole(s.next_offset)],
        ["lag", `${whole(s.lag_records)} offsets`],
        s.retention_headroom_records !== undefined ? ["retention headroom", `${whole(s.retention_headroom_records)} offsets`] : null,
        ["waiting to be sent", whole(s.outbox_releases)],
        s.last_release ? ["last release sent", lately(s.last_release)] : null,
      ]),
    ]);
    shares(t);
  };

  const budget = (t) => {
    const s = t.status, events = s.budget || [];
    renew(t.budget, JSON.stringify([s.epsilon, s.charged_epsilon, s.limit_epsilon, events, s.unit, s.person]), () => {
      const share = s.limit_epsilon > 0 ? s.charged_epsilon / s.limit_epsilon : 0;
      // If the limit is one epoch, all of it is charged from the beginning, as intended.
      const single = s.limit_epsilon <= s.epsilon * 1.0001;
      const text = `${plain(s.charged_epsilon)} of ε ${plain(s.limit_epsilon)}`;
      const meter = el("div", { class: `meter${single ? "" : share > 0.999 ? " bad" : share > 0.9 ? " warn" : ""}`, role: "meter", "aria-label": "budget charged", "aria-valuemin": "0", "aria-valuemax": s.limit_epsilon, "aria-valuenow": Math.min(s.charged_epsilon, s.limit_epsilon), "aria-valuetext": text });
      let before = 0;
      for (const e of events.length ? events : [{ charged_epsilon: s.charged_epsilon }]) {
        const width = Math.max(0, Math.min(e.charged_epsilon, s.limit_epsilon) - before);
        if (width <= 0) continue;
        before += width;
        const part = el("span", { title: e.kind ? `${e.stream} epoch ${e.epoch}` : "" });
        part.style.width = `${(100 * width) / s.limit_epsilon}%`;
        meter.append(part);
      }
      const kinds = { open: "opened", close: "closed", void: "void", limit: "limit" };
      const rows = events.slice().reverse().map((e) => el("tr", {},
        el("td", { class: "word" }, when(e.time)), el("td", { class: "word" }, e.kind === "limit" ? "limit changed" : `${e.stream} epoch ${e.epoch} ${kinds[e.kind]}`),
        el("td", {}, plain(e.charged_epsilon, 5)), el("td", {}, plain(e.limit_epsilon))));
      return [
        el("h3", {}, "Budget"), el("p", { class: "big" }, text), meter,
        el("p", {}, `Charged to the worst-off ${ofPersons(s) ? `person${s.person ? ` of the population ${s.person.population}` : ""}` : `record of ${s.topic}${s.partition < 0 ? "" : `/${s.partition}`}`} by all epochs and streams together. An epoch beyond the limit is not opened.`),
        events.length ? el("details", {}, el("summary", {}, "History"), history(s, events),
          el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Ledger as ${s.stream}/${part(s.partition)} sees it` }, el("table", { class: "list" }, el("caption", {}, "The newest lines of the ledger"),
            el("thead", {}, el("tr", {}, ...["time", "what", "charged", "limit"].map((x) => el("th", { scope: "col" }, x)))), el("tbody", {}, ...rows)))) : null,
      ].filter(Boolean);
    });
  };
  // history draws the charges as a step function under the limit.
  const history = (s, events) => {
    const w = 300, h = 70, top = Math.max(s.limit_epsilon, ...events.map((e) => Math.max(e.charged_epsilon, e.limit_epsilon)));
    const x = (i) => 4 + (i * (w - 8)) / events.length, y = (v) => h - 6 - (v / top) * (h - 14);
    const steps = (of) => events.map((e, i) => `${i ? "L" : "M"}${x(i)} ${y(of(e)).toFixed(1)}L${x(i + 1)} ${y(of(e)).toFixed(1)}`).join("");
    const svg = draw("svg", { viewBox: `0 0 ${w} ${h}`, width: "100%", role: "img", "aria-label": `Charged after each line of the ledger, ${events.length} lines: now ${plain(s.charged_epsilon)} of ${plain(s.limit_epsilon)}` });
    svg.append(draw("line", { class: "axis", x1: 4, x2: w - 4, y1: h - 6, y2: h - 6 }), draw("path", { class: "limit", d: steps((e) => e.limit_epsilon) }), draw("path", { class: "step", d: steps((e) => e.charged_epsilon) }));
    return svg;
  };

  // uncounted has the reasons why a record that gave a row does not count for its person.
  const uncounted = ["no-user", "over-cap", "foreign", "full"];
  const shares = (t) => {
    const s = t.status, r = newest(t);
    const full = find(r, "full_share"), valid = find(r, "valid_count"), counted = find(r, "counted_share"), person = ofPersons(s);
    renew(t.shares, JSON.stringify([full, valid, counted, person, s.not_private, r && r.covers]), () => {
      const all = [el("h3", {}, "Records that count")], rows = [];
      const percent = (x, se) => `${rounded(100 * x, 100 * se)} ± ${error(100 * se)} %`;
      if (counted) rows.push(["count for their person", percent(counted.data[0], seOf(counted, 0))]);
      if (full && person) rows.push(["count, and are not shortened", percent(full.data[0], seOf(full, 0))]);
      else if (full) rows.push(["in full (not shortened, not rejected)", percent(full.data[0], seOf(full, 0))], ["shortened or rejected", percent(1 - full.data[0], seOf(full, 0))]);
      if (valid) rows.push(["valid, under the workload's weights", `${rounded(valid.data[0], seOf(valid, 0))} ± ${error(seOf(valid, 0))}`]);
      if (rows.length) all.push(list(rows), el("p", { class: "note" }, `${person ? "The rest exceed the number that counts for their person, or have no user key, or gave no row. " : ""}These numbers are private: they were released with noise.`));
      else if (person) all.push(el("p", {}, "This stream's releases do not say how many records count for their person."));
      else all.push(el("p", {}, "This stream's releases do not say how many records were shortened or rejected."));
      if (s.not_private) {
        const found = Object.entries(s.not_private.rejected_records).filter(([, n]) => n > 0).map(([why, n]) => [`${uncounted.includes(why) ? "not counted" : "rejected"}: ${why.replaceAll("_", " ")}`, whole(n)]);
        if (!found.length) found.push(["rejected", "0"]);
        if (s.mechanism === "moments") found.push(["shortened", whole(s.not_private.clipped_records)]);
        all.push(el("div", { class: "notprivate" }, el("strong", {}, "Not private: for the operator only"), el("p", {}, "Exact counts since the daemon started:"), list(found)));
      }
      return all;
    });
  };

  const values = (t) => {
    const r = newest(t);
    t.values.hidden = !r;
    if (!r) return;
    const names = r.values.map((v) => v.name);
    if (t.names !== names.join()) {
      t.names = names.join();
      const chosen = t.own && names.includes(t.pick.value) ? t.pick.value : preferred.find((n) => names.includes(n)) || names[0];
      t.pick.replaceChildren(...names.map((n) => el("option", { value: n }, titled(n))));
      t.pick.value = chosen;
      t.charts.clear();
    }
    const v = find(r, t.pick.value), named = labels(r, v);
    const most = t.all ? named.length : Math.min(named.length, charts);
    if (t.charts.size !== most || t.charted !== t.pick.value) {
      t.charted = t.pick.value;
      t.charts = new Map(named.slice(0, most).map((n, i) => [i, chart(n)]));
      t.grid.replaceChildren(...[...t.charts.values()].map((c) => c.box));
    }
    t.more.hidden = named.length <= charts;
    say(t.more, t.all ? `Show the first ${charts}` : `Show all ${named.length}`);
    for (const [i, c] of t.charts) { c.points = line(t, t.pick.value, i); if (c.at >= c.points.length) c.at = -1; paint(c); }
    const drawn = [...t.charts.values()], truth = Boolean(v.truth), cut = drawn.some((c) => c.cut);
    const stated = v.name === "theta_average" && t.releases.some((x) => find(x, "interval_low"));
    const band = drawn.some((c) => c.points.some((q) => q.se > 0)) ? (stated ? `interval, ${percentage(r.level)}` : "±1.96 standard errors") : "";
    renew(t.legend, `${band}${truth}${cut}`, () => [
      el("span", {}, el("i"), "released"), band ? el("span", {}, el("i", { class: "b" }), band) : null, truth ? el("span", {}, el("i", { class: "t" }), "truth, not private: this is a demonstration") : null,
      cut ? el("span", {}, "▲▼ outside of the frame") : null,
    ].filter(Boolean));
  };

  // lum returns the luminance as defined by WCAG, to choose a readable text colour.
  const lum = (c) => c.map((v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }).reduce((s, v, i) => s + v * [0.2126, 0.7152, 0.0722][i], 0);
  const rgb = (variable) => { const h = getComputedStyle(document.documentElement).getPropertyValue(variable).trim(); return [1, 3, 5].map((i) => parseInt(h.slice(i, i + 2), 16)); };
  const matrix = (t) => {
    const r = newest(t), found = matrices.map((n) => find(r, n)).filter((v) => v && v.shape[0] > 1);
    t.matrix.hidden = !found.length;
    if (!found.length) return;
    const scheme = matchMedia("(prefers-color-scheme: dark)").matches;
    t.matrixOf = found.some((v) => v.name === t.matrixOf) ? t.matrixOf : found[0].name;
    const v = found.find((x) => x.name === t.matrixOf), d = v.shape[0], at = (i, j) => (i <= j ? i * d - (i * (i - 1)) / 2 + (j - i) : at(j, i));
    renew(t.matrix, `${r.epoch}/${r.step}/${t.matrixOf}/${t.form}/${scheme}`, () => {
      const focus = document.activeElement && t.matrix.contains(document.activeElement) ? document.activeElement.id : "";
      const correlation = t.form === "correlation";
      const number = (list, i, j) => {
        const x = list[at(i, j)];
        if (!correlation) return x;
        const s = list[at(i, i)] * list[at(j, j)];
        return s > 0 && list[at(i, i)] > 0 ? x / Math.sqrt(s) : null;
      };
      const again = () => { t.matrix.dataset.key = ""; matrix(t); };
      const button = (form, text) => el("button", { type: "button", id: `${t.id}-${form}`, "aria-pressed": String(t.form === form), onclick: () => { t.form = form; again(); } }, text);
      const pick = el("select", { id: `${t.id}-matrix`, onchange: (e) => { t.matrixOf = e.target.value; again(); } }, ...found.map((x) => el("option", { value: x.name, selected: x.name === v.name }, titled(x.name))));
      let largest = 1;
      if (!correlation) largest = Math.max(...v.data.map(Math.abs)) || 1;
      const card = rgb("--card"), plus = rgb("--plus"), minus = rgb("--minus"), dense = d > 12;
      const cell = (i, j) => {
        const x = number(v.data, i, j), se = seOf(v, at(i, j));
        const words = `${name(r.columns, i)} and ${name(r.columns, j)}: ${correlation ? plain(x, 2) : rounded(x, se)}${!correlation && se > 0 ? ` ± ${error(se)}` : ""}${v.truth ? `, truth ${plain(number(v.truth, i, j), 2)}` : ""}`;
        const td = el("td", { title: words, "data-value": x === null ? "" : x }, dense ? el("span", { class: "hidden" }, words) : correlation ? (x === null ? "–" : signed(x.toFixed(2))) : rounded(x, se));
        const share = x === null ? 0 : Math.min(1, Math.abs(x) / largest), colour = card.map((c, k) => Math.round(c + share * ((x > 0 ? plus : minus)[k] - c)));
        const l = lum(colour);
        td.style.background = `rgb(${colour})`;
        td.style.color = (l + 0.05) / 0.05 > 1.05 / (l + 0.05) ? "#000" : "#fff";
        return td;
      };
      const rows = r.columns.slice(0, d).map((c, i) => el("tr", {}, el("th", { scope: "row" }, c), ...Array.from({ length: d }, (_, j) => cell(i, j))));
      const unknown = correlation && Array.from({ length: d }, (_, i) => v.data[at(i, i)]).some((x) => !(x > 0));
      const truth = v.truth && !dense ? " Point at a cell to see the true value too." : "";
      queueMicrotask(() => { if (focus) document.getElementById(focus)?.focus(); });
      return [
        el("div", { class: "bar" }, el("h3", {}, correlation ? "Correlation" : "Covariance"), el("span", { role: "group", "aria-label": "form" }, button("correlation", "Correlation"), " ", button("covariance", "As released")),
          el("span", { class: "pick" }, el("label", { for: `${t.id}-matrix` }, "of"), pick)),
        el("p", { class: "note", id: `${t.id}-matrix-is` }, `${correlation ? "Computed from the released " : "Released "}${titled(v.name)}, step ${whole(r.step)} of epoch ${whole(r.epoch)}.${unknown ? " A dash means that a released variance is not positive." : ""}${truth}`),
        el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Matrix of ${t.key}` }, el("table", { class: `heat${dense ? " dense" : ""}`, "aria-describedby": `${t.id}-matrix-is` },
          el("thead", {}, el("tr", {}, el("td", {}), ...r.columns.slice(0, d).map((c) => el("th", { scope: "col" }, c)))), el("tbody", {}, ...rows))),
      ];
    });
  };

  const coefs = (t) => {
    const r = newest(t), all = coefficients.map((n) => find(r, n)).filter(Boolean);
    const v = all.find((x) => x.name === "theta_average" && find(r, "interval_low")) || all[0];
    t.coef.hidden = !v || !r.target;
    if (t.coef.hidden) return;
    renew(t.coef, `${r.epoch}/${r.step}`, () => {
      const low = v.name === "theta_average" ? find(r, "interval_low") : null, high = v.name === "theta_average" ? find(r, "interval_high") : null;
      const constant = v.name === "theta_original" ? find(r, "intercept_original") : v.name === "theta" ? find(r, "intercept") : null;
      const named = labels(r, v).slice(), rows = v.data.map((y, i) => {
        const se = errorOf(r, v, i);
        const a = low && low.data[i] !== null ? low.data[i] : se > 0 ? y - z * se : null, b = high && high.data[i] !== null ? high.data[i] : se > 0 ? y + z * se : null;
        return { name: named[i], y, se: se > 0 ? se : 0, a, b, truth: v.truth ? v.truth[i] : null };
      });
      const own = constant ? seOf(constant, 0) : 0, end = (sign) => (own > 0 ? constant.data[0] + sign * z * own : null);
      if (constant) rows.push({ name: "(intercept)", y: constant.data[0], se: own > 0 ? own : 0, a: end(-1), b: end(1), truth: constant.truth ? constant.truth[0] : null });
      const ends = rows.flatMap((q) => [q.y, q.a, q.b, q.truth, 0]).filter((x) => x !== null && isFinite(x));
      const lo = Math.min(...ends), hi = Math.max(...ends), X = (x) => (6 + ((x - lo) / (hi - lo || 1)) * 228).toFixed(1);
      const truth = rows.some((q) => q.truth !== null), interval = rows.some((q) => q.a !== null);
      const level = percentage(low && r.level);
      return [
        el("div", { class: "bar" }, el("h3", {}, `${r.target} from ${r.columns.filter((c) => c !== r.target).join(", ")}`)),
        el("p", { class: "note", id: `${t.id}-coef-is` }, `Released ${titled(v.name)}, step ${whole(r.step)} of epoch ${whole(r.epoch)}. ${interval ? "Intervals are approximate." : r.mechanism === "sgd" ? "Errors are not known yet." : "The release states no errors."}`),
        el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Coefficients of ${t.key}` }, el("table", { class: "coef", "aria-describedby": `${t.id}-coef-is` },
          el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "coefficient"), el("th", { scope: "col" }, "estimate"), interval ? el("th", { scope: "col" }, `interval, ${level}`) : null, truth ? el("th", { scope: "col" }, "truth") : null, el("th", { scope: "col", class: "draw" }, "chart"))),
          el("tbody", {}, ...rows.map((q) => {
            const svg = draw("svg", { viewBox: "0 0 240 20", preserveAspectRatio: "none", role: "img", "aria-label": `${q.name}: ${rounded(q.y, q.se)}` });
            svg.append(draw("line", { class: "axis", x1: X(0), x2: X(0), y1: 0, y2: 20 }));
            if (q.a !== null) svg.append(draw("line", { class: "line", x1: X(q.a), x2: X(q.b), y1: 10, y2: 10 }));
            if (q.truth !== null) svg.append(draw("line", { class: "true", x1: X(q.truth), x2: X(q.truth), y1: 1, y2: 19 }));
            svg.append(draw("circle", { class: "dot", cx: X(q.y), cy: 10, r: 3.6 }));
            return el("tr", {}, el("th", { scope: "row" }, q.name), el("td", { "data-value": q.y }, rounded(q.y, q.se)),
              interval ? el("td", {}, q.a === null ? "–" : `${rounded(q.a, q.se)} to ${rounded(q.b, q.se)}`) : null, truth ? el("td", {}, q.truth === null ? "–" : rounded(q.truth, q.se)) : null, el("td", { class: "draw" }, svg));
          })))),
      ];
    });
  };

  const releases = (t) => {
    const last = t.releases.slice(-10).reverse();
    t.last.hidden = !last.length;
    renew(t.last, last.map((r) => `${r.epoch}/${r.step}`).join(), () => [
      el("details", {}, el("summary", {}, "Last releases"),
        el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Last releases of ${t.key}` }, el("table", { class: "list" },
          el("thead", {}, el("tr", {}, ...["key", "records", "offsets", "content"].map((x) => el("th", { scope: "col" }, x)))),
          el("tbody", {}, ...last.map((r) => el("tr", {}, el("td", { class: "word" }, `${r.stream}/${part(r.partition)}/${r.epoch}/${r.step}`), el("td", {}, whole(r.rows)), el("td", {}, r.offsets[1] > r.offsets[0] ? `${whole(r.offsets[0])} to ${whole(r.offsets[1] - 1)}` : "none"),
            el("td", { class: "word" }, r.failed ? `failed: ${r.failed}` : (r.values || []).map((v) => v.name).join(", ") || (r.verdict ? `warm-up: ${r.verdict}` : "no values"))))))),
        el("p", {}, el("a", { href: `api/v1/streams/${t.status.stream}/releases?partition=${part(t.status.partition)}&limit=10` }, "The releases as JSON"))),
    ]);
  };

  // ——— The instances that share the tasks ———
  const ranges = (shards) => {
    const parts = [];
    for (let i = 0, j; i < shards.length; i = j + 1) {
      for (j = i; shards[j + 1] === shards[j] + 1; j++);
      parts.push(j > i ? `${shards[i]}–${shards[j]}` : shards[i]);
    }
    return parts.join(", ") || "none";
  };
  const group = (g) => {
    const box = document.getElementById("group");
    box.hidden = !g;
    if (!g) return;
    const alike = new Map(); // state and reason → shards
    for (const s of g.shards) {
      const text = `${s.state}${s.why ? `: ${s.why}` : ""}`;
      if (s.state !== "running") alike.set(text, [...(alike.get(text) || []), s.shard]);
    }
    const here = [...alike].map(([text, shards]) => el("p", { class: "alert" }, `${shards.length > 1 ? `Shards ${ranges(shards)} are` : `Shard ${shards} is`} ${text}.`));
    renew(box, JSON.stringify(g), () => [
      el("h2", {}, `Instances of ${g.group}`),
      ...(g.trouble ? [el("p", { class: "alert" }, `The group cannot be reached; the shards of this instance keep running: ${g.trouble}`)] : []),
      ...(g.unowned ? [el("p", { class: "alert" }, `No instance has the shards ${ranges(g.unowned)}.`)] : []),
      ...here,
      el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Instances of ${g.group}` }, el("table", { class: "list" },
        el("thead", {}, el("tr", {}, ...["instance", "version", "shards", "standby"].map((x) => el("th", { scope: "col" }, x)))),
        el("tbody", {}, ...g.members.map((m) => el("tr", {},
          el("td", { class: "word" }, m.self || !m.url ? m.instance : el("a", { href: m.url }, m.instance), m.self ? " (this page)" : null),
          el("td", { class: "word" }, m.version), el("td", { class: "word" }, ranges(m.shards)), el("td", { class: "word" }, m.standby || "no")))))),
      el("p", {}, "Each page shows the tasks of its own instance."),
    ]);
  };

  // ——— Asking ———
  const ask = async (path) => {
    const answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(10000) });
    if (!answer.ok) throw new Error(`${answer.status} ${answer.statusText}`);
    return (await answer.json()).data;
  };
  const take = (t, fresh) => {
    const have = new Set(t.releases.map((r) => `${r.epoch}/${r.step}`));
    for (const r of fresh.releases) {
      t.n = Math.max(t.n, r.n);
      if (!have.has(`${r.epoch}/${r.step}`)) t.releases.push(r);
    }
    t.releases.sort((a, b) => a.epoch - b.epoch || a.step - b.step);
    while (t.releases.length > kept) t.releases = t.releases.filter((_, i) => i % 2 === 1 || i === t.releases.length - 1);
  };
  const look = async () => {
    if (asking) return;
    asking = true;
    try {
      const status = await ask("api/v1/status");
      const main = document.getElementById("streams");
      if (status.started !== started) { started = status.started; for (const t of tasks.values()) { t.n = 0; t.seen = ""; } }
      document.getElementById("loading")?.remove();
      group(status.group);
      say(document.getElementById("about"), `${status.version}, running since ${when(status.started)}`);
      const keys = status.tasks.map((s) => `${s.stream}/${s.partition}`);
      for (const [k, t] of tasks) if (!keys.includes(k)) { t.box.remove(); tasks.delete(k); }
      for (const [i, s] of status.tasks.entries()) {
        let t = tasks.get(keys[i]);
        if (!t) { t = make(keys[i], s); tasks.set(keys[i], t); main.insertBefore(t.box, main.children[i] || null); }
        t.status = s;
        facts(t);
        const now = `${s.epoch}/${s.step}/${s.outbox_releases}/${s.last_release}`;
        if (now !== t.seen) {
          take(t, await ask(`api/v1/streams/${s.stream}/series?partition=${part(s.partition)}&after=${t.n}`));
          t.seen = now;
          for (const show of [facts, coefs, values, matrix, releases]) show(t);
        }
      }
      const toc = document.getElementById("toc");
      toc.hidden = status.tasks.length < 2;
      renew(toc, status.tasks.map((s) => `${s.stream}/${s.partition}/${s.state}`).join(), () => status.tasks.map((s) => el("a", { href: `#s-${s.stream}-${part(s.partition)}` }, `${s.stream}${status.tasks.filter((x) => x.stream === s.stream).length > 1 ? `/${part(s.partition)}` : ""} · ${s.state}`)));
      const left = (status.patterns || []).filter((p) => p.missing);
      renew(document.getElementById("alerts"), JSON.stringify([status.insecure, left]), () => [
        ...(status.insecure ? [el("p", { class: "alert", role: "alert" }, "INSECURE: the noise is computed from a published seed. Nothing is protected.")] : []),
        ...left.map((p) => el("p", { class: "alert" }, `Stream ${p.pattern} does not take ${p.beyond + p.refused} of the topics that match ${p.topics}. ${p.missing[0].topic}: ${p.missing[0].reason}.`)),
      ]);
      say(document.getElementById("exposure"), status.exposure === "operator" ? "This page is for the operator: parts marked as not private are exact functions of records." : "");
      const count = {};
      for (const s of status.tasks) count[s.state] = (count[s.state] || 0) + 1;
      document.title = `streamdp: ${Object.entries(count).map(([k, n]) => `${n} ${k}`).join(", ")}`;
      lost = null;
    } catch (e) {
      lost ||= new Date();
      console.debug(String(e));
    } finally {
      asking = false;
    }
    const live = document.getElementById("live");
    live.className = lost ? "lost" : "";
    say(live, lost ? `no answer since ${lost.toLocaleTimeString()}: this page shows the last answer` : "live");
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { for (const t of tasks.values()) matrix(t); });
  addEventListener("resize", () => { for (const t of tasks.values()) for (const c of t.charts.values()) paint(c); });
  document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
  setInterval(() => { if (!document.hidden) look(); }, every);
  look();
})();
