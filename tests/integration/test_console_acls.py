"""The console's page of access rules in a real browser, against a broker with an authorizer."""

from __future__ import annotations

import re
import urllib.parse

import pytest
from tests.integration.broker import Broker
from tests.integration.browser import (
    NEEDS_CHROMIUM,
    assert_usable,
    browser_of,
)
from tests.integration.clients import create_topic
from tests.integration.test_console import HOSTILE, ask, run

pytestmark = NEEDS_CHROMIUM
SETTINGS = ("--authorizer", "acl", "--super-users", "User:ANONYMOUS")


@pytest.fixture(scope="module")
def acl_broker(tmp_path_factory):
    broker = Broker(tmp_path_factory.mktemp("acls"), *SETTINGS)
    broker.start()
    create_topic(broker.kafka, "orders")
    rule = {"permission": "deny", "principal": f"User:{HOSTILE}", "operation": "ALL"}
    ask(broker, "POST", "/v1/acls", {**rule, "resource": "group", "name": HOSTILE})
    ask(broker, "POST", "/v1/tenants", {"name": "acme", "principals": ["User:dora"]})
    ask(broker, "PATCH", "/v1/tenants/acme", {"limits": {"topics": 7, "stored_bytes": 2**20}})
    yield broker
    broker.stop()


browser = browser_of("acl_broker")


def rules(broker, principal: str) -> list[tuple[str, str, str, str]]:
    query = urllib.parse.urlencode({"principal": principal})
    found = ask(broker, "GET", f"/v1/acls?{query}")["acls"]
    names = ("permission", "operation", "name", "pattern")
    return sorted(tuple(one[name] for name in names) for one in found)


def form(page, number: int = 0) -> str:
    page.locator("dialog summary").click()
    return page.locator("dialog details .forms pre").nth(number).inner_text()


def test_a_rule_is_added_and_removed_by_keyboard_and_its_command_does_the_same(browser, acl_broker):
    who = "User:alice"
    with browser.page("acls/add") as page:
        page.get_by_label("Principal").focus()
        page.keyboard.type(who)
        page.get_by_label("Name", exact=True).focus()
        page.keyboard.type("ord")
        page.get_by_label("Name is").select_option("prefixed")
        page.get_by_role("button", name="Check").focus()
        page.keyboard.press("Enter")
        page.get_by_text("Adds this rule").wait_for()
        assert rules(acl_broker, who) == []
        adding = form(page)
        page.locator("dialog footer button").first.focus()
        page.keyboard.press("Enter")
        page.locator("dialog .note.good").wait_for()
        assert rules(acl_broker, who) == [("allow", "READ", "ord", "prefixed")]
        page.keyboard.press("Escape")
        page.get_by_role("link", name="Rules").click()
        page.get_by_role("button", name="Remove: allow User:alice").focus()
        page.keyboard.press("Enter")
        page.get_by_text("Removes this rule").wait_for()
        removing = form(page)
        page.get_by_label("Type User:alice to confirm").fill(who)
        page.locator("dialog footer button").first.click()
        page.locator("dialog .note.good").wait_for()
    assert rules(acl_broker, who) == []
    run(adding, acl_broker)
    assert rules(acl_broker, who) == [("allow", "READ", "ord", "prefixed")]
    run(removing, acl_broker)
    assert rules(acl_broker, who) == []


def test_an_operator_names_who_administers_a_tenant_and_the_command_says_the_same(
    browser, acl_broker
):
    with browser.page("acls/add?resource=cluster") as page:
        page.get_by_label("Principal").fill("User:acme/boss")
        page.get_by_label("Operation").select_option("ALTER")
        page.get_by_label("Only for the tenant").fill("acme")
        page.get_by_role("button", name="Check").click()
        page.get_by_text("Adds this rule").wait_for()
        adding = form(page)
    assert "--tenant=acme" in adding
    run(adding, acl_broker)
    assert rules(acl_broker, "User:acme/boss") == [
        ("allow", "ALTER", "acme/kafka-cluster", "literal")
    ]


def test_a_refusal_is_explained_and_the_link_asks_again(browser, acl_broker):
    bob = {"principal": "User:bob", "resource": "topic", "name": "orders"}
    ask(acl_broker, "POST", "/v1/acls", {**bob, "permission": "deny", "operation": "WRITE"})
    with browser.page("acls/explain") as page:
        page.get_by_label("Principal").fill("User:bob")
        page.get_by_label("Name", exact=True).fill("orders")
        page.get_by_label("Operation").select_option("WRITE")
        page.get_by_role("button", name="Ask").click()
        page.get_by_text("this rule decides: deny User:bob WRITE").wait_for()
        link = page.url.partition("#/")[2]
    with browser.page(link) as page:
        page.get_by_text("this rule decides: deny User:bob WRITE").wait_for()
        page.get_by_role("button", name="中文").click()
        page.get_by_text(re.compile("由此规则决定.deny User:bob WRITE")).wait_for()
        page.locator("details:not(.foot) summary").click()
        said = run(page.locator("details:not(.foot) pre").first.inner_text(), acl_broker)
    assert said.startswith("denied: this rule decides: deny User:bob WRITE")


def test_a_tenant_is_shown_with_its_limits_and_what_it_uses_and_the_command_says_the_same(
    browser, acl_broker
):
    with browser.page("acls/tenants") as page:
        page.get_by_role("link", name="acme").click()
        page.get_by_text("User:dora").wait_for()
        limits = page.get_by_role("region", name="Limits").locator("tbody tr")
        assert limits.all_inner_texts() == ["stored_bytes\t0 B\t1.0 MiB", "topics\t0\t7"]
        page.locator("details.foot summary").click()
        command = page.locator("details.foot pre", has_text="headrace tenant describe")
        said = run(command.inner_text(), acl_broker)
    assert "User:dora" in said
    assert "stored_bytes" in said


def test_an_old_address_of_a_tenants_topic_shows_it_as_operators_write_it(browser, make_broker):
    broker = make_broker(*SETTINGS)
    ask(broker, "POST", "/v1/tenants", {"name": "beta", "principals": ["User:eve"]})
    ask(broker, "POST", "/v1/topics", {"name": "beta/orders"})
    for place in ("topics", "queues", "dead-letters"):
        address = f"{place}/%C2%ABbeta%C2%BBorders"
        with browser.page(address, base=f"http://{broker.http}") as page:
            page.locator("main h1", has_text="beta/orders").wait_for()


PAGES = [
    "acls",
    "acls/add",
    "acls/explain?principal=User:x&name=orders&asked=1",
    "acls/tenants",
    "acls/tenants/acme",
]


@pytest.mark.parametrize("path", PAGES)
def test_pages_are_accessible_fit_a_small_screen_and_speak_chinese(browser, path):
    for scheme in ("light", "dark"):
        with browser.page(path, color_scheme=scheme) as page:
            page.wait_for_selector("main :is(table, .note, form)")
            assert_usable(page, scheme)
            assert page.title() != "owned"
    with browser.page(path, locale="zh-CN") as page:
        page.wait_for_selector("main :is(table, .note, form)")
        assert re.search("[\u4e00-\u9fff]", page.locator("main").inner_text())
        assert page.locator("main h1").inner_text() == "访问控制"


def test_without_an_authorizer_the_page_says_how_to_get_one(browser, make_broker):
    plain = make_broker()
    with browser.page("acls", base=f"http://{plain.http}") as page:
        page.get_by_text("headrace.authorizer=acl").wait_for()
