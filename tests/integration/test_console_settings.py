"""The console's pages of users, keys, quotas and settings of brokers, in a real browser against a
real broker that authenticates its clients."""

from __future__ import annotations

import base64
import json
import re
import shlex
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest
from playwright.sync_api import expect
from tests.documents.commands import parse, words
from tests.integration.broker import Broker
from tests.integration.browser import (
    NEEDS_CHROMIUM,
    assert_usable,
    browser_of,
)
from tests.integration.test_console import add_user, sign_in

pytestmark = NEEDS_CHROMIUM
ROOT = "root:correct horse"
SECURED = ("--http-security-protocol", "SASL_PLAINTEXT")
SUPER = ("--authorizer", "acl", "--super-users", "User:root;User:ANONYMOUS")


@pytest.fixture(scope="module")
def secured_broker(tmp_path_factory):
    folder = tmp_path_factory.mktemp("secured")
    add_user(folder, "root")
    broker = Broker(folder / "broker-0", *SECURED, *SUPER)
    broker.start()
    ask(broker, "PATCH", "/v1/quotas", {"user": "loader", "set": {"producer_byte_rate": 2**20}})
    ask(broker, "POST", "/v1/keys", {"name": "listed"})
    yield broker
    broker.stop()


browser = browser_of("secured_broker")


def ask(broker, method: str, path: str, body=None, authorization: str = ""):
    """One call of the HTTP API; returns its answer."""
    basic = f"Basic {base64.b64encode(ROOT.encode()).decode()}"
    asked = urllib.request.Request(
        f"http://{broker.http}{path}",
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={
            "Content-Type": "application/json",
            "Authorization": authorization or basic,
        },
    )
    with urllib.request.urlopen(asked, timeout=60) as answer:
        return json.loads(answer.read())


def may_log_in(broker, user: str, password: str) -> bool:
    basic = f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"
    try:
        return bool(ask(broker, "GET", "/v1/session", authorization=basic)["is_authenticated"])
    except urllib.error.HTTPError as error:
        if error.code != 401:
            raise
        return False


@contextmanager
def opened(browser, path: str, **context):
    """A page of the console, signed in."""
    with browser.page(path, **context) as page:
        page.locator("input[name=user]").fill("root")
        page.locator("input[name=password]").fill("correct horse")
        page.keyboard.press("Enter")
        page.locator("main .title").wait_for()
        yield page


def form(page, number: int = 0) -> str:
    page.locator("dialog summary").click()
    return page.locator("dialog details .forms pre").nth(number).inner_text()


def choose(page, label: str, option: str) -> None:
    """Choose from a list; its label has the texts of all options, too."""
    field = page.locator("label.field", has=page.locator(f"span:text-is('{label}')"))
    field.locator("select").select_option(option)


def done(page) -> None:
    """Do what the dialog asks for."""
    page.locator("dialog footer button").first.click()
    page.locator("dialog .note.good").wait_for()


