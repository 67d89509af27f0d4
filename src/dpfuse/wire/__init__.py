"""The transports of a centre: HTTP, MQTT, their messages, tokens and limits."""
