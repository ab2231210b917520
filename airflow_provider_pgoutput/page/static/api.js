// Airflow's REST API, asked with the user's own rights. The cookie of the session goes along by itself.

const API = new URL("../api/v2/", document.baseURI);
const EVENTS = 100;
const PROOF = "pgoutput-proof://";
const SECONDS_FOR_AN_ANSWER = 60;
const SHOWN_PROOFS = 50;
const SHOWN_DIFFERENCES = 10;
const FAILED = ["failed", "up_for_retry", "upstream_failed"];
const WAITING = ["running", "deferred", "up_for_reschedule"];

export class NotAllowed extends Error {}
class NotFound extends Error {}

async function ask(path, parameters = {}) {
  const url = new URL(path, API);
  for (const [name, values] of Object.entries(parameters)) {
    for (const value of [values].flat()) url.searchParams.append(name, value);
  }
  const signal = AbortSignal.timeout(SECONDS_FOR_AN_ANSWER * 1000);
  const answer = await fetch(url, { headers: { accept: "application/json" }, signal });
  if (answer.status === 401 || answer.status === 403) throw new NotAllowed(url.pathname);
  if (answer.status === 404) throw new NotFound(`Airflow does not know ${url.pathname}.`);
  if (!answer.ok) throw new Error(`Airflow answered ${answer.status} to ${url.pathname}.`);
  return answer.json();
}

// An answer; or another value, if there is none or the user may not see it.
async function orNone(answer, none = null) {
  try {
    return await answer;
  } catch (error) {
    if (error instanceof NotFound || error instanceof NotAllowed) return none;
    throw error;
  }
}

const addressOf = (...names) => names.map(encodeURIComponent).join("/");
const pathOfTasks = (dagId, runId) => `dags/${addressOf(dagId)}/dagRuns/${addressOf(runId)}/taskInstances`;

// An XCom is JSON, in some versions as text. If an XCom backend keeps the value elsewhere, the text is no JSON.
async function xcomOf({ dagId, runId, taskId }, key, mapIndex) {
  const path = `${pathOfTasks(dagId, runId)}/${addressOf(taskId, "xcomEntries", key)}`;
  const { value } = (await orNone(ask(path, { map_index: mapIndex ?? -1 }))) ?? {};
  if (typeof value !== "string") return value ?? null;
  try {
    return JSON.parse(value);
  } catch (error) {
    if (error instanceof SyntaxError) return null;
    throw error;
  }
}

// The assets whose URI begins so, as far as the user may see them.
async function assetsOf(scheme) {
  const found = [];
  for (;;) {
    const parameters = { uri_pattern: `${scheme}%`, only_active: "false", limit: 100, offset: found.length };
    const some = await ask("assets", parameters);
    found.push(...some.assets);
    const isWhole = !some.assets.length || found.length >= some.total_entries;
    if (isWhole) return found.filter(({ uri }) => uri.startsWith(scheme));
  }
}

export const pipelines = () => assetsOf("pgoutput://");

// A pipeline by the number of its asset; null: there is none.
export async function pipeline(assetId) {
  const asset = await orNone(ask(`assets/${addressOf(assetId)}`));
  return asset?.uri.startsWith("pgoutput://") ? asset : null;
}

// The newest proof of each of the pipelines, by name. Those of DAGs that the user may not read are left out, and so
// are pipelines without any.
export async function newestProofs(names) {
  const assets = await assetsOf(PROOF);
  const found = await Promise.all(names.map(async (name) => [name, (await proofsOf(name, assets, 1))[0]]));
  return new Map(found.filter(([, proof]) => proof));
}

// The newest proofs of one pipeline, the newest first.
export const proofsOfPipeline = async (name) => proofsOf(name, await assetsOf(PROOF), SHOWN_PROOFS);

async function proofsOf(name, assets, limit) {
  const asset = assets.find((each) => each.uri === PROOF + name);
  const of = { asset_id: asset?.id, order_by: "-timestamp", limit };
  const told = asset ? (await ask("assets/events", of)).asset_events : [];
  const succeeded = told.map((event) => ({ ...source(event), facts: event.extra?.pgoutput_proof }));
  const failed = await differencesOf(name, Math.min(limit, SHOWN_DIFFERENCES));
  const found = (await readableOnly([...succeeded, ...failed])).filter((proof) => proof.facts?.schema_version === 1);
  return found.sort((a, b) => b.time - a.time).slice(0, limit);
}

