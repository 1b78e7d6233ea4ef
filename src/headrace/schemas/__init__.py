"""Values by a schema: where schemas come from, and what they make of bytes."""
