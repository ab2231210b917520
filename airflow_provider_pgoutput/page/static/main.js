// The two views: all pipelines, and one of them.

import {
  assetsOfDag, events, forgetRuns, newestProofs, newestRun, NotAllowed, pipeline, pipelines, progressOf,
  proofsOfPipeline, tablesOfProof, troubleOf,
} from "./api.js";
import { barChart, lineChart } from "./charts.js";
import { element, isTouched, table, touch } from "./elements.js";
import {
  bytes, clock, count, freshness, lag, progress, proofState, seconds, stateOf, verdict, verdictOfTable,
} from "./words.js";

const COLOURS = ["good", "watch", "bad"];
const COUNTS = ["inserts", "updates", "deletes", "truncates", "copied", "rejected"];
const LOOKED_AT_PROOFS = 5;
const FIRST_STEP =
  "To make one, put a DAG with pgoutput_to_iceberg into Airflow's folder of DAGs, switch it on and trigger it. "
  + "The page “Your first pipeline” of the documentation has such a DAG.";
const NOT_SEEN = "There is no such pipeline, or you may not see it.";
const SECONDS_BETWEEN_LOOKS = 30;
const page = document.getElementById("page");

function show(...parts) {
  page.replaceChildren(...parts);
  page.setAttribute("aria-busy", "false");
}

function dark() {
  // Airflow's own choice, if the page stands in its frame.
  try {
    const outer = window.parent.document.documentElement;
    if (outer !== document.documentElement) return outer.classList.contains("dark");
  } catch {
    // Another site's frame does not tell.
  }
  return window.matchMedia("(prefers-color-scheme: dark)").matches;
}

const nameOf = (asset) => asset.uri.slice("pgoutput://".length);

// Null: the user may not see it.
async function summary(asset) {
  const told = await events(asset.id, 10);
  const last = told.at(-1);
  if (!last) return null;
  const run = await newestRun(last.dagId);
  const trouble = await troubleOf(run, groupOf(last));
  return { asset, last, state: stateOf(told, run, trouble), reason: trouble?.lines.join(" ") };
}

// How the names of a pipeline's tasks begin: the name of its task group.
const groupOf = (event) => event.taskId.slice(0, event.taskId.lastIndexOf(".") + 1);

// What failed of the verification that a proof is of.
const troubleOfProof = async (proof) =>
  proof ? troubleOf(await newestRun(proof.dagId), groupOf(proof) || proof.taskId) : null;

async function allPipelines() {
  const assets = await pipelines();
  const [proven, all] = await Promise.all([newestProofs(assets.map(nameOf)), Promise.all(assets.map(summary))]);
  const found = await Promise.all(
    all.filter(Boolean).map(async (row) => {
      const proof = proven.get(nameOf(row.asset));
      return { ...row, proof: proofState(proof, await troubleOfProof(proof)) };
    }),
  );
  if (!found.length) {
    show(
      element("h1", "PostgreSQL to Iceberg"),
      element("p", "There is no pipeline yet, or none that you may see. A pipeline appears after its first run."),
      element("p", FIRST_STEP, "soft"),
    );
    return;
  }
  const level = ({ state, proof }) => Math.max(state.level, proof.level);
  found.sort((a, b) => level(b) - level(a) || nameOf(a.asset).localeCompare(nameOf(b.asset)));
  const rate = ({ last }) => {
    const took = (last?.facts.stage_seconds ?? 0) + (last?.facts.apply_seconds ?? 0);
    return last && took ? (last.facts.changes + (last.facts.totals?.copied ?? 0)) / took : 0;
  };
  const columns = [
    { title: "Pipeline", cell: ({ asset }) => link(nameOf(asset), { asset_id: asset.id }) },
    {
      title: "State",
      cell: ({ state, reason }) => withReason(badge(state), reason),
    },
    { title: "Proof", cell: ({ proof }) => badge(proof) },
    { title: "The lake", cell: ({ last }) => freshness(last) },
    {
      title: "WAL kept", number: true,
      cell: ({ last }) => keptWal(last?.facts.slot),
    },
    { title: "Rows/s", number: true, cell: (row) => count(Math.round(rate(row))) },
  ];
  show(element("h1", "PostgreSQL to Iceberg"), table(columns, found).wrapper);
}

