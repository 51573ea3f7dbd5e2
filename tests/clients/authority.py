"""An authority of certificates for tests: clients that are strict take no other kind of them.

Rust's TLS refuses a server that shows the certificate of an authority, even one that it trusts.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

BEGIN = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
END = dt.datetime(2120, 1, 1, tzinfo=dt.UTC)
USES = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]


def named(name):
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


class Authority:
    """Signs certificates for this machine; `certificate` is the file of its own."""

    def __init__(self, directory):
        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder("authority", self._key)
        builder = builder.add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        self.certificate = self._write("authority", builder)

    def _builder(self, name, key):
        """Return the beginning of a certificate that this authority signs."""
        builder = x509.CertificateBuilder(serial_number=x509.random_serial_number())
        builder = builder.subject_name(named(name)).issuer_name(named("authority"))
        builder = builder.not_valid_before(BEGIN).not_valid_after(END)
        return builder.public_key(key.public_key())

    def _write(self, name, builder):
        path = self.directory / f"{name}.pem"
        signed = builder.sign(self._key, hashes.SHA256())
        path.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        return str(path)

    def issue(self, name):
        """Return the files of a certificate for this machine and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        places = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        builder = self._builder(name, key)
        builder = builder.add_extension(x509.SubjectAlternativeName(places), critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage(USES), critical=False)
        builder = builder.add_extension(
            x509.BasicConstraints(ca=False, path_length=None), critical=True
        )
        path = self.directory / f"{name}-key.pem"
        path.touch(0o600)
        path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return self._write(name, builder), str(path)
