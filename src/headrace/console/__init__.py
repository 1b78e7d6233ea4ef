"""The console: web pages that each broker serves at `/`, as files in `static/`.

Invariants: data and what reads it, no protocol. The pages are plain ES modules, which know a broker
by its HTTP API alone.
"""
