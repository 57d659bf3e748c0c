// Owns the picture: which packages are open, what is drawn of them, and what a click does.
// It does not compute what to cut: that is in the data, as indexes into the list of modules.
"use strict";
// The page of a session holds the picture as one part of many, and has the address for itself.
const drawImports = (text, isWholePage) => {
  // Controls, and what changes the direction in which the text after it is read, are shown as escapes.
  const NEVER_SHOWN = /[\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]/gu;
  const escaped = (character) => "\\u" + character.charCodeAt(0).toString(16).padStart(4, "0");
  const data = JSON.parse(text, (_, value) =>
    typeof value === "string" ? value.replace(NEVER_SHOWN, escaped) : value);
  const byId = (id) => document.getElementById(id);
  const modules = data.modules; // {name, state, verdict, culprit, reason, path, inside}
  const culprits = data.culprits;
  const TYPING_MS = 60, GAP = 12, COLUMN_GAP = 54;
  const RANK = { other: 0, clean: 1, leads: 2, holds: 3 };
  const COLOUR = { other: "#cfd8dc", clean: "#c8e6c9", leads: "#ffb74d", holds: "#d32f2f" };

  // -- the tree of packages --------------------------------------------------------------------
  const tree = new Map(); // dotted name -> {name, parent, children, own: module index or -1}
  const grow = (name) => {
    let node = tree.get(name);
    if (!node) {
      const dot = name.lastIndexOf(".");
      const parent = dot > 0 ? grow(name.slice(0, dot)) : null;
      node = { name, parent, children: [], own: -1, members: [] };
      if (parent) parent.children.push(node);
      tree.set(name, node);
    }
    return node;
  };
  modules.forEach((module, index) => {
    if (!module.inside) return;
    const node = grow(module.name);
    node.own = index;
    for (let up = node; up; up = up.parent) up.members.push(index);
  });
  const roots = [...tree.values()].filter((node) => !node.parent);

  const open = new Set();
  let chosen = -1, showAll = false, marked = "";

  const openFirst = () => {
    open.clear();
    for (let node of roots) {
      open.add(node.name);
      while (node.children.length === 1) { node = node.children[0]; open.add(node.name); }
    }
  };
  const openTo = (name) => { // so that the module itself is to be seen
    let node = tree.get(name);
    for (node = node && node.parent; node; node = node.parent) open.add(node.name);
  };

  // -- what is to be seen ----------------------------------------------------------------------
  const seenAs = () => { // for each module, the id of the node that stands for it
    const ids = modules.map((module, index) => (module.inside ? null : "m" + index));
    const shown = [];
    const visit = (node) => {
      if (node.children.length && open.has(node.name)) {
        if (node.own >= 0) { ids[node.own] = "m" + node.own; shown.push({ id: "m" + node.own, node, only: true }); }
        node.children.forEach(visit);
      } else {
        const id = node.children.length ? "p" + node.name : "m" + node.own;
        node.members.forEach((index) => { ids[index] = id; });
        shown.push({ id, node, only: !node.children.length });
      }
    };
    roots.forEach(visit);
    return { ids, shown };
  };
  const stateOf = (members) => members.reduce(
    (worst, index) => (RANK[modules[index].state] > RANK[worst] ? modules[index].state : worst), "other");
  const shortName = (name) => {
    const root = roots.find((node) => name.startsWith(node.name + "."));
    const parts = (root ? name.slice(root.name.length + 1) : name).split(".");
    return (parts.length > 2 ? "…" : "") + parts.slice(-2).join(".\n");
  };
  const counts = (members) => {
    const number = { touching: 0, clean: 0, other: 0 };
    for (const index of members) {
      const state = modules[index].state;
      number[state === "clean" || state === "other" ? state : "touching"] += 1;
    }
    return Object.entries(number).filter(([, n]) => n).map(([word, n]) => n + " " + word).join(" · ");
  };

  const build = () => {
    const { ids, shown } = seenAs();
    const nodes = new Map(), edges = new Map();
    for (const { id, node, only } of shown) {
      const members = only ? [node.own] : node.members;
      const isPackage = node.children.length > 0;
      const label = only ? shortName(node.name) + (isPackage ? "/__init__" : "") : shortName(node.name) + "\n" + counts(members);
      nodes.set(id, { id, label, state: stateOf(members), kind: only ? "module" : "package", name: node.name, members, isPackage });
    }
    const outside = (index) => {
      const module = modules[index];
      if (!nodes.has(ids[index])) nodes.set(ids[index], { id: ids[index], label: module.name, state: module.state, kind: "outside", name: module.name, members: [index] });
    };
    const join = (from, to, kind, note, culprit) => {
      if (from === to) return;
      const key = from + " " + to;
      const edge = edges.get(key) || { id: "e" + key, source: from, target: to, chain: false, notes: [], culprits: [], count: 0 };
      edge.count += 1;
      if (kind === "chain") edge.chain = true;
      if (culprit >= 0 && !edge.culprits.includes(culprit)) edge.culprits.push(culprit);
      if (note && !edge.notes.includes(note)) edge.notes.push(note);
      edges.set(key, edge);
    };
    const note = (i, j, where) => modules[i].name + " imports " + modules[j].name + (where ? "  " + where : "");
    culprits.forEach((culprit, number) => {
      const id = "c" + number;
      nodes.set(id, { id, label: culprit.label + "\n" + culprit.count, state: "culprit", kind: "culprit", members: [], name: culprit.title });
      for (const [i, j, where] of culprit.hops) {
        outside(i); outside(j);
        join(ids[i], ids[j], "chain", note(i, j, where), number);
      }
      for (const index of culprit.sinks) { outside(index); join(ids[index], id, "chain", "", number); }
    });
    if (showAll) for (const [i, j, where] of data.edges) if (modules[i].inside && modules[j].inside) join(ids[i], ids[j], "import", note(i, j, where), -1);
    const cuts = new Set();
    if (chosen >= 0) for (const [i, j, where] of culprits[chosen].cuts) {
      outside(i); outside(j);
      join(ids[i], ids[j], "chain", note(i, j, where), chosen);
      const edge = edges.get(ids[i] + " " + ids[j]);
      if (edge) { cuts.add(edge.id); edge.cut = where; }
    }
    if (chosen >= 0) narrow(nodes, edges);
    return { nodes, edges, cuts, ids };
  };
  const narrow = (nodes, edges) => { // to what is on the chains of the chosen culprit
    const kept = new Set(["c" + chosen]);
    for (const edge of edges.values()) if (edge.culprits.includes(chosen)) { kept.add(edge.source); kept.add(edge.target); }
    for (const [id, node] of nodes) if (!kept.has(id) && node.name !== marked) nodes.delete(id);
    for (const [key, edge] of edges) {
      if (!nodes.has(edge.source) || !nodes.has(edge.target)) edges.delete(key);
      else if (!edge.culprits.includes(chosen)) edge.chain = false;
    }
  };

  // -- where it is drawn -----------------------------------------------------------------------
  const sizeOf = (node) => {
    const lines = node.label.split("\n");
    return { width: Math.max(...lines.map((line) => Math.min(line.length, 46))) * 6.6 + 18, height: lines.length * 14 + 10 };
  };
  const place = (nodes, edges) => {
    const graph = new dagre.graphlib.Graph().setGraph({ rankdir: "LR", ranksep: 50, nodesep: 10 }).setDefaultEdgeLabel(() => ({}));
    const drawn = new Set();
    for (const edge of edges.values()) if (edge.chain) { drawn.add(edge.source); drawn.add(edge.target); graph.setEdge(edge.source, edge.target); }
    for (const node of nodes.values()) {
      if (node.state === "leads" || node.state === "holds" || node.kind === "culprit") drawn.add(node.id);
      if (drawn.has(node.id)) graph.setNode(node.id, sizeOf(node));
    }
    dagre.layout(graph);
    const columns = new Map();
    for (const id of drawn) {
      const at = graph.node(id);
      const key = Math.round(at.x);
      if (!columns.has(key)) columns.set(key, []);
      columns.get(key).push({ id, y: at.y, width: at.width, height: at.height });
    }
    // A column that is too tall to be read is folded into several: the more there is, the later.
    const most = Math.max(14, Math.ceil(Math.sqrt(3 * drawn.size)));
    const tall = graph.graph().height || 0;
    const positions = {};
    let left = 0, bottom = 0;
    for (const key of [...columns.keys()].sort((a, b) => a - b)) {
      const column = columns.get(key).sort((a, b) => a.y - b.y);
      const folds = Math.ceil(column.length / most);
      const each = Math.ceil(column.length / folds);
      for (let fold = 0; fold < folds; fold += 1) {
        const part = column.slice(fold * each, (fold + 1) * each);
        const width = Math.max(...part.map((box) => box.width));
        const height = part.reduce((sum, box) => sum + box.height + GAP, 0);
        const keep = columns.size > 1 && folds === 1 && tall < most * 50;
        let y = -height / 2;
        for (const box of part) {
          positions[box.id] = { x: left + width / 2, y: keep ? box.y - tall / 2 : y + box.height / 2 };
          y += box.height + GAP;
          bottom = Math.max(bottom, positions[box.id].y + box.height / 2);
        }
        left += width + (fold + 1 < folds ? 24 : COLUMN_GAP);
      }
    }
    // What leads nowhere is put below, in rows.
    let x = 0, y = bottom + 60;
    const broad = Math.max(left - COLUMN_GAP, 1300);
    const rest = [...nodes.values()].filter((node) => !drawn.has(node.id));
    for (const node of rest.sort((a, b) => (a.name < b.name ? -1 : 1))) {
      const box = sizeOf(node);
      if (x + box.width > broad && x > 0) { x = 0; y += 50; }
      positions[node.id] = { x: x + box.width / 2, y };
      x += box.width + GAP;
    }
    return positions;
  };

  const style = [
    { selector: "node", style: { shape: "round-rectangle", label: "data(label)", "text-wrap": "wrap", "text-valign": "center", "text-halign": "center", "font-size": 11, "font-family": "system-ui, sans-serif", width: "data(width)", height: "data(height)", "background-color": "data(colour)", "border-width": 1, "border-color": "#78909c", "min-zoomed-font-size": 4 } },
    { selector: "node[kind = 'package']", style: { "border-style": "double", "border-width": 4, "font-weight": 600 } },
    { selector: "node[kind = 'outside']", style: { "border-style": "dashed", "border-width": 2 } },
    { selector: "node[state = 'holds']", style: { color: "#fff" } },
    { selector: "node[kind = 'culprit']", style: { shape: "cut-rectangle", "background-color": "#7f0000", color: "#fff", "font-weight": 700 } },
    { selector: "edge", style: { width: "data(width)", "line-color": "#9aa5ab", "line-opacity": 0.5, "target-arrow-color": "#9aa5ab", "target-arrow-shape": "triangle", "curve-style": "bezier", "arrow-scale": 0.8 } },
    { selector: "edge[?chain]", style: { "line-opacity": 1, "line-color": "#e0883a", "target-arrow-color": "#e0883a", "z-index": 5 } },
    { selector: "edge.cut", style: { "line-opacity": 1, "line-color": "#1565c0", "target-arrow-color": "#1565c0", "line-style": "dashed", width: 5, label: "data(cut)", "font-size": 11, color: "#0d47a1", "text-background-color": "#fff", "text-background-opacity": 1, "text-background-padding": 2, "z-index": 9 } },
    { selector: ".marked", style: { "border-width": 5, "border-color": "#6a1b9a" } },
  ];
  const cy = cytoscape({ container: byId("graph"), style, minZoom: 0.05, maxZoom: 3, autoungrabify: false });

  const draw = (keepView) => {
    byId("tip").hidden = true; // what it told of may be gone
    const { nodes, edges, cuts, ids } = build();
    const positions = place(nodes, edges);
    const elements = [];
    for (const node of nodes.values()) elements.push({ group: "nodes", data: { ...node, ...sizeOf(node), colour: COLOUR[node.state] || "#7f0000" }, position: positions[node.id] });
    for (const edge of edges.values()) elements.push({ group: "edges", data: { ...edge, cut: edge.cut || "", width: 1 + Math.min(5, Math.log2(edge.count)) } });
    const view = { zoom: cy.zoom(), pan: { ...cy.pan() } };
    cy.batch(() => {
      cy.elements().remove();
      cy.add(elements);
      for (const id of cuts) cy.getElementById(id).addClass("cut");
    });
    if (keepView) cy.viewport(view); else cy.fit(cy.elements(), 30);
    if (marked) {
      const index = modules.findIndex((module) => module.name === marked);
      const node = tree.has(marked) ? cy.getElementById(ids[index] || "p" + marked) : cy.collection();
      node.addClass("marked");
      if (node.length) { cy.center(node); if (cy.zoom() < 0.8) cy.zoom({ level: 0.8, position: node.position() }); cy.center(node); }
    }
    [...byId("culprits").children].forEach((item, number) => item.classList.toggle("chosen", number === chosen));
    remember();
  };

  // -- what can be done ------------------------------------------------------------------------
  const choose = (number) => {
    chosen = chosen === number ? -1 : number;
    if (chosen >= 0) for (const [i, j] of [...culprits[chosen].chain, ...culprits[chosen].cuts]) { openTo(modules[i].name); openTo(modules[j].name); }
    draw();
  };
  const mark = (name) => { marked = name; openTo(name); draw(true); };
  const remember = () => {
    if (!isWholePage) return;
    const parts = new URLSearchParams();
    if (open.size) parts.set("open", [...open].sort().join(","));
    if (chosen >= 0) parts.set("culprit", String(chosen));
    if (marked) parts.set("find", marked);
    if (showAll) parts.set("all", "1");
    try { history.replaceState(null, "", "#" + parts); } catch { /* some browsers refuse it for files */ }
  };
  const recall = () => {
    const parts = new URLSearchParams(isWholePage ? location.hash.slice(1) : "");
    openFirst();
    for (const name of (parts.get("open") || "").split(",")) if (tree.has(name)) { open.add(name); openTo(name); }
    const number = parts.has("culprit") ? Number(parts.get("culprit")) : -1;
    marked = tree.has(parts.get("find")) ? parts.get("find") : "";
    if (marked) openTo(marked);
    showAll = byId("all").checked = parts.get("all") === "1";
    chosen = -1;
    if (Number.isInteger(number) && number >= 0 && number < culprits.length) choose(number); else draw();
  };

  cy.on("tap", "node", (event) => {
    const node = event.target.data();
    if (node.kind === "culprit") choose(Number(node.id.slice(1)));
    else if (node.kind === "package") { open.add(node.name); draw(); }
    else if (node.isPackage) { for (const name of [...open]) if (name === node.name || name.startsWith(node.name + ".")) open.delete(name); draw(); }
  });
  const tip = byId("tip");
  const tell = (element) => {
    const node = element.data();
    if (element.isEdge()) return node.notes.slice(0, 10).join("\n") + (node.notes.length > 10 ? "\n... and " + (node.notes.length - 10) + " more" : "");
    if (node.kind === "culprit") return culprits[Number(node.id.slice(1))].lines.join("\n");
    if (node.kind === "package") return node.name + "\n" + counts(node.members);
    const module = modules[node.members[0]];
    return [module.name, module.verdict, module.culprit >= 0 ? "touches at " + culprits[module.culprit].title : "", module.reason, module.path].filter(Boolean).join("\n");
  };
  cy.on("mouseover", "node, edge", (event) => { tip.textContent = tell(event.target); tip.hidden = !tip.textContent; });
  cy.on("mouseout", "node, edge", () => { tip.hidden = true; });
  cy.on("mousemove", (event) => {
    const { clientX: x, clientY: y } = event.originalEvent;
    tip.style.left = Math.min(x + 14, innerWidth - 540) + "px";
    tip.style.top = Math.min(y + 14, innerHeight - 60) + "px";
  });

  const entry = (list, text, act) => {
    const item = document.createElement("li");
    item.textContent = text;
    item.tabIndex = 0;
    item.setAttribute("role", "button");
    item.addEventListener("click", act);
    item.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      event.stopPropagation();
      act();
    });
    list.append(item);
    return item;
  };
  let typing = 0;
  byId("find").addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => {
      const wanted = byId("find").value.trim().toLowerCase();
      byId("found").replaceChildren();
      if (!wanted) { marked = ""; draw(true); return; }
      const hits = [...tree.keys()].filter((name) => name.toLowerCase().includes(wanted)).sort((a, b) => a.length - b.length);
      for (const name of hits.slice(0, 12)) entry(byId("found"), name, () => mark(name));
      if (hits.length > 12) entry(byId("found"), "... and " + (hits.length - 12) + " more", () => {});
      if (!hits.length) entry(byId("found"), "no module of this name", () => {});
    }, TYPING_MS);
  });
  byId("find").addEventListener("keydown", (event) => { if (event.key === "Enter" && byId("found").firstChild) byId("found").firstChild.click(); });
  byId("open-touching").addEventListener("click", () => {
    for (const node of tree.values()) if (node.children.length && RANK[stateOf(node.members)] > 1) { open.add(node.name); openTo(node.name); }
    draw();
  });
  byId("close-all").addEventListener("click", () => { chosen = -1; marked = ""; openFirst(); draw(); });
  byId("fit").addEventListener("click", () => cy.fit(cy.elements(), 30));
  byId("all").addEventListener("change", (event) => { showAll = event.target.checked; draw(true); });
  if (isWholePage) window.addEventListener("hashchange", recall);

  // -- the side --------------------------------------------------------------------------------
  byId("title").textContent = data.title;
  byId("counts").textContent = counts(modules.flatMap((module, index) => (module.inside ? [index] : [])));
  culprits.forEach((culprit, number) => {
    const item = entry(byId("culprits"), "", () => choose(number));
    const head = document.createElement("b");
    head.textContent = culprit.lines[0];
    item.append(head);
    culprit.lines.slice(1).forEach((line, index) => {
      const span = document.createElement("span");
      span.textContent = line;
      if (index >= culprit.lines.length - 1 - culprit.todo) span.className = "do";
      item.append(span);
    });
  });
  if (!culprits.length) byId("culprits").textContent = "none: no import touches CUDA";
  recall();
  return { cy, mark };
};
