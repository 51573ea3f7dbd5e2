"""The sections of the broker: addresses, certificate, limits, and permissions.

No setting holds a secret: settings name files of secrets, so that `frazil config show` and a
dumped tree have none.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final

from pydantic import ValidationInfo, field_validator

from frazil.config.values import Count, Section, Switch, setting

__all__ = ["LOOPBACK", "AuthSettings", "ServeSettings", "is_loopback"]

LOOPBACK: Final = "127.0.0.1"
PORT_MAX: Final = 65_535

_URL: Final = re.compile(
    r"https?://(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]{1,253})(?::(?P<port>[0-9]{1,5}))?\Z"
)


def _is_place(host: str, port: str | None) -> bool:
    """Tell whether clients can connect to the address: IPv6 in brackets, a valid TCP port."""
    if host.startswith("["):
        try:
            ipaddress.IPv6Address(host.strip("[]"))
        except ValueError:
            return False
    return port is None or 0 < int(port) <= PORT_MAX


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach an address; a name other than localhost never is."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class ServeSettings(Section):
    """The broker: addresses, certificate, limits."""

    host: str = setting(LOOPBACK, "Clients connect to this address.")
    port: Count = setting(
        6650, "Clients connect to this port; 0 is any free one.", low=0, high=65535
    )
    admin_host: str = setting(
        LOOPBACK, "Administration, health and metrics listen on this address."
    )
    admin_port: Count = setting(
        50051, "Administration listens on this port; 0 is any free one.", low=0, high=65535
    )
    http_port: Count = setting(
        9040, "Health and metrics listen on this port; 0 is any free one.", low=0, high=65535
    )
    insecure: Switch = setting(
        False, "Addresses beyond this machine may be used without TLS and authentication."
    )
    tls_certificate_file: str = setting(
        "", "The certificate and its chain, in PEM; empty is no TLS."
    )
    tls_key_file: str = setting("", "The certificate's key, in PEM, readable by its owner alone.")
    tls_client_ca_file: str = setting(
        "", "Clients need a certificate signed by these authorities, in PEM; empty is none."
    )
    advertised_url: str = setting(
        "", "Lookups answer this URL, http(s)://host[:port]; empty is the address to connect to."
    )
    connections_max: Count = setting(1_000, "The limit of open connections.", low=1, high=1_000_000)
    requests_s_max: Count = setting(
        200_000, "The limit of one client's requests a second.", low=1, high=1_000_000_000
    )

    @field_validator("advertised_url")
    @classmethod
    def _check_advertised(cls, url: str, info: ValidationInfo) -> str:
        """Refuse an unreachable URL; the settings above it are validated before."""
        if not url:
            return url
        found = _URL.match(url)
        if found is None or not _is_place(found["host"], found["port"]):
            raise ValueError("must be http://host[:port] or https://host[:port], nothing else")
        has_tls, asks_tls = bool(info.data.get("tls_certificate_file")), url.startswith("https:")
        if has_tls and not asks_tls:
            raise ValueError("must begin with https://, because a certificate is set")
        if asks_tls and not (has_tls or info.data.get("insecure")):
            raise ValueError(
                "must begin with http://, because no certificate is set; where a proxy in front of "
                "the broker has one, say so with serve.insecure=true"
            )
        return url

    @property
    def tls(self) -> bool:
        """Whether a certificate is set."""
        return bool(self.tls_certificate_file)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Every listening address."""
        return (self.host, self.admin_host)

    @property
    def exposed(self) -> tuple[str, ...]:
        """The addresses that other machines can reach."""
        return tuple(host for host in dict.fromkeys(self.hosts) if not is_loopback(host))

    def share_a_port(self, one: str, other: str) -> bool:
        """Return whether two listeners use the same port of the same address."""
        places = [
            (self.host if name == "port" else self.admin_host, getattr(self, name))
            for name in (one, other)
        ]
        return places[0] == places[1] and places[0][1] != 0


class AuthSettings(Section):
    """Authentication and permissions; until it is enabled every call is allowed."""

    enabled: Switch = setting(
        False, "Every call needs a token or key, and may do only what is granted to its holder."
    )
    access_file: str = setting("", "The file of API keys, roles and their holders, in YAML.")
    jwt_secret_file: str = setting(
        "", "The file of secrets that sign tokens, one a line; empty accepts no tokens."
    )
    jwt_issuer: str = setting("", "The required issuer of tokens.")
    jwt_audience: str = setting("", "The required audience of tokens; empty accepts any.")
