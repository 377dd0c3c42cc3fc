// Sends what a person does on the screen Label, one request at a time.
//
// A vote, or the change of one, is stored by this browser and sent again, with growing timeouts, until the lab has
// stored it (the server counts it once) or the person discards it. Other actions are not sent again: after a timeout
// the page only requests the lab's state, which shows their result.
import { forgetRequest, keepRequest, storeOnce, unansweredOnce } from './kept_requests.js';

const REPLY_TIMEOUT_MS = 5000;
const MAX_DOUBLINGS = 3;

export class Sender {
  // api: the requests of the screen. screen: what is told of their outcome:
  //   onReadyChange(): awaitsReply has changed
  //   applyReply(reply, {isResumed, once}): returns whether the project or the visitor is another one than before
  //   resumeKept(): requests of an earlier visit may be sent now
  //   showUnstored(request, refusal), showUnanswered(once), showRefusal(text): what the person is told meanwhile
  constructor(api, screen) {
    this.api = api;
    this.screen = screen;
    this.awaitsReply = false; // while true, no request is sent
    this.pending = null; // the vote or change that is not confirmed
    this.attempts = 0; // how often a reply did not arrive
    this.refusal = ''; // why the lab has refused the pending request
    this.timer = /** @type {any} */ (null);
    this.count = 0; // of the requests sent
    this.firstAwaited = 0; // replies to requests before this one are late
    this.answered = 0; // the newest request that had been sent when the last reply arrived
  }

  send(name, fields = {}) {
    if (this.awaitsReply) return;
    this.setAwaitsReply(true);
    this.count += 1;
    const number = this.count;
    clearTimeout(this.timer);
    const timeoutMs = REPLY_TIMEOUT_MS * 2 ** Math.min(this.attempts, MAX_DOUBLINGS);
    this.timer = setTimeout(() => this.onTimeout(), timeoutMs);
    this.api[name](fields).then(
      (reply) => this.onReply(reply, number),
      (error) => number >= this.firstAwaited && number > this.answered && this.onError(name, error),
    );
  }

  // request: {name, uuid, …}
  sendKept(request) {
    if (this.awaitsReply) return;
    if (this.pending?.uuid !== request.uuid) this.firstAwaited = this.count + 1;
    this.pending = request;
    keepRequest(request);
    this.send(request.name, request);
  }

  // once: {name, before, by}, to tell later whether it was done
  sendOnce(once, fields) {
    if (this.awaitsReply) return;
    this.firstAwaited = this.count + 1;
    storeOnce(once);
    this.send(once.name, fields);
  }

  // Request the state in so many ms, unless something else is sent before.
  sendOpenedIn(ms) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.send('opened'), ms);
  }

  resend(request) {
    this.screen.showUnstored(request, this.refusal);
    this.sendKept(request);
  }

  discard(request) {
    forgetRequest(request.uuid);
    if (this.pending?.uuid !== request.uuid) return;
    clearTimeout(this.timer);
    this.clearPending();
    this.setAwaitsReply(false);
  }

  onTimeout() {
    this.setAwaitsReply(false);
    this.attempts += 1;
    if (this.pending) {
      this.resend(this.pending);
      return;
    }
    const once = unansweredOnce();
    if (once) this.screen.showUnanswered(once);
    this.send('opened');
  }

  // Of several replies, as after timeouts, a later one counts only if it has a notice; it would clear the first one.
  onReply(reply, number) {
    if (number < this.firstAwaited || (number <= this.answered && !reply.notice)) return;
    this.answered = this.count;
    clearTimeout(this.timer);
    const isResumed = Boolean(this.pending && this.attempts);
    const isOtherVisit = this.screen.applyReply(reply, { isResumed, once: unansweredOnce() });
    this.clearPending();
    this.setAwaitsReply(false);
    if (isOtherVisit || isResumed) this.screen.resumeKept();
  }

  // Without an answer, the timer decides what is sent again; so it does for a refused vote.
  onError(name, error) {
    if (!error.isReply) return;
    if (this.pending) {
      this.refusal = error.message;
      this.screen.showUnstored(this.pending, error.message);
      return;
    }
    this.screen.showRefusal(error.message);
    if (name === 'opened') return;
    clearTimeout(this.timer);
    this.clearPending();
    this.setAwaitsReply(false);
  }

  clearPending() {
    if (this.pending) forgetRequest(this.pending.uuid);
    Object.assign(this, { pending: null, attempts: 0, refusal: '' });
    storeOnce(null);
  }

  setAwaitsReply(awaits) {
    this.awaitsReply = awaits;
    this.screen.onReadyChange();
  }
}
