"""Names of what protects a listener: Kafka's, in settings of brokers and clients and in metadata.

Do not change: stored.
"""

from __future__ import annotations

PLAINTEXT = "PLAINTEXT"
"""No security. Also the default listener name, as in Kafka."""
SSL, SASL_PLAINTEXT, SASL_SSL = "SSL", "SASL_PLAINTEXT", "SASL_SSL"
"""TLS; SASL authentication without and with TLS."""
