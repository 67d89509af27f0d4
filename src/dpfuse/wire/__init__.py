"""The door: how reports come in and releases go out, over HTTP and MQTT, and who may speak."""
