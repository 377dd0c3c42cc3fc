// Requests to the lab: the counterpart of api.py.
import { annotatorName, operatorHeader } from './session.js';

const TIMEOUT_MS = 60_000;
const NO_ANSWER =
  'The lab has not answered. It may still be working on this, or the connection was lost. Reload the page and try ' +
  'again.';

// field: the form field that the message is about; '' for none. isReply: the lab answered.
export class RequestError extends Error {
  constructor(message, { field = '', isReply = true } = {}) {
    super(message);
    Object.assign(this, { field, isReply });
  }
}

// The requests of a screen by name: await requests('chat').ask({turns}). A failed one throws a RequestError.
// requests('chat').options.ifChanged({run}) is null if the reply is the same as the last time. Each request names the
// project of the screen's last reply, so that an action is refused after another project was opened.
/** @template {keyof lab.Screens} S @param {S} screen @returns {lab.Screens[S]} see api_types.d.ts */
export function requests(screen) {
  const revisions = {};
  const functions = {};
  let shownProject = null;
  const send = async (path, payload, ...rest) => {
    const answer = await post(path, { shown_project: shownProject, ...payload }, ...rest);
    if (Number.isInteger(answer.reply?.project)) shownProject = answer.reply.project;
    return answer;
  };
  const proxy = new Proxy(functions, {
    get(_, name) {
      if (functions[name]) return functions[name];
      const path = `${screen}/${String(name)}`;
      functions[name] = async (payload = {}, timeoutMs = TIMEOUT_MS) => (await send(path, payload, timeoutMs)).reply;
      functions[name].ifChanged = async (payload = {}) => {
        const answer = await send(path, payload, TIMEOUT_MS, revisions[name]);
        revisions[name] = answer.revision ?? revisions[name];
        return answer.unchanged ? null : answer.reply;
      };
      return functions[name];
    },
  });
  return /** @type {any} */ (proxy);
}

async function post(path, payload, timeoutMs, revision = '') {
  const headers = {
    'Content-Type': 'application/json',
    ...(revision ? { 'X-Lab-Revision': revision } : {}),
    ...operatorHeader(),
  };
  const body = JSON.stringify({ annotator: annotatorName(), ...payload });
  let answer;
  try {
    const signal = AbortSignal.timeout(timeoutMs);
    const response = await fetch(`lab-api/${path}`, { method: 'POST', headers, body, signal });
    answer = await response.json();
  } catch (error) {
    throw new RequestError(NO_ANSWER, { isReply: false });
  }
  if (answer.error) throw new RequestError(answer.error, { field: answer.field });
  return answer;
}
