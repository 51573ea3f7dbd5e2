"""The messages of etcd that Frazil uses; `scripts/proto.py` writes the code."""
