"""Bookies that speak TLS."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from headrace.dev_cluster.parts import Parts
from headrace.java.jars import Jar, JarUnavailable, ensure_jars

if TYPE_CHECKING:
    from tests.cluster.certificates import Identity

BOUNCY_CASTLE = Jar(
    "org.bouncycastle",
    "bcprov-jdk18on",
    "1.83",
    "82cf3a2af766c3bc874f6d36b9f20a8b99a8f09762dc776e8a227a45d8daaafb",
)
"""BookKeeper's TLS does not load without it; without TLS nothing needs it."""


def with_tls(parts: Parts) -> Parts:
    """Parts whose bookies may have TLS; skips the test without them."""
    try:
        paths = ensure_jars([BOUNCY_CASTLE])
    except JarUnavailable as error:
        pytest.skip(f"NO BOUNCY CASTLE, WITHOUT WHICH BOOKIES HAVE NO TLS: {str(error)[:200]}")
    return Parts(parts.java, os.pathsep.join([parts.classpath, *map(str, paths)]))


def tls_of_bookie(server: Identity) -> dict[str, str]:
    """The settings of a bookie with TLS."""
    return {
        "tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory",
        "tlsProvider": "JDK",
        "tlsKeyStoreType": "PEM",
        "tlsKeyStore": str(server.key),
        "tlsCertificatePath": str(server.certificate),
        "tlsTrustStoreType": "PEM",
        "tlsTrustStore": str(server.authority),
    }
