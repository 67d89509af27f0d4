"""The transports of a centre: HTTP, MQTT, their messages, keys and limits."""
