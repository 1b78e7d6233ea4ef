// Users: listed, created, given another password, removed. A password is in no address, in no form
// of a request, and in no saved page.
import { html, useState } from "../vendor/preact.js";
import { at, get, useData, words } from "../api.js";
import { useAction } from "../action.js";
import { visible } from "../format.js";
import { Empty, Field, Loaded, More, Secret, Select, Table } from "../ui.js";
import { session } from "../session.js";
import { t } from "../words.js";

const PATH = "/v1/users";
const LIMIT = 200;
const MECHANISMS = ["SCRAM-SHA-256", "SCRAM-SHA-512"];
const name = (user) => html`<bdi>${visible(user, 300)}</bdi>`;

export function Users() {
  const [dialog, start] = useAction();
  const [changed, setChanged] = useState(null);
  const [further, setFurther] = useState([]);
  const state = useData((signal) => { setFurther([]); return get(PATH, { limit: LIMIT }, signal); }, []);
  const more = async (token) => setFurther([...further, await get(PATH, { limit: LIMIT, page_token: token })]);
  const remove = ({ user }) => start({
    title: t("Remove the user"), verb: t("Remove"), method: "DELETE", path: at("users", user), hasDryRun: true, confirm: user,
    cli: words("headrace", "user", "remove", user, "--yes"), after: state.again,
    preview: () => html`<p>${t("Removes this user and closes all of its connections, on every broker. Its keys and browser sessions end:")} ${name(user)}</p>`,
  });
  const set = (user, given) => start(passwordAction(user, given, {
    title: t("Change the password"), method: "PUT", path: at("users", user, "password"), verb: "rotate", names: {}, after: () => { setChanged(null); state.again(); },
    preview: () => html`<p>${t("Gives this user another password and closes all of its connections, on every broker:")} ${name(user)}</p>`,
  }));
  const create = (user, given) => start(passwordAction(user, given, {
    title: t("Create a user"), method: "POST", path: PATH, verb: "add", names: { user }, after: state.again,
    preview: () => html`<p>${t("Creates this user, who may do nothing until a rule allows it:")} ${name(user)}</p>`,
  }));
  return html`<${Loaded} state=${state}>${(data) => {
      const rows = [data, ...further].flatMap((one) => one.users);
      return html`${rows.length === 0
        ? html`<${Empty} text=${t("No user has a password yet. Create one here, or:")} command="headrace user add alice" />`
        : html`<${Table} label=${t("Users")} rows=${rows} keyOf=${(one) => one.user} columns=${[
            { name: t("User"), cell: (one) => name(one.user) },
            { name: t("Mechanisms and iterations"), cell: (one) => Object.entries(one.mechanisms).map(([kind, count]) => html`<div>${kind} ${count}</div>`) },
            { name: t("Action"), cell: (one) => html`<div class="tools">
                <button aria-label=${`${t("Change the password")}: ${one.user}`} onClick=${() => setChanged(one.user)}>${t("Change the password")}</button>
                <button aria-label=${`${t("Remove")}: ${one.user}`} onClick=${() => remove(one)}>${t("Remove")}</button></div>` },
          ]} />`}
        <${More} token=${(further.at(-1) ?? data).next_page_token} load=${more} />`;
    }}<//>
    ${changed !== null && html`<h2>${t("Change the password")}: ${name(changed)}</h2><${NewPassword} key=${`of ${changed}`} user=${changed} submit=${set} />`}
    <h2>${t("Create a user")}</h2><${NewPassword} key="new" submit=${create} />
    ${dialog}`;
}

// The forms have no password: on the command line it is asked for, over HTTP the broker makes one.
function passwordAction(user, { password, mechanism }, { verb, names, ...action }) {
  const shown = { ...names, ...(mechanism && { mechanisms: [mechanism] }) };
  return {
    ...action, hasDryRun: true, shown, body: { ...shown, ...(password && { password }) },
    cli: words("headrace", "user", verb, user, ...(password ? [] : ["--generate"]), ...(mechanism ? [`--mechanism=${mechanism}`] : [])),
    done: (answer) => answer.password && html`<${Secret} name=${t("Password")} text=${answer.password} />`,
  };
}

function NewPassword({ user, submit }) {
  const isOwn = user !== undefined && session.value?.principal === `User:${user}`;
  const [isMade, setMade] = useState(!isOwn); // one's own would be lost with the page, when one has to sign in again
  const [mechanism, setMechanism] = useState("");
  const check = (event) => {
    event.preventDefault();
    const { name: given, password } = event.target.elements;
    submit(user ?? given.value, { password: password?.value, mechanism });
    if (password) password.value = "";
  };
  return html`<form onSubmit=${check}>
    ${isOwn && html`<p>${t("This is you: sign in again after that.")}</p>`}
    <div class="filters">
      ${user === undefined && html`<${Field} label=${t("User")}><input name="name" required maxlength="100" autocomplete="off" spellcheck=${false} /><//>`}
      ${!isOwn && html`<${Select} label=${t("Password")} value=${isMade ? "made" : "typed"} onChange=${(one) => setMade(one === "made")}
        options=${[["made", t("made by the broker, shown once")], ["typed", t("typed here")]]} />`}
      ${!isMade && html`<${Field} label=${t("New password")}><input name="password" type="password" required maxlength="1024" autocomplete="new-password" /><//>`}
      <${Select} label=${t("Mechanisms")} value=${mechanism} onChange=${setMechanism} options=${[["", t("all")], ...MECHANISMS.map((one) => [one, one])]} />
    </div><p><button class="main">${t("Check")}</button></p></form>`;
}
