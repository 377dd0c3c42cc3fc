// Requests that the lab has not confirmed: {uuid, name, by, project_created_at, …}. This browser stores them, even
// after the tab was closed. The creation time identifies a project, also among those of another lab at this address.
const PREFIX = 'rlhf-lab-unconfirmed-';
const ONCE = 'rlhf-lab-once';

export function keepRequest(request) {
  localStorage.setItem(PREFIX + request.uuid, JSON.stringify(request));
}

export function forgetRequest(uuid) {
  localStorage.removeItem(PREFIX + uuid);
}

export function keptRequests(projectCreatedAt) {
  return Array.from({ length: localStorage.length }, (_, i) => localStorage.key(i))
    .filter((name) => name.startsWith(PREFIX))
    .map((name) => JSON.parse(localStorage.getItem(name)))
    .filter((request) => request.project_created_at === projectCreatedAt);
}

// The action that must not be sent twice and has no reply yet: {name, before, by}, or null. This tab stores it, because
// Gradio reloads a page that has lost its connection.
export const unansweredOnce = () => JSON.parse(sessionStorage.getItem(ONCE) || 'null');
export const storeOnce = (once) => sessionStorage.setItem(ONCE, once ? JSON.stringify(once) : '');
