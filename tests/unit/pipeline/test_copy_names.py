"""No login of a database reaches a certificate or a message."""

import pytest

from headrace.pipeline.errors import OptionInvalid
from headrace.pipeline.jobs.copies import DatabaseCopy


@pytest.mark.parametrize(
    "url",
    [
        "jdbc:mysql+srv://shop:secret@db/shop",
        "jdbc:mysql://db/shop?user=u&password=s3cr@tail",
        "jdbc:postgresql://db/shop?PassWord=secret",
        "jdbc:postgresql://db/shop?sslpassword=secret",
        "jdbc:postgresql://db/shop?pass%77ord=secret",
        "jdbc:teradata://db/USER=u,PASSWORD=secret",
        "jdbc:sqlserver://db;user=sa;password=p@ssword",
        "jdbc:sqlserver://db;pwd = secret",
        "jdbc:oracle:thin:scott/secret@//db:1521/shop",
    ],
)
def test_a_url_with_a_login_is_refused_without_repeating_it(url):
    with pytest.raises(OptionInvalid, match="HEADRACE_DATABASE_PASSWORD") as refused:
        DatabaseCopy(url, "orders", "key", "id")
    for part in ("shop", "secret", "s3cr", "tail", "p@ss", "sa;"):
        assert part not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "scheme"),
    [
        ("jdbc:sqlite:/data/shop.db", "jdbc:sqlite"),
        ("jdbc:mysql+srv://db/shop?useSSL=true", "jdbc:mysql+srv"),
        ("jdbc:oracle:thin:@//db:1521/shop", "jdbc:oracle"),
        ("other:place", "a database"),
    ],
)
def test_a_certificate_names_only_scheme_and_table(url, scheme):
    assert DatabaseCopy(url, "orders", "key", "id").name == f"table orders in {scheme}"
