// Numbers and states in words.

const number = new Intl.NumberFormat("en");

export const count = (value) => number.format(value);

export function bytes(value) {
  if (value === null || value === undefined) return "not known";
  let size = value;
  for (const unit of ["bytes", "kB", "MB", "GB"]) {
    if (size < 1000) return `${unit === "bytes" ? size : size.toFixed(1)} ${unit}`;
    size /= 1000;
  }
  return `${size.toFixed(1)} TB`;
}

export function seconds(value) {
  if (value < 1) return `${value.toFixed(2)} s`;
  if (value < 60) return `${value.toFixed(1)} s`;
  if (value < 3600) return `${Math.round(value / 60)} min`;
  if (value < 172800) return `${(value / 3600).toFixed(1)} h`;
  return `${Math.round(value / 86400)} days`;
}

export const clock = (time) => time.toLocaleString();

export const lag = (from, to) => Math.max((to - from) / 1000, 0);

// The median of the seconds between runs; null: there were fewer than two.
function usualInterval(events) {
  const between = events.slice(1).map((event, i) => lag(events[i].time, event.time)).sort((a, b) => a - b);
  return between.length ? between[Math.floor(between.length / 2)] : null;
}

const DAY = 86400;

// How a pipeline is: level 0 is well, 1 is to be watched, 2 is bad. The word is that of the worst.
export function stateOf(events, run, trouble, now = new Date()) {
  const found = statesOf(events, run, trouble, now);
  return { ...found[0], sentence: found.map((state) => state.sentence).join(" ") };
}

// events: none, if the first run has not ended well yet.
function statesOf(events, run, trouble, now) {
  const last = events.at(-1);
  const { slot, ...facts } = last?.facts ?? {};
  const found = [];
  const watch = (word, sentence) => found.push({ level: 1, word, sentence });
  if (trouble?.state === "failed") found.push({ level: 2, word: "failed", sentence: "The newest run failed." });
  const age = last ? lag(last.time, now) : 0;
  const usual = usualInterval(events);
  const active = ["running", "queued"].includes(run?.state) ? `A run is ${run.state}.` : "";
  // A run may wait for its next try for hours. So a pipeline can be late although a run is active.
  if (trouble?.state !== "waiting" && age > (usual === null ? DAY : Math.max(3 * usual, 3600))) {
    const often = usual === null ? "" : ` Usually one ends every ${seconds(usual)}.`;
    const gone = run === null ? "Its DAG was deleted, or has no run any more." : "";
    watch("late", `The last run that ended well did so ${seconds(age)} ago.${often} ${active}${gone}`.trim());
  }
  if (trouble?.state === "retrying") watch("trying again", "A task of the newest run failed, and is tried again.");
  // The run has ended well since.
  if (slot?.wal_status === "unreserved") {
    watch("slot in danger", "Before the newest run, the server was about to remove WAL that the slot needs.");
  } else if (slot?.wal_limit_bytes && slot.retained_bytes > slot.wal_limit_bytes / 2) {
    watch("much WAL", "Before the newest run the server kept more than half of the WAL that it may keep.");
  }
  if (facts.set_aside) {
    const tables = facts.set_aside === 1 ? "1 table is" : `${facts.set_aside} tables are`;
    const names = (facts.set_aside_tables ?? []).join(", ");
    watch("set aside", `${tables} set aside${names ? `: ${names}` : ""}.`);
  }
  if (facts.incomplete) {
    const tables = facts.incomplete === 1 ? "1 table has" : `${facts.incomplete} tables have`;
    watch("incomplete", `${tables} rows in the quarantine.`);
  }
  if (found.length) return found;
  if (trouble?.state === "waiting") return [{ level: 0, word: "waiting", sentence: "A run waits for changes." }];
  if (active) return [{ level: 0, word: run.state, sentence: active }];
  return [{ level: 0, word: "well", sentence: `The newest run ended ${seconds(age)} ago.` }];
}

// What a verification found, by the facts of its event.
export function verdict(facts) {
  const tables = (facts.different_tables ?? []).join(", ");
  const parts = facts.parts ? ` (parts of ${count(facts.parts)})` : "";
  const said = facts.different
    ? `${count(facts.different)} of ${count(facts.tables)} tables differed: ${tables}`
    : `${count(facts.equal)} of ${count(facts.tables)} tables equal${parts}`;
  const damaged = facts.damaged_tables ? `; a file is missing or damaged: ${facts.damaged_tables.join(", ")}` : "";
  return said + damaged + (facts.not_compared ? `; ${count(facts.not_compared)} not compared` : "");
}

// What a verification found of one table.
export function verdictOfTable(row) {
  if (row.not_compared) return "not compared";
  const part = row.share_number ? `part ${count(row.share_number)} of ${count(row.share_of)} ` : "";
  return part + (row.is_equal ? "equal" : "different");
}

const STALE_SECONDS = 7 * DAY;

// What was proven of a pipeline: level as in stateOf, a word and a sentence.
// trouble: of the verification's newest run.
export function proofState(proof, trouble, now = new Date()) {
  if (!proof) {
    const sentence = "Nobody has verified the lake with PgoutputVerifyOperator yet, or you may not see it.";
    return { level: 1, word: "not proven", sentence };
  }
  const { facts, time } = proof;
  const ago = `${seconds(lag(time, now))} ago`;
  if (facts.different || facts.damaged_tables) {
    return { level: 2, word: "differing", sentence: `${verdict(facts)}, ${ago}.` };
  }
  if (["failed", "retrying"].includes(trouble?.state)) {
    return { level: 2, word: "failed", sentence: "The newest verification failed." };
  }
  const what = facts.parts ? `parts of ${count(facts.parts)} tables` : `${count(facts.equal)} of ${count(facts.tables)} tables`;
  const proven = `${what}, ${count(facts.rows)} rows, were proven equal at LSN ${facts.lsn}, ${ago}.`;
  if (lag(time, now) > STALE_SECONDS) return { level: 1, word: "proof stale", sentence: proven };
  return { level: facts.not_compared ? 1 : 0, word: `proven ${ago}`, sentence: proven };
}

// How far a task is.
export function progress(told) {
  const who = `At ${clock(new Date(told.at))} task ${told.task}`;
  if (told.line) return `${who} wrote: ${told.line}.`;
  const left = told.seconds_left === null ? "the time left is not known yet" : `about ${seconds(told.seconds_left)} left`;
  const rows = `${count(told.rows)} rows, ${count(told.rows_per_second)} rows/s`;
  const done = told.what === "copy"
    ? `copies: ${count(told.tables_done)} of ${count(told.tables)} tables, ${bytes(told.bytes_done)} of about ${bytes(told.bytes)}`
    : `reads changes: at LSN ${told.lsn} of ${told.end_lsn}`;
  return `${who} ${done}; ${rows}; ${left}.`;
}

export function freshness(event, now = new Date()) {
  if (!event?.facts.complete_until) return "It is not known up to which time the lake is complete.";
  const until = new Date(event.facts.complete_until);
  const lacking = event.facts.set_aside ? " Tables that are set aside lack some of it." : "";
  return `The lake has all up to ${clock(until)} (LSN ${event.facts.end_lsn}), ${seconds(lag(until, now))} ago.${lacking}`;
}
