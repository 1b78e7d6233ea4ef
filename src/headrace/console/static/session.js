// Who looks at the console: on a listener with logins, a session begins with a user and password.
import { html, signal, useState } from "./vendor/preact.js";
import { ask, credentials } from "./api.js";
import { stopLive } from "./live.js";
import { Refusal } from "./ui.js";
import { t } from "./words.js";

export const session = signal(null);

function take(found) {
  credentials.csrf = found.csrf_token ?? "";
  session.value = found;
}

const LIMIT_MS = 10_000; // without a session, no page is shown

export async function startSession() {
  // The session has ended: another request says so, and the form is shown again.
  credentials.ended = () => {
    if (!session.value?.can_sign_in) return;
    stopLive();
    take({ ...session.value, is_authenticated: false, csrf_token: "" });
  };
  session.value = null;
  take(await ask("GET", "/v1/session", { limitMs: LIMIT_MS }).catch((problem) => ({ problem })));
}

export const mustSignIn = () => session.value?.can_sign_in && !session.value.is_authenticated;

// No session is known: the broker is asked, or has not said who looks.
export function Unknown() {
  const problem = session.value?.problem;
  return problem ? html`<h1 tabindex="-1">Headrace</h1><${Refusal} problem=${problem} again=${startSession} />`
    : html`<p class="quiet" role="status">${t("Loading")} …</p>`;
}

export async function signOut() {
  await ask("DELETE", "/v1/session");
  credentials.ended();
}

export function SignIn() {
  const [problem, setProblem] = useState(null);
  const submit = async (event) => {
    event.preventDefault();
    const { user, password } = event.target.elements;
    try {
      take(await ask("POST", "/v1/session", { body: { user: user.value, password: password.value } }));
    } catch (error) {
      setProblem(error);
      password.value = "";
      password.focus();
    }
  };
  return html`<form class="note sign-in" onSubmit=${submit}>
    <h1 tabindex="-1">${t("Sign in")}</h1>
    ${problem && html`<${Refusal} problem=${problem} />`}
    <label class="field"><span>${t("User")}</span><input name="user" required autocomplete="username" autofocus /></label>
    <label class="field"><span>${t("Password")}</span><input name="password" type="password" required autocomplete="current-password" /></label>
    <p><button class="main">${t("Sign in")}</button></p>
  </form>`;
}