def run(command: str, broker) -> str:
    """Run a command that the console shows, as root; returns what it writes."""
    login = "-X sasl.mechanism=PLAIN -X sasl.username=root -X 'sasl.password=correct horse'"
    cli = f"{shlex.quote(sys.executable)} -m headrace.cli.main --bootstrap {broker.kafka} {login} "
    ran = subprocess.run(
        ["sh", "-c", command.replace("headrace ", cli)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, (command, ran.stderr)
    return ran.stdout


# --- settings ------------------------------------------------------------------------------------


def setting(broker, name: str, place: str = "brokers/0"):
    found = ask(broker, "GET", f"/v1/{place}/config")["settings"]
    return next(one for one in found if one["name"] == name)


def test_a_setting_of_a_broker_is_changed_and_reset_and_its_command_does_the_same(
    browser, secured_broker
):
    name = "log.retention.ms"
    with opened(browser, f"cluster/settings?contains={name}") as page:
        row = page.locator("tbody tr", has_text=name).first
        row.get_by_text("at once").wait_for()
        row.get_by_role("button", name=f"Change {name}").focus()
        page.keyboard.press("Enter")
        page.get_by_role("textbox", name=name).fill("soon")
        page.keyboard.press("Enter")
        page.locator("dialog [role=alert]", has_text="expected").wait_for()
        page.keyboard.press("Escape")
        page.get_by_role("textbox", name=name).fill("7000000")
        page.keyboard.press("Enter")
        page.get_by_text(f"{name}: from 604800000 to 7000000.").wait_for()
        assert setting(secured_broker, name)["source"] == "default"
        changing = form(page)
        done(page)
        page.keyboard.press("Escape")
        row.get_by_text("this broker").wait_for()
        assert setting(secured_broker, name)["value"] == "7000000"
        row.get_by_role("button", name=f"Reset {name}").click()
        page.get_by_text(f"{name}: from 7000000 to 604800000.").wait_for()
        resetting = form(page)
        done(page)
        page.keyboard.press("Escape")
        row.get_by_text("default", exact=True).wait_for()
    assert setting(secured_broker, name)["source"] == "default"
    run(changing, secured_broker)
    assert setting(secured_broker, name)["source"] == "broker"
    run(resetting, secured_broker)
    assert setting(secured_broker, name)["source"] == "default"


def test_what_is_set_for_all_brokers_is_changed_and_the_link_says_what_is_shown(
    browser, secured_broker
):
    name = "num.partitions"
    with opened(browser, "cluster/settings") as page:
        choose(page, "Of", "All brokers")
        choose(page, "Show", "what can change now")
        page.get_by_label("Name contains").fill("num.part")
        page.get_by_role("button", name=f"Change {name}").click()
        page.get_by_role("textbox", name=name).fill("6")
        page.keyboard.press("Enter")
        page.get_by_text(f"{name}: from \u2013 to 6.").wait_for()
        changing = form(page)
        done(page)
        page.keyboard.press("Escape")
        link = page.url.partition("#/")[2]
    assert (setting(secured_broker, name)["source"], changing) == (
        "cluster",
        "headrace config set num.partitions=6",
    )
    assert setting(secured_broker, name, "cluster")["value"] == "6"
    with opened(browser, link) as page:
        row = page.locator("tbody tr", has_text=name)
        row.get_by_text("all brokers").wait_for()
        assert page.locator("tbody tr").count() == 1
        row.get_by_role("button", name=f"Reset {name}").click()
        page.get_by_text("to what each broker was started with, or the default").wait_for()
        done(page)
        page.keyboard.press("Escape")
        page.locator("details.foot summary").click()
        listing = page.locator("details.foot pre", has_text="headrace config list")
        said = run(listing.inner_text(), secured_broker)
    assert name not in said
    assert setting(secured_broker, name)["source"] == "default"


def test_what_cannot_change_now_has_no_button_and_secrets_no_value(browser, secured_broker):
    with opened(browser, "cluster/settings?contains=log.dirs") as page:
        row = page.locator("tbody tr", has_text="log.dirs")
        row.get_by_text("after a restart").wait_for()
        row.get_by_text("not shown: a secret").wait_for()
        assert row.get_by_role("button").count() == 0
        assert str(secured_broker.data_dir) not in page.content()


# --- users ---------------------------------------------------------------------------------------


def left_of(page) -> str:
    """What a page has: its text, address and history, and what it is when it is saved."""
    saved = page.evaluate(
        """async () => {
          const base = document.querySelector("script[type=module]").src;
          const { pageAsFile } = await import(new URL("save.js", base));
          const values = [...document.querySelectorAll("input")].map((one) => one.value);
          return JSON.stringify([pageAsFile(), location.href, history.state, values,
            { ...localStorage }, { ...sessionStorage }, document.body.outerHTML]);
        }"""
    )
    return str(saved)


def saved(page) -> str:
    return json.loads(left_of(page))[0]


def test_a_password_that_the_broker_makes_is_shown_once(browser, secured_broker):
    with opened(browser, "acls/users") as page:
        page.get_by_label("User", exact=True).fill("bob")
        page.get_by_role("button", name="Check").click()
        page.get_by_text("Creates this user").wait_for()
        done(page)
        password = page.locator("dialog .secret pre").inner_text()
        assert password in page.content()
        assert password not in saved(page)
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Remove: bob").wait_for()
        assert password not in left_of(page)
        assert may_log_in(secured_broker, "bob", password)
        page.get_by_role("button", name="Change the password: bob").focus()
        page.keyboard.press("Enter")
        page.get_by_role("button", name="Check").first.click()
        page.get_by_text("Gives this user another password").wait_for()
        rotating = form(page)
        done(page)
        page.keyboard.press("Escape")
        assert not may_log_in(secured_broker, "bob", password)
        said = run(rotating, secured_broker)
        assert may_log_in(secured_broker, "bob", said.partition("password: ")[2].strip())
        page.get_by_role("button", name="Remove: bob").click()
        page.get_by_label("Type bob to confirm").fill("bob")
        removing = form(page)
        assert removing == "headrace user remove bob --yes"
        done(page)
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Remove: bob").wait_for(state="detached")
    assert [one["user"] for one in ask(secured_broker, "GET", "/v1/users")["users"]] == ["root"]


def test_a_password_that_is_typed_is_in_no_form_of_the_request_and_stays_nowhere(
    browser, secured_broker
):
    password = "typed s3cret"
    with opened(browser, "acls/users") as page:
        page.get_by_label("User", exact=True).fill("carol")
        choose(page, "Password", "typed here")
        page.get_by_label("New password").fill(password)
        assert password not in saved(page)
        page.get_by_role("button", name="Check").click()
        page.get_by_text("Creates this user").wait_for()
        page.locator("dialog summary").click()
        forms = page.locator("dialog details .forms pre")
        assert forms.count() == 3
        assert forms.first.inner_text() == "headrace user add carol"
        assert password not in str(forms.all_inner_texts())
        assert password not in left_of(page)
        done(page)
        assert page.locator("dialog .secret").count() == 0
        page.keyboard.press("Escape")
        assert password not in left_of(page)
    assert may_log_in(secured_broker, "carol", password)
    ask(secured_broker, "DELETE", "/v1/users/carol")
    assert password not in secured_broker.log()


def test_who_changes_the_own_password_types_it_and_signs_in_again(browser, tmp_path, make_broker):
    add_user(tmp_path, "root")
    broker = make_broker(*SECURED, *SUPER)
    with opened(browser, "acls/users", base=f"http://{broker.http}") as page:
        page.get_by_role("button", name="Change the password: root").click()
        page.get_by_text("This is you").wait_for()
        page.get_by_label("New password").fill("another horse")
        page.get_by_role("button", name="Check").first.click()
        page.get_by_text("Gives this user another password").wait_for()
        page.locator("dialog footer button").first.click()
        page.locator("main form.sign-in").wait_for()
        page.locator("input[name=user]").fill("root")
        page.locator("input[name=password]").fill("another horse")
        page.keyboard.press("Enter")
        page.get_by_role("button", name="Change the password: root").wait_for()


def test_who_may_not_administer_users_is_told_so(browser, tmp_path, make_broker):
    for user in ("root", "eve"):
        add_user(tmp_path, user)
    broker = make_broker(*SECURED, *SUPER)
    with browser.page("acls/users", base=f"http://{broker.http}") as page:
        sign_in(page, "eve")
        page.get_by_role("alert").get_by_text("may not DESCRIBE cluster").wait_for()
        page.get_by_label("User", exact=True).fill("mallory")
        page.get_by_role("button", name="Check").click()
        page.locator("dialog [role=alert]", has_text="may not ALTER cluster").wait_for()
    assert len(ask(broker, "GET", "/v1/users")["users"]) == 2


# --- keys ----------------------------------------------------------------------------------------


def test_a_key_is_created_shown_once_and_revoked_and_its_request_does_the_same(
    browser, secured_broker
):
    with opened(browser, "acls/keys") as page:
        page.get_by_label("Name", exact=True).fill("nightly")
        page.get_by_label("Name, or a beginning and *").fill("orders-*")
        page.get_by_label("Days").fill("30")
        page.get_by_role("button", name="Check").click()
        page.locator("dialog .note li", has_text="READ topic orders-*").wait_for()
        parse(words(form(page))[1:])
        creating = page.locator("dialog details .forms pre").nth(1).inner_text()
        done(page)
        key = page.locator("dialog .secret pre").inner_text()
        assert key not in saved(page)
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Revoke: nightly").wait_for()
        assert key not in left_of(page)
        bearer = f"Bearer {key}"
        who = ask(secured_broker, "GET", "/v1/session", authorization=bearer)
        assert (who["principal"], who["by"]) == ("User:root", "key")
        as_root = creating.replace("curl ", f"curl -u {shlex.quote(ROOT)} ", 1)
        as_root = as_root.replace("nightly", "by-request")
        made = json.loads(subprocess.check_output(["sh", "-c", as_root], timeout=60))
        assert ask(secured_broker, "GET", "/v1/session", authorization=f"Bearer {made['key']}")
        found = ask(secured_broker, "GET", "/v1/keys")["keys"]
        scopes = {one["name"]: one.get("scope") for one in found}
        assert scopes["nightly"] == scopes["by-request"] == made["scope"]
        ask(secured_broker, "DELETE", f"/v1/keys/{made['id']}")
        page.get_by_role("button", name="Revoke: nightly").click()
        page.get_by_label("Type nightly to confirm").fill("nightly")
        assert re.fullmatch(r"headrace key revoke [0-9a-f]{16} --yes", form(page))
        done(page)
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Revoke: nightly").wait_for(state="detached")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            ask(secured_broker, "GET", "/v1/session", authorization=bearer)


def test_an_access_key_for_rocketmqs_clients_is_created_without_a_scope(browser, secured_broker):
    with opened(browser, "acls/keys") as page:
        page.get_by_label("Name", exact=True).fill("billing")
        choose(page, "Used by", "RocketMQ's clients")
        page.get_by_role("button", name="Remove: READ topic").click()
        page.get_by_role("button", name="Check").click()
        page.locator("dialog .note li", has_text="all rights of its user").wait_for()
        done(page)
        page.locator("dialog .note", has_text="Access key:").wait_for()
        assert page.locator("dialog .secret pre").inner_text()
    (made,) = [one for one in ask(secured_broker, "GET", "/v1/keys")["keys"]
               if one["name"] == "billing"]  # fmt: skip
    assert (made["kind"], "scope" in made) == ("rocketmq", False)


# --- quotas --------------------------------------------------------------------------------------


def quotas_of(broker, **entity) -> dict[str, float] | None:
    found = [one["quotas"] for one in ask(broker, "GET", "/v1/quotas")["quotas"]
             if one["entity"] == entity]  # fmt: skip
    return found[0] if found else None


def test_quotas_are_set_changed_and_removed_and_their_commands_do_the_same(browser, secured_broker):
    with opened(browser, "acls/quotas") as page:
        choose(page, "Of", "a user with a client id")
        page.get_by_label("User", exact=True).fill("alice")
        page.get_by_role("button", name="Check").click()  # nothing is given: the form says so
        page.get_by_label("producer_byte_rate").fill("1048576")
        page.get_by_label("request_percentage").fill("50")
        page.get_by_role("button", name="Check").click()
        page.locator("dialog").get_by_text("producer_byte_rate: 1.0 MiB/s").wait_for()
        assert quotas_of(secured_broker, user="alice", default_client_id=True) is None
        setting_them = form(page)
        done(page)
        page.keyboard.press("Escape")
        link = page.url.partition("#/")[2]
    both = {"producer_byte_rate": 1048576.0, "request_percentage": 50.0}
    assert quotas_of(secured_broker, user="alice", default_client_id=True) == both
    with opened(browser, link) as page:
        expect(page.locator("[name=request_percentage]")).to_have_value("50", timeout=60_000)
        page.get_by_label("request_percentage").fill("")
        page.get_by_label("producer_byte_rate").fill("2097152")
        page.get_by_role("button", name="Check").click()
        page.locator("dialog").get_by_text("producer_byte_rate: 2.0 MiB/s").wait_for()
        done(page)
        page.keyboard.press("Escape")
        changed = quotas_of(secured_broker, user="alice", default_client_id=True)
        assert changed == {"producer_byte_rate": 2097152.0}
        page.get_by_role("button", name="Remove: User: alice, Client id: default").click()
        page.get_by_label("Type alice to confirm").fill("alice")
        removing = form(page)
        done(page)
    assert quotas_of(secured_broker, user="alice", default_client_id=True) is None
    run(setting_them, secured_broker)
    assert quotas_of(secured_broker, user="alice", default_client_id=True) == both
    run(removing.replace("delete ", "delete request_percentage "), secured_broker)
    assert quotas_of(secured_broker, user="alice", default_client_id=True) is None


def test_a_quota_of_all_addresses_is_set_by_keyboard(browser, secured_broker):
    with opened(browser, "acls/quotas?kind=ip") as page:
        page.get_by_label("connection_creation_rate").focus()
        page.keyboard.type("500")
        page.keyboard.press("Enter")
        page.locator("dialog .note", has_text="Address: default").wait_for()
        page.locator("dialog footer button").first.focus()
        page.keyboard.press("Enter")
        page.locator("dialog .note.good").wait_for()
    assert quotas_of(secured_broker, default_ip=True) == {"connection_creation_rate": 500.0}
    ask(secured_broker, "DELETE", "/v1/quotas?default_ip=true")


# --- every page ----------------------------------------------------------------------------------

PAGES = [
    "cluster/settings",
    "cluster/settings?broker=all&only=live",
    "acls/users",
    "acls/keys",
    "acls/quotas",
    "acls/quotas?kind=both&user=loader",
]


@pytest.mark.parametrize("path", PAGES)
def test_pages_are_accessible_fit_a_small_screen_and_speak_chinese(browser, path):
    for scheme in ("light", "dark"):
        with opened(browser, path, color_scheme=scheme) as page:
            page.wait_for_selector("main table")
            assert_usable(page, scheme)
    with opened(browser, path, locale="zh-CN") as page:
        page.wait_for_selector("main table")
        assert re.search("[\u4e00-\u9fff]", page.locator("main").inner_text())
        assert page.locator("main h1").inner_text() == ("集群" if "cluster" in path else "访问控制")
