// The two views: all pipelines, and one of them.

import {
  activeStages, assetsOfDag, events, forgetRuns, newestProofs, newestRun, NotAllowed, pipeline, pipelines, progressOf,
  proofsOfPipeline, tablesOfProof, troubleOf,
} from "./api.js";
import { barChart, lineChart } from "./charts.js";
import { element, isTouched, searchBox, table } from "./elements.js";
import {
  bytes, clock, count, freshness, lag, progress, proofState, seconds, stateOf, verdict, verdictOfTable,
} from "./words.js";

const COLOURS = ["good", "watch", "bad"];
const COUNTS = ["inserts", "updates", "deletes", "truncates", "copied", "rejected"];
const LOOKED_AT_PROOFS = 5;
const SEARCH_FROM = 20;
const FIRST_STEP =
  "To make one, put a DAG with pgoutput_to_iceberg into Airflow's folder of DAGs, switch it on and trigger it. "
  + "The page “Your first pipeline” of the documentation has such a DAG.";
const NOT_SEEN = "There is no such pipeline, or you may not see it.";
const SECONDS_BETWEEN_LOOKS = 30;
const WAITS_FOR_TIMES = 20;
const page = document.getElementById("page");

function show(...parts) {
  // Somebody may have begun to sort or search while this look went on.
  if (isTouched()) return;
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
  return told.length ? rowOf(asset, told.at(-1), told) : null;
}

async function rowOf(asset, last, told) {
  const run = await newestRun(last.dagId);
  const trouble = await troubleOf(run, tasksBeside(last));
  const state = stateOf(told, run, trouble);
  const reason = [state.level ? state.sentence : "", ...(trouble?.lines ?? [])].join(" ").trim();
  return { asset, last, state, reason };
}

// Pipelines whose first run works or has failed. They have no asset, so they are named by their DAG and task group.
async function begun(rows) {
  const keyOf = (told) => [told.dagId, groupOf(told), told.mapIndex].join(" ");
  const known = new Set(rows.map(({ last }) => keyOf(last)));
  const tasks = (await activeStages()).filter((task) => !known.has(keyOf(task)));
  const found = new Map(tasks.map((task) => [keyOf(task), task]));
  const named = ({ dagId, ...task }) => ({ dagId, uri: `pgoutput://${[dagId, groupOf(task)].join(" ").trim()}` });
  const made = await Promise.all([...found.values()].map((task) => rowOf(named(task), task, [])));
  return made.filter(({ state }) => state.word !== "well");
}

const queryOf = ({ id, dagId }) => (id ? { asset_id: id } : { dag_id: dagId });

const groupOf = ({ taskId }) => taskId.slice(0, taskId.lastIndexOf(".") + 1);

// Whether a task is of the same task group as the one that made an event. Without a group: all tasks of the DAG, or
// only that one. A group or a task may be mapped.
const tasksBeside = (told, isAlone = false) => (task) =>
  (groupOf(told) || !isAlone ? task.task_id.startsWith(groupOf(told)) : task.task_id === told.taskId)
  && ((told.mapIndex ?? -1) < 0 || task.map_index === told.mapIndex);

// Why the newest run of a verification has not ended well, or not yet.
const troubleOfProof = async (proof) =>
  proof ? troubleOf(await newestRun(proof.dagId), tasksBeside(proof, true)) : null;

