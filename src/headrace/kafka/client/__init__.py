"""A raw client of Kafka's protocol: bodies in, bodies out.

`exchange` frames requests and reads answers without I/O; `blocking` and `asynchronous` are its two
faces. What bodies mean is the caller's business: commands, brokers that call each other, attacks
and measurements each bring their own codec.
"""
