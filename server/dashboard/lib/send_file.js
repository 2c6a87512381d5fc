// A data file of the user's machine on its way to the server: hashed first, then sent from where the server has it.
// Neither holds more than a slice of it.
import { call, CallError, upload } from './api.js';
import { Sha256 } from './sha256.js';

const SLICE = 2 << 20;
// In a row, without a byte more than before.
const ATTEMPTS = 8;
const LONGEST_WAIT_MS = 8000;

// Also where the server has not yet seen that the connection before is gone, as _upload.py has it.
const passes = (error) => !(error instanceof CallError) || [502, 503, 504].includes(error.status) ||
  ['UNAVAILABLE', 'DEADLINE_EXCEEDED', 'ABORTED', 'OUT_OF_RANGE'].includes(error.code);

class Unreadable extends Error {}

async function slice(file, begin) {
  try {
    return new Uint8Array(await file.slice(begin, begin + SLICE).arrayBuffer());
  } catch {
    throw new Unreadable(`${file.name} cannot be read, or has changed since it was chosen: choose it again`);
  }
}

async function hash(file, signal, onState) {
  const sha = new Sha256();
  for (let at = 0; at < file.size; at += SLICE) {
    onState({ doing: 'read', done: at });
    sha.update(await slice(file, at));
    signal.throwIfAborted();
  }
  return sha.digest();
}

function pause(ms, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener('abort', () => {
      clearTimeout(timer);
      reject(signal.reason);
    }, { once: true });
  });
}

// {sha256, rows}; `rows` where the server has counted them now. `onState` is told {doing, done, begin, since}: how much
// of it is read or sent, from where on and since when; {doing: 'check'} while the server looks at its rows; {doing:
// 'wait', why} before another attempt. Aborted by `signal`, what the server has of the file stays for the next time.
export async function sendFile(file, project, signal, onState) {
  const sha256 = await hash(file, signal, onState);
  let before = -1;
  for (let attempt = 1; ; ++attempt) {
    try {
      const stat = await call('DataService/StatBlob', { sha256, purpose: 'DATASET', project }, signal);
      if (stat.complete) return { sha256 };
      const begin = Number(stat.received);
      if (begin > before) attempt = 1;
      before = Math.max(before, begin);
      const since = Date.now();
      const sent = (loaded) => {
        const done = begin + loaded;
        onState(done < file.size ? { doing: 'send', done, begin, since } : { doing: 'check' });
      };
      sent(0);
      const query = { purpose: 'DATASET', display_name: file.name, project, sha256, size: file.size, offset: begin };
      const { rows } = await upload('DataService/UploadBlob', query, file.slice(begin), signal, sent);
      return { sha256, rows: Number(rows) };
    } catch (error) {
      signal.throwIfAborted();
      await slice(file, Math.max(0, file.size - 1));
      if (!passes(error) || attempt === ATTEMPTS) throw error;
      onState({ doing: 'wait', why: error.message });
      await pause(Math.min(LONGEST_WAIT_MS, 500 * 2 ** (attempt - 1)), signal);
    }
  }
}