async function allPipelines() {
  const assets = await pipelines();
  const [proven, all] = await Promise.all([newestProofs(assets.map(nameOf)), Promise.all(assets.map(summary))]);
  const rows = all.filter(Boolean);
  const found = await Promise.all(
    [...rows, ...(await begun(rows))].map(async (row) => {
      const proof = proven.get(nameOf(row.asset));
      return { ...row, proof: proofState(proof, await troubleOfProof(proof)) };
    }),
  );
  if (!found.length) {
    const none = "There is no pipeline yet, or none that you may see. A pipeline appears when its first run has begun.";
    return show(element("h1", "PostgreSQL to Iceberg"), element("p", none), element("p", FIRST_STEP, "soft"));
  }
  const names = (a, b) => nameOf(a.asset).localeCompare(nameOf(b.asset));
  const worst = ({ state, proof }) => Math.max(state.level, proof.level > 1 ? 2 : 0);
  const older = (a, b) => (worst(a) ? a.last.time - b.last.time : 0);
  found.sort((a, b) => worst(b) - worst(a) || older(a, b) || b.proof.level - a.proof.level || names(a, b));
  const rate = ({ last: { facts } }) => {
    const took = (facts.stage_seconds ?? 0) + (facts.apply_seconds ?? 0);
    return took ? ((facts.changes ?? 0) + (facts.totals?.copied ?? 0)) / took : 0;
  };
  const columns = [
    { title: "Pipeline", cell: ({ asset }) => link(nameOf(asset), queryOf(asset)) },
    { title: "State", cell: ({ state, reason }) => withReason(badge(state), reason) },
    { title: "Proof", cell: ({ proof }) => badge(proof) },
    { title: "The lake", cell: ({ last }) => freshness(last) },
    { title: "WAL kept before the newest run", number: true, cell: ({ last }) => keptWal(last.facts.slot) },
    { title: "Rows/s", number: true, cell: (row) => count(Math.round(rate(row))) },
  ];
  const made = table(columns, found);
  const search = searchBox("Search a pipeline", found, ({ asset }) => nameOf(asset), made);
  show(element("h1", "PostgreSQL to Iceberg"), ...(found.length > SEARCH_FROM ? [search] : []), made.wrapper);
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
  const isOwn = tasksBeside(last);
  const [trouble, ofProof] = await Promise.all([troubleOf(run, isOwn), troubleOfProof(proven[0])]);
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
    ...(await progressLines(run, isOwn)),
    charts(told), ...(await tables(told, proven)), ...verifications(proven), ...schemaChanges(told),
  );
}

const reasons = (trouble) => (trouble?.lines ?? []).map((line) => element("p", line, "bad"));

// What the long tasks of a run tell while they work.
async function progressLines(run, isOwn) {
  if (run?.state !== "running") return [];
  return (await progressOf(run, isOwn)).map((told) => element("p", progress(told)));
}

function charts(told) {
  const made = element("div", "", "charts");
  const points = (value) =>
    told.map((event) => ({ time: event.time, value: value(event) })).filter((point) => Number.isFinite(point.value));
  const limit = told.at(-1).facts.slot?.wal_limit_bytes ?? null;
  const behind = ({ facts, time }) => (facts.complete_until ? lag(new Date(facts.complete_until), time) : NaN);
  made.append(
    lineChart("Behind the source when a run ended", points(behind), seconds),
    lineChart("WAL that the server kept", points((event) => event.facts.slot?.retained_bytes ?? NaN), bytes, limit),
    barChart(
      "Rows of each run",
      ["changed", "copied"],
      told.map(({ time, facts }) => ({ time, values: [facts.changes ?? 0, facts.totals?.copied ?? 0] })),
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
  const search = searchBox("Search a table", rows, (row) => row.name, made);
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
    const all = () => true;
    const trouble = await troubleOf(run, all);
    const first = assets.length ? [] : [...(await progressLines(run, all)), ...reasons(trouble)];
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
    return asset ? onePipeline(asset) : show(element("p", NOT_SEEN));
  }
  return allPipelines();
}

const look = () => start().catch((error) => {
  const text = error instanceof NotAllowed
    ? `Airflow refused ${error.message}. Log in again, or ask for the right to read it.`
    : `The page could not be filled: ${error.message}`;
  const said = element("p", text, "bad");
  // What was seen before stays.
  if (page.getAttribute("aria-busy") === "true") show(said);
  else page.prepend(said);
});

// With many pipelines a look takes longer. The next one waits in proportion, so that Airflow has time for others.
async function lookAgainAndAgain() {
  const began = Date.now();
  await look();
  const wait = Math.max(SECONDS_BETWEEN_LOOKS * 1000, WAITS_FOR_TIMES * (Date.now() - began));
  // A new look would undo what somebody sorted or searched, and take the focus of the keyboard away.
  const isInUse = () => document.hidden || isTouched() || page.contains(document.activeElement);
  const next = () => (isInUse() ? setTimeout(next, wait) : lookAgainAndAgain());
  setTimeout(next, wait);
}

lookAgainAndAgain();
