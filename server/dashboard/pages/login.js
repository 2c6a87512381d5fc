// The form for a token, shown while the server wants one.
import { call, CallError, loginWanted } from '../lib/api.js';
import { html, useEffect, useState } from '../lib/dom.js';
import { Failure } from '../parts/bits.js';

// Exchanges a token or a one-time code for the session's cookie.
export async function startSession(credential) {
  const response = await fetch('/session', {
    method: 'POST',
    headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify(credential),
  });
  if (!response.ok) throw new CallError(response.status, await response.json().catch(() => ({})));
  loginWanted.set(false);
}

export const endSession = () => fetch('/session', { method: 'DELETE',
  headers: { 'Content-Type': 'application/json' } });

export function LoginPage() {
  const [token, setToken] = useState('');
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const [company, setCompany] = useState(null); // where people log in instead, if there is such a place
  useEffect(() => {
    call('AuthService/GetLoginOptions').then((options) => options.company && setCompany(options.issuer))
      .catch(() => {}); // the form for a token is there all the same
  }, []);
  const submit = async (event) => {
    event.preventDefault();
    setBusy(true);
    try {
      await startSession({ token: token.trim() });
    } catch (failure) {
      setError(failure);
      setBusy(false);
    }
  };
  const leave = () => location.assign('/login/company');
  const make = html`<code>sftctl admin token create USER</code>`;
  const web = html`<code>sftctl web</code>`;
  return html`<form class="login" onSubmit=${submit}><h1>Log in</h1>
    ${company && html`<p><button type="button" class="main" onClick=${leave}>Log in with your company</button></p>
      <p class="dim">at ${company}, or here with a token:</p>`}
    <p>This server asks who you are.${' '}
      Paste your token (${make} makes one), or come with ${web}, which needs no typing.</p>
    <label><span>Token</span><input type="password" autocomplete="current-password" value=${token} required autofocus
      onInput=${(event) => setToken(event.target.value)} /></label>
    <${Failure} error=${error} />
    <p><button type="submit" class=${company ? undefined : 'main'} disabled=${busy}>Log in</button></p></form>`;
}