// A verification that fails makes no event. It leaves what it found in XCom.
async function differencesOf(name, limit) {
  const anywhere = "dags/~/dagRuns/~/taskInstances/~/xcomEntries";
  const xcom_key = `pgoutput_proof ${name.replaceAll("/", " ")}`;
  // Airflow 3.1 does not know the order.
  const answer = await orNone(ask(anywhere, { xcom_key, order_by: "-timestamp", limit: 100 }), { xcom_entries: [] });
  const newest = answer.xcom_entries.sort((a, b) => b.timestamp.localeCompare(a.timestamp)).slice(0, limit);
  return Promise.all(newest.map(async (entry) => {
    const proof = { time: new Date(entry.timestamp), dagId: entry.dag_id, runId: entry.run_id, taskId: entry.task_id };
    return { ...proof, facts: await xcomOf(proof, xcom_key, entry.map_index) };
  }));
}

// What a verification found of each table. Some versions of Airflow give the user no rights for it.
export async function tablesOfProof(proof) {
  const found = proof.facts.found ?? (await xcomOf(proof, "return_value", proof.mapIndex));
  return [...(found?.tables ?? []), ...(found?.after_repair?.tables ?? [])];
}

// What the newest runs told, the oldest first. Runs that the user may not read are left out.
export async function events(assetId, limit = EVENTS) {
  const found = await ask("assets/events", { asset_id: assetId, order_by: "-timestamp", limit });
  return readableOnly(found.asset_events.map(readable).filter((event) => event.facts).reverse());
}

async function readableOnly(told) {
  const may = await Promise.all(told.map((event) => mayRead(event.dagId)));
  return told.filter((_, i) => may[i]);
}

// The assets that a DAG told something about.
export async function assetsOfDag(dagId) {
  // Airflow 3.1 does not know the pattern. Then the events of a hundred tables may leave no room for the pipeline's.
  const parameters = { source_dag_id: dagId, name_pattern: "pgoutput://%", order_by: "-timestamp", limit: EVENTS };
  const found = await ask("assets/events", parameters);
  const told = found.asset_events.filter((event) => event.uri?.startsWith("pgoutput://"));
  if (!told.length && found.asset_events.length === EVENTS) {
    const all = await pipelines();
    const newest = await Promise.all(all.map((asset) => events(asset.id, 1)));
    return all.filter((_, i) => newest[i][0]?.dagId === dagId);
  }
  return [...new Map(told.map((event) => [event.asset_id, { id: event.asset_id, uri: event.uri }])).values()];
}

// The newest run of a DAG; null: there is none, or the DAG was deleted; undefined: the user may not read the DAG.
// Between two calls of forgetRuns it is asked for once.
const runs = new Map();
export const forgetRuns = () => runs.clear();
export function newestRun(dagId) {
  if (!runs.has(dagId)) runs.set(dagId, askForRun(dagId));
  return runs.get(dagId);
}

async function askForRun(dagId) {
  try {
    const found = await ask(`dags/${addressOf(dagId)}/dagRuns`, { order_by: "-run_after", limit: 1 });
    return found.dag_runs[0] ?? null;
  } catch (error) {
    if (error instanceof NotFound) return null;
    if (error instanceof NotAllowed) return undefined;
    throw error;
  }
}

// Airflow 3.1 and 3.2 give events of every DAG to a user who may read assets. The page shows those of DAGs
// that the user may read.
const mayRead = async (dagId) => (await newestRun(dagId)) !== undefined;

// The task instances of a run; none, if the user may not read them.
async function tasksOf(run, parameters) {
  const path = pathOfTasks(run.dag_id, run.dag_run_id);
  const { task_instances: tasks } = await orNone(ask(path, { limit: 100, ...parameters }), { task_instances: [] });
  return { path, tasks };
}