function badge(state) {
  const made = element("span", state.word, COLOURS[state.level]);
  made.title = state.sentence;
  return made;
}

function withReason(badge, reason) {
  if (!reason) return badge;
  const made = element("div");
  made.append(badge, element("p", reason, "soft"));
  return made;
}

function keptWal(slot) {
  const kept = bytes(slot?.retained_bytes);
  return slot?.wal_limit_bytes ? `${kept} of ${bytes(slot.wal_limit_bytes)}` : kept;
}

function link(text, parameters) {
  const made = element("a", text);
  made.href = `?${new URLSearchParams(parameters)}`;
  return made;
}

async function onePipeline(asset) {
  const [told, proven] = await Promise.all([events(asset.id), proofsOfPipeline(nameOf(asset))]);
  const last = told.at(-1);
  if (!last) return show(element("p", NOT_SEEN));
  const run = await newestRun(last.dagId);
  const [trouble, ofProof] = await Promise.all([troubleOf(run, groupOf(last)), troubleOfProof(proven[0])]);
  const state = stateOf(told, run, trouble);
  const verified = proofState(proven[0], ofProof);
  return show(
    element("h1", nameOf(asset)),
    element("p", state.sentence, COLOURS[state.level]),
    ...reasons(trouble),
    element("p", freshness(last), "soft"),
    ...(last.facts.slot?.warnings ?? []).map((text) => element("p", text, "watch")),
    element("p", verified.sentence, COLOURS[verified.level]),
    ...reasons(ofProof),
    ...(await progressLines(run)),
    charts(told), ...(await tables(told, proven)), ...verifications(proven), ...schemaChanges(told),
  );
}

const reasons = (trouble) => (trouble?.lines ?? []).map((line) => element("p", line, "bad"));

// What the long tasks of a run tell while they work.
async function progressLines(run) {
  if (run?.state !== "running") return [];
  return (await progressOf(run)).map((told) => element("p", progress(told)));
}

function charts(told) {
  const made = element("div", "", "charts");
  const points = (value) =>
    told.map((event) => ({ time: event.time, value: value(event) })).filter((point) => Number.isFinite(point.value));
  const limit = told.at(-1).facts.slot?.wal_limit_bytes ?? null;
  const behind = (event) =>
    event.facts.complete_until ? lag(new Date(event.facts.complete_until), event.time) : NaN;
  made.append(
    lineChart("Behind the source when a run ended", points(behind), seconds),
    lineChart("WAL that the server kept", points((event) => event.facts.slot?.retained_bytes ?? NaN), bytes, limit),
    barChart(
      "Rows of each run",
      ["changed", "copied"],
      told.map((event) => ({
        time: event.time, values: [event.facts.changes ?? 0, event.facts.totals?.copied ?? 0],
      })),
      count,
    ),
    barChart(
      "Time of each run",
      ["to stage", "to apply", "to publish"],
      told.map((event) => {
        const { stage_seconds: stage = 0, apply_seconds: apply = 0, publish_seconds: publish = 0 } = event.facts;
        return { time: event.time, values: [stage, Math.max(apply - publish, 0), publish] };
      }),
      seconds,
    ),
  );
  return made;
}

