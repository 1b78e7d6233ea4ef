"""What a copying job cannot be made with is refused before Spark starts."""

from functools import partial

import pytest

from headrace.pipeline.errors import OptionInvalid
from headrace.pipeline.jobs.replay import ReplayConfig
from headrace.pipeline.jobs.resend import ResendConfig
from headrace.pipeline.jobs.windows import Connection

HERE = Connection("127.0.0.1:1")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (partial(ResendConfig, HERE, "orders"), "Give one of them"),
        (partial(ResendConfig, HERE, "orders", table="a.b", source="copy"), "Give one of them"),
        (partial(ResendConfig, HERE, "orders", source="orders"), r"is the topic itself \(orders\)"),
        (partial(ReplayConfig, HERE, "orders", "orders"), r"is the topic itself \(orders\)"),
        (partial(ReplayConfig, HERE, "orders", "copy", speed=0.0), "more than 0"),
    ],
)
def test_options_that_exclude_each_other_are_refused(make, said):
    with pytest.raises(OptionInvalid, match=said):
        make()


def test_a_topic_of_another_cluster_may_have_the_same_name():
    there = Connection("127.0.0.2:1")
    assert ReplayConfig(HERE, "orders", "orders", to=there).target == "orders"
