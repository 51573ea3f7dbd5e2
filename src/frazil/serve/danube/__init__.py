"""The Danube client protocol: its messages, names, statuses and services."""