async function tables(told, proven) {
  const sums = new Map();
  const rowOf = (name) => {
    if (!sums.has(name)) sums.set(name, { name, ...Object.fromEntries(COUNTS.map((each) => [each, 0])) });
    return sums.get(name);
  };
  // A verification may have looked at some tables only.
  const looked = proven.slice(0, LOOKED_AT_PROOFS).reverse();
  (await Promise.all(looked.map(tablesOfProof))).forEach((found, i) => {
    for (const each of found) {
      const isWhole = !each.not_compared && !each.share_number;
      Object.assign(rowOf(each.table_name), { proof: verdictOfTable(each), proofTime: looked[i].time },
        isWhole ? { rows: each.source_rows } : {});
    }
  });
  let leftOut = 0;
  for (const event of told) {
    leftOut += event.facts.tables_left_out ?? 0;
    for (const [name, counts] of Object.entries(event.facts.tables ?? {})) {
      const sum = rowOf(name);
      for (const each of COUNTS) sum[each] += counts[each] ?? 0;
      sum.time = event.time;
    }
  }
  const rows = [...sums.values()];
  const columns = [
    { title: "Table", cell: (row) => row.name, value: (row) => row.name },
    ...COUNTS.map((each) => ({
      title: each, number: true, cell: (row) => count(row[each]), value: (row) => row[each],
    })),
    { title: "last change", cell: (row) => (row.time ? clock(row.time) : ""), value: (row) => row.time ?? 0 },
    {
      title: "rows", number: true,
      cell: (row) => (row.rows === undefined ? "" : count(row.rows)), value: (row) => row.rows ?? -1,
    },
    {
      title: "last proof",
      cell: (row) => (row.proof ? `${row.proof}, ${clock(row.proofTime)}` : ""), value: (row) => row.proofTime ?? 0,
    },
  ];
  const made = table(columns, rows, { column: 0, sign: 1 });
  const search = element("input");
  search.type = "search";
  search.placeholder = "Search a table";
  search.setAttribute("aria-label", "Search a table");
  search.addEventListener("input", () => {
    touch();
    const wanted = search.value.toLowerCase();
    made.refill(rows.filter((row) => row.name.toLowerCase().includes(wanted)));
  });
  const runs = told.length === 1 ? "the newest run" : `the newest ${told.length} runs`;
  const note = leftOut ? " Runs with many tables tell only of those with the most changes." : "";
  const what = `Changed and copied rows of ${runs}. Rows and proof are those of the newest verifications.${note}`;
  return [element("h2", "Tables"), element("p", what, "soft"), search, made.wrapper];
}

function schemaChanges(told) {
  const found = [];
  for (const event of told) {
    for (const [name, words] of Object.entries(event.facts.schema_changes ?? {})) {
      for (const word of words) found.push({ time: event.time, name, word });
    }
  }
  if (!found.length) return [];
  const columns = [
    { title: "Run", cell: (row) => clock(row.time) },
    { title: "Table", cell: (row) => row.name },
    { title: "Change", cell: (row) => row.word },
  ];
  return [element("h2", "Changes of schemas"), table(columns, found.reverse()).wrapper];
}

function verifications(proven) {
  if (!proven.length) return [];
  const columns = [
    { title: "Verified", cell: (row) => clock(row.time) },
    { title: "At LSN", cell: (row) => row.facts.lsn },
    { title: "Result", cell: (row) => element("span", verdict(row.facts), row.facts.different ? "bad" : "") },
    { title: "Rows proven equal", number: true, cell: (row) => count(row.facts.rows) },
    { title: "Took", number: true, cell: (row) => seconds(row.facts.seconds) },
  ];
  return [element("h2", "Verifications"), table(columns, proven).wrapper];
}

async function start() {
  forgetRuns();
  document.documentElement.classList.toggle("dark", dark());
  const asked = new URLSearchParams(window.location.search);
  if (asked.has("dag_id")) {
    const run = await newestRun(asked.get("dag_id"));
    const assets = run === undefined ? [] : await assetsOfDag(asked.get("dag_id"));
    if (assets.length === 1) return onePipeline(assets[0]);
    const text = assets.length
      ? "This DAG has several pipelines."
      : "No run of this DAG has applied a batch yet, or you may not see its events.";
    // The first run may still copy, or have failed.
    const first = assets.length ? [] : [...(await progressLines(run)), ...reasons(await troubleOf(run, ""))];
    const list = element("ul");
    for (const asset of assets) {
      const item = element("li");
      item.append(link(nameOf(asset), { asset_id: asset.id }));
      list.append(item);
    }
    return show(element("p", text), ...first, list);
  }
  if (asked.has("asset_id")) {
    const asset = await pipeline(asked.get("asset_id"));
    if (asset) return onePipeline(asset);
    return show(element("p", NOT_SEEN));
  }
  return allPipelines();
}

const look = () => start().catch((error) => {
  const text = error instanceof NotAllowed
    ? `Airflow refused ${error.message}. Log in again, or ask for the right to read it.`
    : `The page could not be filled: ${error.message}`;
  show(element("p", text, "bad"));
});

look();
setInterval(() => document.hidden || isTouched() || look(), SECONDS_BETWEEN_LOOKS * 1000);
