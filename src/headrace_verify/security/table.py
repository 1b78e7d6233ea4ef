"""The table of abuse: each case, the published vulnerability it is modelled on, what must hold.

Invariants: numbers as in public listings. A case is a function in the modules of this package, or
one of `verify wire` that tests the same thing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headrace_verify.security import (
    access_keys,
    configs,
    dependencies,
    encoded_names,
    files,
    interface,
    logins,
    names,
    rights,
    secrets,
    shares,
    tenants,
    web,
    work,
)
from headrace_verify.wire import batches, frames, grammar
from headrace_verify.wire import web as burdens
from headrace_verify.wire.abuse import Abuse, Case

if TYPE_CHECKING:
    from collections.abc import Callable

KAFKA, HTTP, MACHINE = "kafka", "http", "machine"


class Threat(NamedTuple):
    """One row."""

    listener: str
    """Or `machine`: files, processes, dependencies."""
    run: Callable[[Abuse], None]
    after: str
    """The vulnerability in other software that it is modelled on."""
    holds: str
    """What must hold here."""
    share: int = 0
    is_long: bool = False
    """Both as in `Case`: whether it can use more time, and is excluded from the quick profile."""

    @property
    def case(self) -> Case:
        """As `verify wire` runs it."""
        return Case(self.listener, self.run, self.share, self.is_long)


THREATS = (
    Threat(KAFKA, names.topic_names_lead_nowhere, "GO-2023-2066",
           "rejected; no file is named after a topic"),
    Threat(KAFKA, names.group_and_member_names_lead_nowhere, "GO-2023-2066, CVE-2021-44228",
           "answered under the same name; no file is named after it"),
    Threat(KAFKA, names.what_clients_call_themselves_makes_no_line_of_the_log,
           "CVE-2021-44228, CVE-2026-67407", "one bounded line without control characters"),
    Threat(HTTP, names.http_clients_make_no_line_of_the_log, "CVE-2021-44228", "the same"),
    Threat(KAFKA, names.names_that_differ_in_case_alone_are_two, "GO-2023-2066",
           "each keeps its own records"),
    Threat(HTTP, names.names_break_no_line_of_the_metrics, "CVE-2017-4965, CVE-2019-11291",
           "a name is a label's value, escaped"),
    Threat(KAFKA, rights.a_client_that_says_it_is_a_replica_gets_what_clients_get,
           "CVE-2018-1288", "same records, same high watermark"),
    Threat(KAFKA, rights.control_and_transactional_batches_of_anybody_are_refused,
           "CVE-2018-17196", "rejected, also after a good batch"),
    Threat(KAFKA, rights.producers_do_not_pass_for_older_or_other_ones, "CVE-2026-35554",
           "older epochs, gaps and impossible ids are rejected"),
    Threat(KAFKA, rights.commits_of_other_generations_and_members_are_refused,
           "CVE-2026-67407", "rejected"),
    Threat(KAFKA, rights.what_is_the_brokers_own_stays_so, "CVE-2026-41115",
           "internal topics are not written, truncated, altered or deleted"),
    Threat(KAFKA, configs.settings_load_nothing_and_connect_nowhere,
           "CVE-2023-25194, CVE-2025-27817, CVE-2025-27818, CVE-2023-33246, CVE-2023-37582",
           "rejected; no connection is opened, nothing is set"),
    Threat(KAFKA, configs.a_brokers_identity_and_exposure_cannot_be_changed_by_clients,
           "CVE-2023-37582", "rejected for every setting that requires a restart"),
    Threat(KAFKA, configs.numbers_at_their_ends_are_refused_or_obeyed, "CVE-2026-75516",
           "rejected, or the topic is served with it"),
    Threat(KAFKA, configs.lists_and_requests_without_end_are_bounded, "CVE-2026-75516",
           "what is kept stays small"),
    Threat(KAFKA, frames.a_frame_of_an_impossible_length_ends_its_connection,
           "CVE-2022-34917, CVE-2026-27889", "the connection ends"),
    Threat(KAFKA, frames.claimed_sizes_take_no_memory, "CVE-2022-34917",
           "no memory is allocated before data arrives"),
    Threat(KAFKA, grammar.a_million_elements_keep_nobody_waiting,
           "CVE-2026-111108, CVE-2026-67414", "rejected before allocation"),
    Threat(KAFKA, grammar.a_million_unknown_tagged_fields_keep_nobody_waiting,
           "CVE-2026-111115", "rejected", is_long=True),
    Threat(KAFKA, batches.bombs_are_refused_before_they_unfold,
           "CVE-2026-111073, CVE-2023-34455, CVE-2026-27571",
           "rejected; memory stays bounded", is_long=True),
    Threat(KAFKA, batches.streams_that_are_none_are_refused, "CVE-2026-67416",
           "nothing is stored that readers cannot decode"),
    Threat(KAFKA, batches.compressed_batches_that_claim_more_records_than_they_hold_are_refused,
           "CVE-2026-111108", "rejected"),
    Threat(KAFKA, batches.times_at_the_ends_of_the_calendar_harm_nobody, "CVE-2026-111496",
           "answered; reads and retention continue"),
    Threat(HTTP, web.other_hosts_names_are_not_answered, "CVE-2026-67405, CVE-2026-57216",
           "421; a page in a browser can read nothing"),
    Threat(HTTP, web.strangers_pages_get_no_leave_to_read, "CVE-2026-66070",
           "no CORS header, no cookie, no content sniffing"),
    Threat(HTTP, web.answers_are_not_split_and_say_nothing_back,
           "CVE-2014-9650, CVE-2014-9649, CVE-2017-4965", "one response; nothing is echoed"),
    Threat(HTTP, web.odd_query_options_are_no_fault, "CVE-2015-8786", "no 5xx"),
    Threat(HTTP, web.errors_tell_nothing_of_the_inside, "CVE-2014-9649, CVE-2019-12399",
           "no traceback, path, version or server name"),
    Threat(HTTP, web.connections_reset_at_once_cost_nothing, "CVE-2023-44487",
           "descriptors and memory are released"),
    Threat(HTTP, burdens.huge_bodies_take_no_memory, "CVE-2023-46118, CVE-2026-67235",
           "a body is never buffered"),
    Threat(HTTP, burdens.paths_do_not_lead_out, "GO-2023-2066", "rejected"),
    Threat(HTTP, burdens.requests_are_not_smuggled, "CVE-2014-9650", "rejected"),
    Threat(HTTP, interface.answers_are_as_the_interface_says, "CVE-2015-8786",
           "schemathesis reports nothing", 1),
    Threat(MACHINE, logins.nothing_is_answered_before_the_login,
           "CVE-2026-105926, CVE-2026-105931, CVE-2026-105935", "closed, or 401, for every API"),
    Threat(MACHINE, logins.what_comes_before_a_login_is_small,
           "CVE-2022-34917, CVE-2026-27889", "the connection ends; users are served beside it"),
    Threat(MACHINE, logins.scram_is_neither_weakened_nor_made_to_compute, "CVE-2026-10143",
           "no channel binding or mechanism is negotiated away; iterations are bounded"),
    Threat(MACHINE, logins.forged_tokens_log_nobody_in,
           "CVE-2021-22160, CVE-2026-33557, CVE-2026-110985", "401"),
    Threat(MACHINE, logins.rules_are_of_one_name_alone,
           "CVE-2026-44838, CVE-2026-67407, CVE-2026-128424", "403 for every other name"),
    Threat(MACHINE, logins.errors_do_not_tell_what_exists, "CVE-2026-41115, CVE-2026-67420",
           "the same answer, and the same salt, whether a user or a topic exists or not"),
    Threat(MACHINE, logins.sessions_are_new_and_end, "CVE-2023-31007",
           "a sign-in makes a session; a sign-out ends it; none is taken from a client"),
    Threat(MACHINE, logins.other_sites_cannot_use_a_session, "CVE-2026-66070",
           "403 without the page's token or from another origin"),
    Threat(MACHINE, logins.headers_do_not_smuggle_a_login,
           "CVE-2026-67411, CVE-2023-37579", "no header but Authorization authenticates"),
    Threat(MACHINE, access_keys.signatures_of_others_and_of_other_times_are_refused,
           "CVE-2023-37582, CVE-2026-67407",
           "the same refusal for every wrong one; a signature ends after minutes"),
    Threat(MACHINE, tenants.another_tenants_names_cannot_be_told,
           "CVE-2025-30215, CVE-2026-66076",
           "the same answer whether another tenant has it or nobody; lists without it; 403"),
    Threat(MACHINE, tenants.a_tenants_listener_is_its_own,
           "CVE-2026-66067, CVE-2026-110985",
           "a login of nobody else; the topics of the tenant, by the names that it gives them"),
    Threat(MACHINE, tenants.people_of_a_tenant_make_no_rule_about_others,
           "CVE-2026-66067, CVE-2025-30215",
           "rules about its own names alone, however others' are written; those of operators stay"),
    Threat(MACHINE, encoded_names.encoded_names_reach_no_other_tenant,
           "CVE-2025-30215, CVE-2014-9650",
           "the same answer in every encoding whether another tenant has it or nobody"),
    Threat(MACHINE, work.work_does_not_tell_what_exists, "CVE-2026-41115",
           "the same CPU time, in each protocol, whether a user, a key or what others have exists"),
    Threat(MACHINE, tenants.a_tenant_takes_no_more_than_its_limits, "CVE-2026-66067",
           "403 for topics and partitions above its limits"),
    Threat(MACHINE, tenants.a_tenant_does_not_fill_the_disk_of_others, "CVE-2026-66067",
           "403 for writes above its stored bytes; others write on"),
    Threat(MACHINE, tenants.a_tenant_leaves_places_for_streams_to_others, "CVE-2026-66067",
           "503 for a tenant that holds its part of the places; others follow"),
    Threat(MACHINE, shares.a_user_leaves_room_for_others, "CWE-770",
           "errors for a user that has its share of a bound; others get what is left"),
    Threat(MACHINE, secrets.secrets_of_the_environment_are_shown_to_nobody,
           "CVE-2026-33558, CVE-2026-33247, CVE-2019-12399",
           "not in logs at debug, arguments, metrics, settings, errors"),
    Threat(MACHINE, secrets.secrets_in_addresses_are_refused_and_not_said_again,
           "CVE-2026-33247", "rejected without being echoed", 1),
    Threat(MACHINE, secrets.secrets_in_a_bad_settings_file_are_not_said_again,
           "CVE-2026-33558", "rejected without being echoed", 1),
    Threat(MACHINE, files.files_are_their_owners_alone, "CVE-2024-27135", "0600 and 0700"),
    Threat(MACHINE, files.nothing_is_written_outside_the_data_folder, "CVE-2024-27135",
           "no file elsewhere is open for writing"),
    Threat(MACHINE, files.links_in_place_of_files_lead_nowhere, "GO-2023-2066",
           "a link's target is neither written nor created", 1),
    Threat(MACHINE, files.nobody_beyond_this_machine_is_listened_to,
           "CVE-2023-47090, CVE-2026-57216", "loopback only"),
    Threat(MACHINE, files.a_listener_beyond_loopback_wants_to_be_asked_for, "CVE-2023-47090",
           "rejected unless --insecure", 1),
    Threat(MACHINE, dependencies.dependencies_have_no_known_hole, "",
           "pip-audit reports nothing, if it is available"),
)  # fmt: skip
CASES = tuple(threat.case for threat in THREATS)