// The stage tasks that work or have failed, the newest first. By them a pipeline is known before it has an event.
export async function activeStages() {
  const which = { operator: "PgoutputStageOperator", state: [...FAILED, ...WAITING], order_by: "-start_date", limit: 100 };
  const found = await orNone(ask("dags/~/dagRuns/~/taskInstances", which), { task_instances: [] });
  return found.task_instances.map((task) => ({
    time: new Date(task.start_date), dagId: task.dag_id, taskId: task.task_id, mapIndex: task.map_index, facts: {},
  }));
}

// How far the tasks of a pipeline are that work long, by the newest try of each. isOwn: as for troubleOf.
export async function progressOf(run, isOwn) {
  const { path, tasks } = await tasksOf(run, { state: "running" });
  const found = await Promise.all(tasks.filter(isOwn).map(async (task) => {
    const of = { dagId: run.dag_id, runId: run.dag_run_id, taskId: task.task_id };
    const told = await xcomOf(of, "pgoutput_progress", task.map_index);
    if (told?.schema_version === 1) return { ...told, task: task.task_id };
    // In Airflow 3.1 a stage task writes it into its log only. A log may be long, so no other task's is asked for.
    if (task.task_id.split(".").at(-1) !== "stage" && task.operator !== "PgoutputStageOperator") return null;
    const line = (await linesOf(path, task, "capture.source.progress_log")).lines.at(-1);
    return line ? { at: line.timestamp, line: String(line.event), task: task.task_id } : null;
  }));
  return found.filter(Boolean);
}

// What one of our modules wrote into the log of a task's newest try, and the last exception; or why that is not known.
async function linesOf(path, task, module) {
  try {
    const address = `${path}/${addressOf(task.task_id)}/logs/${task.try_number}`;
    const log = await ask(address, { map_index: task.map_index });
    const entries = Array.isArray(log.content) ? log.content : [];
    const lines = entries.filter((entry) => entry.logger === `airflow_provider_pgoutput.${module}`);
    return { lines, error: entries.findLast((entry) => entry.error_detail?.length)?.error_detail[0] };
  } catch (error) {
    return { lines: [], why: error instanceof NotAllowed ? "You may not read its log." : "Its log cannot be read." };
  }
}

// Why a run has not ended well, or not yet; null: nothing is known. state: "failed", "retrying", or "waiting" for
// changes of the source. lines: the error, as our task wrote it before its traceback. isOwn: whether a task is of the
// pipeline, as a DAG may have several.
export async function troubleOf(run, isOwn) {
  if (!["failed", "running"].includes(run?.state)) return null;
  const { path, tasks } = await tasksOf(run, { state: [...FAILED, ...WAITING] });
  const own = tasks.filter(isOwn);
  const some = (list, state) => list.find((task) => task.state === state);
  const lacksFirst = some(own, "upstream_failed") ? some(tasks, "failed") : undefined;
  const failed = some(own, "failed") ?? lacksFirst ?? some(own, "up_for_retry");
  if (failed) {
    const isRetried = failed.state === "up_for_retry";
    const said = `Task ${failed.task_id} failed${isRetried ? ` in try ${failed.try_number}, and is tried again` : ""}.`;
    return { state: isRetried ? "retrying" : "failed", lines: [said, ...(await reasonsOf(path, failed))] };
  }
  if (run.state === "failed") return some(tasks, "failed") ? null : { state: "failed", lines: [] };
  const waits = own.some((task) => WAITING.includes(task.state) && task.operator === "PgoutputChangesSensor");
  return waits ? { state: "waiting", lines: [] } : null;
}

// A log may be long, so it is asked for once for each try of a task.
const known = new Map();
async function reasonsOf(path, task) {
  const key = [path, task.task_id, task.map_index, task.try_number].join(" ");
  if (known.has(key)) return known.get(key);
  const { lines, error, why } = await linesOf(path, task, "tasks.outcome");
  const found = [...lines.map((entry) => String(entry.event)), ...(why ? [why] : [])];
  if (error && !lines.length) found.push(`${error.exc_type}: ${error.exc_value}`);
  if (!why) known.set(key, found);
  return found;
}

const source = (event) => ({
  time: new Date(event.timestamp),
  dagId: event.source_dag_id,
  runId: event.source_run_id,
  taskId: event.source_task_id ?? "",
  mapIndex: event.source_map_index,
});

function readable(event) {
  const facts = event.extra?.pgoutput;
  return { ...source(event), facts: facts?.schema_version === 1 ? facts : null };
}
