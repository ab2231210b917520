// Airflow's REST API, asked with the user's own rights. The cookie of the session goes along by itself.

const API = new URL("../api/v2/", document.baseURI);
const EVENTS = 100;
const PROOF = "pgoutput-proof://";
const SHOWN_PROOFS = 50;

export class NotAllowed extends Error {}
class NotFound extends Error {}

async function ask(path, parameters = {}) {
  const url = new URL(path, API);
  for (const [name, value] of Object.entries(parameters)) url.searchParams.set(name, value);
  const answer = await fetch(url, { headers: { accept: "application/json" } });
  if (answer.status === 401 || answer.status === 403) throw new NotAllowed(url.pathname);
  if (answer.status === 404) throw new NotFound(`Airflow does not know ${url.pathname}.`);
  if (!answer.ok) throw new Error(`Airflow answered ${answer.status} to ${url.pathname}.`);
  return answer.json();
}

// The assets whose URI begins so, as far as the user may see them.
async function assetsOf(scheme) {
  const found = [];
  for (;;) {
    const parameters = { uri_pattern: `${scheme}%`, only_active: "false", limit: 100, offset: found.length };
    const some = (await ask("assets", parameters)).assets;
    found.push(...some);
    if (some.length < 100) return found.filter((asset) => asset.uri.startsWith(scheme));
  }
}

export const pipelines = () => assetsOf("pgoutput://");

// A pipeline by the number of its asset; null: there is none.
export async function pipeline(assetId) {
  try {
    const asset = await ask(`assets/${encodeURIComponent(assetId)}`);
    return asset.uri.startsWith("pgoutput://") ? asset : null;
  } catch (error) {
    if (error instanceof NotFound) return null;
    throw error;
  }
}

// The newest proofs of each pipeline, the newest first, by the part of its name that both assets have. Those of
// DAGs that the user may not read are left out, and so are pipelines without any.
export async function proofs(limit = 1) {
  const assets = await assetsOf(PROOF);
  const found = await Promise.all(assets.map(async (asset) => [nameOfProof(asset), await proofsOf(asset, limit)]));
  return new Map(found.filter(([, told]) => told.length));
}

// The same of one pipeline.
export async function proofsOfPipeline(name, limit = SHOWN_PROOFS) {
  const asset = (await assetsOf(PROOF)).find((each) => nameOfProof(each) === name);
  return asset ? proofsOf(asset, limit) : [];
}

const nameOfProof = (asset) => asset.uri.slice(PROOF.length);

async function proofsOf(asset, limit) {
  const found = await ask("assets/events", { asset_id: asset.id, order_by: "-timestamp", limit });
  const told = found.asset_events
    .map((event) => ({
      time: new Date(event.timestamp), dagId: event.source_dag_id, facts: event.extra?.pgoutput_proof,
    }))
    .filter((proof) => proof.facts?.schema_version === 1);
  return readableOnly(told);
}

// What the newest runs told of which the user may know, the oldest first.
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
  // Airflow 3.1 does not know the pattern. There a hundred tables that changed crowd the pipeline's event out.
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
const runs = new Map();
export function newestRun(dagId) {
  if (!runs.has(dagId)) runs.set(dagId, askForRun(dagId));
  return runs.get(dagId);
}

async function askForRun(dagId) {
  try {
    const found = await ask(`dags/${encodeURIComponent(dagId)}/dagRuns`, { order_by: "-run_after", limit: 1 });
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
  const path = `dags/${encodeURIComponent(run.dag_id)}/dagRuns/${encodeURIComponent(run.dag_run_id)}/taskInstances`;
  try {
    return { path, tasks: (await ask(path, { limit: 100, ...parameters })).task_instances };
  } catch (error) {
    if (error instanceof NotAllowed) return { path, tasks: [] };
    throw error;
  }
}

// How far the tasks of a run are that work long; the newest try of each. In Airflow 3.1 tasks tell it in their log only.
export async function progressOf(run) {
  const { path, tasks: running } = await tasksOf(run, { state: "running" });
  const found = await Promise.all(running.map(async (task) => {
    const told = await numbersOf(path, task);
    if (told) return { ...told, task: task.task_id };
    const line = (await linesOf(path, task, "capture.source.progress_log")).lines.at(-1);
    return line ? { at: line.timestamp, line: String(line.event), task: task.task_id } : null;
  }));
  return found.filter(Boolean);
}

async function numbersOf(path, task) {
  try {
    const entry = `${path}/${encodeURIComponent(task.task_id)}/xcomEntries/pgoutput_progress`;
    const { value } = await ask(entry, { map_index: task.map_index });
    const told = parsed(value);
    return told?.schema_version === 1 ? told : null;
  } catch (error) {
    // It told nothing so far, or the user may not read what it told.
    if (error instanceof NotFound || error instanceof NotAllowed) return null;
    throw error;
  }
}

// What one of our modules wrote into the log of a task's newest try; or why that is not known.
async function linesOf(path, task, module) {
  try {
    const address = `${path}/${encodeURIComponent(task.task_id)}/logs/${task.try_number}`;
    const log = await ask(address, { map_index: task.map_index });
    const entries = Array.isArray(log.content) ? log.content : [];
    return { lines: entries.filter((entry) => entry.logger === `airflow_provider_pgoutput.${module}`) };
  } catch (error) {
    return { lines: [], why: error instanceof NotAllowed ? "You may not read its log." : "Its log cannot be read." };
  }
}

// Why a run failed, in the lines that our task wrote before its traceback; empty: nothing is known.
export async function reasonOf(run) {
  const { path, tasks } = await tasksOf(run);
  const failed = tasks.find((task) => task.state === "failed");
  if (!failed) return [];
  const { lines, why } = await linesOf(path, failed, "tasks.outcome");
  return [`Task ${failed.task_id} failed.`, ...lines.map((entry) => String(entry.event)), ...(why ? [why] : [])];
}

// An XCom is JSON, in some versions as text. Text that is no JSON is the place where an XCom backend keeps it.
function parsed(value) {
  if (typeof value !== "string") return value;
  try {
    return JSON.parse(value);
  } catch (error) {
    if (error instanceof SyntaxError) return null;
    throw error;
  }
}

function readable(event) {
  const facts = event.extra?.pgoutput;
  return {
    time: new Date(event.timestamp),
    dagId: event.source_dag_id,
    runId: event.source_run_id,
    facts: facts?.schema_version === 1 ? facts : null,
  };
}
