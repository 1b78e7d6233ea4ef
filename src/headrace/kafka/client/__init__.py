"""A raw client of Kafka's protocol: bodies in, bodies out.

`exchange` frames requests and reads responses without I/O; `blocking` and `asynchronous` are its
two transports. Encoding bodies is up to the caller: commands, calls between brokers, attacks and
measurements each have their own codec.
"""
